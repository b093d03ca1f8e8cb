"""What Parallel, Factorized and Doped have in common: layer after layer is replaced, its inputs and outputs kept.

(Paper, appendix A.1.1: "do not modify a convolution layer's input or output channels ... allows for fine-grained
control of what layers to apply the Sparse-IFT transformations".)
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Annotated, Any

import onnx_graphsurgeon as gs
from msgspec.structs import replace

from sift_onnx.analysis.axes.solution import solve
from sift_onnx.analysis.cost import as_counted, positions_of, product_macs
from sift_onnx.analysis.findings import AxisAnalysis, Cause
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.errors import UnsupportedError, listing
from sift_onnx.graphs.constants import is_masked, nnz_of
from sift_onnx.graphs.unread_nodes import drop_unread
from sift_onnx.model import Model
from sift_onnx.operators.labels import operator_label
from sift_onnx.passes.base import PassResult, already_applied, made_by_transforms, prepared, record
from sift_onnx.passes.batch_norm.folded_batch_norms import folding_warnings
from sift_onnx.passes.layer_report import describe_layers, layer_change, quantized_changes
from sift_onnx.passes.layerwise.activations import Activation, Function, choose, own_function
from sift_onnx.passes.layerwise.linear_layers import WEIGHT_VIEWS, LinearLayer, LinearLayerFinder, Occurrence
from sift_onnx.passes.layerwise.replacement import Part, Replacement
from sift_onnx.passes.layerwise.replacement_builder import ReplacementBuilder
from sift_onnx.passes.layerwise.splice import release, splice
from sift_onnx.passes.node_builder import NodeBuilder
from sift_onnx.passes.prepare.inference_mode import in_inference_mode
from sift_onnx.passes.prepare.inline_functions import InlineFunctions
from sift_onnx.passes.prepare.lift_constants import LiftConstants
from sift_onnx.passes.prepare.store_computed_parameters import StoreComputedParameters
from sift_onnx.passes.prepare.unshare_initializers import UnshareInitializers
from sift_onnx.passes.progress import report_progress
from sift_onnx.passes.selection import left_out_too, no_layers
from sift_onnx.passes.shape_check import check_shapes
from sift_onnx.passes.sparsifying import SparsifyingPass
from sift_onnx.records.transform import LayerChange
from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.sparsity.patterns.weight_matrix import WeightMatrix

__all__ = ["LayerwisePass"]


@dataclass(frozen=True)
class LayerwisePass(SparsifyingPass):
    """A pass that replaces layer after layer at the layer's own cost.

    Every matrix product and convolution that is not depthwise, first, last, an embedding, or excluded by the globs
    becomes a small subgraph with exactly as many active weights as it had weights, applied at the same positions: so
    its MACs, and the model's, stay to the last one. Layers that hold a mask already are left as they are, so that one
    model can mix several of these passes, each on its own layers.

    Attributes:
        activation: the non-linearity between the parts, see :func:`~sift_onnx.passes.layerwise.activations.choose`.
        init: how the new weights start.
    """

    _: KW_ONLY
    activation: Annotated[Activation, "non-linearity in Parallel, Factorized and Doped"] = "auto"
    init: Annotated[str, "how new weights start"] = "random"

    @property
    def mask_pattern(self) -> Pattern:
        """Of the masks."""
        return self.masking.pattern

    @in_inference_mode
    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report is the JSON document of ``sift-onnx transform``."""
        start = time.perf_counter()
        if already_applied(model, self.identity(), repeatable=True):
            return self.unchanged(model, "transformed before, with these settings", start)
        if self.is_identity():
            return self.unchanged(model, self.why_identity(), start)
        copy = prepared(model, InlineFunctions(), LiftConstants(), StoreComputedParameters(), UnshareInitializers())
        warnings = folding_warnings(copy, self.init)
        analysis = analyze(copy, self.input_shapes)
        chosen = self.choose_layers(copy, analysis)
        layers = {name: layer for name, layer in chosen.items() if isinstance(layer, LinearLayer)}
        if not layers:
            listed = listing([f"{name!r}: {reason}" for name, reason in chosen.items()], 4, "; ")
            all_left = f"every weight layer is left as it is ({listed}){left_out_too(analysis)}"
            why = all_left if chosen else no_layers(analysis)
            raise UnsupportedError(f"nothing to transform: {why}")
        self.begin(analysis, layers)
        own = own_function(copy.graph)
        node_builder = NodeBuilder(copy.graph)
        done: dict[str, Replacement] = {}
        for number, (name, layer) in enumerate(layers.items()):
            report_progress(number, len(layers), name)
            builder = self.replacement_builder(node_builder, layer, own)
            done[name] = self.replace(builder)
            for occurrence in layer.occurrences:
                splice(copy.graph, node_builder, occurrence, self.connect(builder, occurrence, done[name].parts))
            release(layer, done[name].parts[0].constant)
        drop_unread(copy.graph, WEIGHT_VIEWS | {"Constant"})
        still = solve(analysis.system, Fraction(1), [], shrink_cause=Cause("", "", ""))
        check_shapes(copy, analysis, still)
        record(copy, self.identity(), [part.constant.name for r in done.values() for part in r.parts])
        return PassResult(copy, True, self._report(analysis, chosen, done, start, warnings))

    def choose_layers(self, model: Model, analysis: AxisAnalysis) -> dict[str, LinearLayer | str]:
        """Per weight the linear layer that is replaced, or why it is left as it is."""
        excluded = self.excluded(model, analysis)
        finder = LinearLayerFinder(model.graph, analysis)
        chosen: dict[str, LinearLayer | str] = {}
        for name, layer in analysis.layers.items():
            found = excluded[name] if name in excluded else finder.find(layer)
            reason = "" if isinstance(found, str) else self.fits(found)
            chosen[name] = reason or found
        return chosen

    def replacement_builder(self, nodes: NodeBuilder, layer: LinearLayer, own: Function) -> ReplacementBuilder:
        """What makes the weights and nodes that replace a layer.

        Args:
            nodes: adds them to the graph.
            layer: the layer.
            own: the model's own function, see :func:`~sift_onnx.passes.layerwise.activations.own_function`.
        """
        function = choose(self.activation, layer, own)
        return ReplacementBuilder(nodes, layer, function, self.init == "random", self.seed, self.mask_pattern)

    def excluded(self, model: Model, analysis: AxisAnalysis) -> dict[str, str]:
        """The weight layers that are not to be replaced, and why."""
        excluded = self.selection.dense_layers(analysis)
        made = made_by_transforms(model)
        for name, layer in analysis.layers.items():
            if name in made:
                excluded.setdefault(name, "made by a transform")
            elif is_masked(layer.constant):
                excluded.setdefault(name, "it is sparse already")
        return excluded

    def begin(self, analysis: AxisAnalysis, layers: Mapping[str, LinearLayer]) -> None:
        """Decide what cannot be decided one layer at a time; nothing by default."""

    @abstractmethod
    def is_identity(self) -> bool:
        """Whether these settings change no layer."""

    def why_identity(self) -> str:
        """Why they change none."""
        return f"a sparsity of {float(self.share):g} changes nothing"

    @property
    def made_sparsity(self) -> Fraction:
        """The sparsity that layers get, as far as it does not depend on the layer."""
        return self.share

    def notes(self) -> Sequence[str]:
        """What a user is to know of the settings once they have been applied."""
        return ()

    @abstractmethod
    def fits(self, layer: LinearLayer) -> str:
        """Why a layer cannot be replaced at its own cost; empty if it can."""

    @abstractmethod
    def replace(self, builder: ReplacementBuilder) -> Replacement:
        """The weights that take the place of the builder's layer."""

    @abstractmethod
    def connect(self, builder: ReplacementBuilder, occurrence: Occurrence, parts: Sequence[Part]) -> gs.Variable:
        """The nodes that take the layer's place at ``occurrence``; what they make."""

    def whole_blocks(self, count: int) -> int:
        """``count``, or the next number below that a mask of the pattern can have."""
        return count // self.mask_pattern.unit * self.mask_pattern.unit

    def misfit(self, layer: LinearLayer, shape: tuple[int, ...], nnz: int) -> str:
        """Why no mask of the pattern is possible on a weight of the layer's operator; empty if one is."""
        matrix = WeightMatrix.of(shape, layer.out_axis)
        reason = self.mask_pattern.misfit(matrix)
        if reason or nnz <= self.mask_pattern.capacity(matrix):
            return reason or ""
        return f"`pattern='{self.mask_pattern}'` leaves it fewer than the {nnz:,} weights that it needs"

    def unchanged(self, model: Model, reason: str, start: float) -> PassResult:
        """The result where nothing is to be done.

        Args:
            model: that came in.
            reason: why, for every layer.
            start: of the call, by :func:`time.perf_counter`.
        """
        analysis = analyze(as_counted(model), self.input_shapes)
        return PassResult(model, False, self._report(analysis, dict.fromkeys(analysis.layers, reason), {}, start))

    def _report(
        self,
        analysis: AxisAnalysis,
        chosen: Mapping[str, LinearLayer | str],
        done: Mapping[str, Replacement],
        start: float,
        warnings: Sequence[str] = (),
    ) -> dict[str, Any]:
        products = product_macs(analysis, analysis.system.original)
        return replace(
            describe_layers(
                analysis,
                [*self._layers(analysis, chosen, done), *quantized_changes(analysis)],
                start,
                attention_macs=(products, products),
                warnings=(*warnings, *(self.notes() if done else ())),
            ),
            pass_=self.name,
            sparsity=float(self.made_sparsity),
            sparsity_requested=float(self.share),
            pattern=str(self.mask_pattern),
            activation=self.activation,
            init=self.init,
            width_factor=1.0,
            pinned=(),
            unknown=tuple(map(operator_label, analysis.unknown)),
        ).to_dict()

    def _layers(
        self, analysis: AxisAnalysis, chosen: Mapping[str, LinearLayer | str], done: Mapping[str, Replacement]
    ) -> Iterator[LayerChange]:
        for name, layer in analysis.layers.items():
            shape = tuple(analysis.system.original(axis.size) for axis in layer.axes)
            positions = positions_of(layer, analysis.system.original)
            replacement = done.get(name)
            if replacement is None:
                nnz = nnz_of(layer.constant)
                status = "unchanged", str(chosen[name])
                # One that had a mask before is still searched.
                masked = is_masked(layer.constant)
                macs = nnz * positions, nnz * positions
                yield layer_change(layer, (shape, shape), macs, (nnz, nnz), status, masked=masked)
                continue
            before, nnz = math.prod(shape), sum(part.nnz for part in replacement.parts)
            macs = before * positions, nnz * positions
            status = "sparse" if replacement.search_space else "dense", ""
            yield replace(
                layer_change(layer, (shape, shape), macs, (before, nnz), status, masked=False),
                sparsity=1 - nnz / sum(part.weights for part in replacement.parts),
                search_space=replacement.search_space,
                parts=tuple(part.record() for part in replacement.parts),
                weight_error=replacement.error,
            )
