"""From a model to the graph that is lowered: one way of writing what models and exporters write in several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sift_onnx.analysis.computed_parameters import store_computed_parameters
from sift_onnx.analysis.inlining import inline_bodies
from sift_onnx.analysis.strided_views import with_restored_views
from sift_onnx.backends.lowering.added_masks import with_added_masks
from sift_onnx.backends.lowering.assigned_slices import with_joined_slices
from sift_onnx.backends.lowering.assumed_sizes import AssumedSizes, SizeProbe
from sift_onnx.backends.lowering.channel_order import channels_first
from sift_onnx.backends.lowering.composed_operators import with_elementary_operators
from sift_onnx.backends.lowering.constant_sizes import check_constant_sizes
from sift_onnx.backends.lowering.cropped_padding import without_cropped_padding
from sift_onnx.backends.lowering.empty_operands import without_empty_operands
from sift_onnx.backends.lowering.float_conditions import with_float_conditions
from sift_onnx.backends.lowering.fused_operators import with_separate_operators
from sift_onnx.backends.lowering.gathered_ranges import with_sliced_ranges
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.half_precision import in_float32
from sift_onnx.backends.lowering.joined_masks import with_joined_masks
from sift_onnx.backends.lowering.names import with_mark
from sift_onnx.backends.lowering.picked_rows import with_picked_rows
from sift_onnx.backends.lowering.shortened_top_k import with_shorter_top_k
from sift_onnx.backends.lowering.standard_quantization import with_standard_quantization
from sift_onnx.errors import UnsupportedError
from sift_onnx.graphs.zero_biases import drop_zero_biases, has_zero_biases
from sift_onnx.model import Model
from sift_onnx.shapes.decided_branches import with_decided_branches

__all__ = ["ReadModel", "read_model"]


@dataclass(frozen=True)
class ReadModel:
    """A model as it was declared, and the graph that stands for it.

    Attributes:
        model: without local functions and decided branches, and with weights that are computed stored.
        declared: its graph, with the types of inputs and outputs that callers see.
        graph: what is lowered, and what onnxruntime has in the place of the model. It computes the same values.
        is_widened: whether halves of the model are float32 in the graph.
        probe: whether any size of the graph, or of a plan for it, is simpler in usual runs.
    """

    model: Model
    declared: GraphView
    graph: GraphView
    is_widened: bool
    probe: SizeProbe

    def with_names(self, names: Mapping[str, str | int], assumed: AssumedSizes | None = None) -> GraphView:
        """The graph that is lowered where open sizes of inputs have other names; see :meth:`GraphView.with_names`."""
        return _graph_of(self.declared.with_names(names, assumed))[0]


def read_model(model: Model) -> ReadModel:
    """Read a model, which is not changed.

    Raises:
        UnsupportedError: a node makes a constant that takes far more memory than the file stores, or a value has a name
            as :mod:`sift_onnx.backends.lowering.names` makes them.
    """
    try:
        model = inline_bodies(model)
    except UnsupportedError:  # what onnx cannot inline, onnxruntime can, or says what is wrong with it
        model = with_decided_branches(model)
    model, _ = with_restored_views(model)
    if has_zero_biases(model.graph):
        model = model.copy()
        drop_zero_biases(model.graph)
    # Weights that nodes make of stored ones, such as gates in another order, are layers' weights.
    model, _ = store_computed_parameters(model, integers=True)
    declared, probe = GraphView(model), SizeProbe()
    taken = with_mark((*declared.inputs, *declared.constants, *declared.producers))
    if taken:
        raise UnsupportedError(
            f"a value has the name {taken!r}; the CPU back end has such names for values of its own: "
            "rename it, or use the back end onnxruntime"
        )
    declared.assumed = probe
    check_constant_sizes(declared)
    graph, is_widened = _graph_of(declared)
    return ReadModel(model, declared, graph, is_widened, probe)


def _graph_of(declared: GraphView) -> tuple[GraphView, bool]:
    """The graph that stands for a model, and whether halves are float32 in it."""
    widened = in_float32(declared)
    graph = with_elementary_operators(with_separate_operators(declared if widened is None else widened))
    graph = with_picked_rows(with_joined_slices(without_empty_operands(graph)))
    graph = with_shorter_top_k(with_sliced_ranges(graph))
    graph = with_joined_masks(with_added_masks(without_cropped_padding(graph)))
    graph = channels_first(with_standard_quantization(graph))
    return with_float_conditions(graph), widened is not None
