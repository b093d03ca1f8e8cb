"""Lowers a model that was read: the plan of fewest parts, and what it takes for equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.lowered_model import LoweredModel, ModelMetadata, weights_of
from sift_onnx.backends.cpu.lower.plan import Plan, lower
from sift_onnx.backends.cpu.lower.profitability import Setting, sizes_to_expect
from sift_onnx.backends.cpu.lower.rates import rates_of
from sift_onnx.backends.cpu.lower.weights import WEIGHT_VALUES
from sift_onnx.backends.cpu.run.read_model import ReadModel, read_model
from sift_onnx.backends.cpu.run.whole_model import may_be_opened
from sift_onnx.backends.lowering.assumed_sizes import AssumedSizes
from sift_onnx.backends.lowering.equal_sizes import (
    NOTHING_EQUAL,
    EqualSizes,
    open_axes,
    taken_for_equal,
    taken_for_numbers,
    with_conditions,
)
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.volumes import volumes_as_images
from sift_onnx.graphs.constants import nbytes_of
from sift_onnx.model import Model
from sift_onnx.shapes.open_axes import declared_shape
from sift_onnx.shapes.tensor_specs import TensorSpec, graph_inputs

__all__ = ["Lowered", "Lowering"]


@dataclass(frozen=True, eq=False)
class Lowered:
    """A model that was lowered.

    Attributes:
        model: what is opened, and kept in a cache.
        graph: what onnxruntime has in its place.
        constant_bytes: of the model.
    """

    model: LoweredModel
    graph: GraphView
    constant_bytes: int


@dataclass(frozen=True)
class Lowering:
    """How models are lowered.

    Attributes:
        options: of the session.
        threads: of the kernels.
        isa: instruction set of the kernels.
        assumes: whether sizes of inputs may be taken for equal.
    """

    options: CompileOptions
    threads: int
    isa: str
    assumes: bool = True

    def of(self, model: Model) -> Lowered:
        """``model`` lowered; errors as :func:`read_model` has them."""
        read = read_model(model)
        graph = volumes_as_images(read.graph)
        constant_bytes = sum(nbytes_of(constant) for constant in graph.constants.values())
        is_timed = not self.options.deterministic and may_be_opened(read.graph)
        plan, equal = self._plan(graph, is_timed), NOTHING_EQUAL
        if self.assumes and len(plan.parts) != 1 and open_axes(graph):
            plan, equal = self._in_fewer_parts(read, graph, plan, is_timed)
        inputs: tuple[TensorSpec, ...] = ()
        outputs: tuple[TensorSpec, ...] = ()
        if plan.parts or read.is_widened:
            inputs = graph_inputs(read.declared.proto)
            outputs = tuple(_output_spec(read.declared, info) for info in read.declared.proto.graph.output)
        weights = tuple(weights_of(part, self.isa) for part in plan.parts)
        lowered = LoweredModel(plan, weights, inputs, outputs, _metadata(read.model), is_timed, read.is_widened, equal)
        return Lowered(lowered, read.graph, constant_bytes)

    def _plan(self, graph: GraphView, is_timed: bool) -> Plan:
        rates = rates_of(self.isa, self.threads, _kernels.detected_isa())
        setting = Setting(rates, sizes_to_expect(graph, self.options.batch, self.options.input_shapes))
        return lower(graph, self.threads, setting, is_timed, WEIGHT_VALUES[self.options.weight_values])

    def _in_fewer_parts(self, read: ReadModel, graph: GraphView, plan: Plan, is_timed: bool) -> tuple[Plan, EqualSizes]:
        """A plan that takes sizes which meet for equal, and which these are, if it has fewer parts than ``plan``."""
        found, least = NOTHING_EQUAL, plan

        def consider(equal: EqualSizes, view: GraphView, assumed: AssumedSizes | None) -> None:
            nonlocal found, least
            other = self._plan(view, is_timed)
            # What rules make of values that the model does not name may have other sizes, and so more conditions.
            made = self._with_conditions(equal, graph, assumed)
            if made is not None and other.parts and _is_shorter(len(other.parts), least):
                found, least = made, other

        equal, view = self._taken_for_equal(read, graph, None)
        assumed: AssumedSizes | None = None
        if equal != NOTHING_EQUAL:
            consider(equal, view, None)
        # Without a size that is simpler in usual runs, plans for these would be the same.
        for usual in (AssumedSizes(), AssumedSizes(divides=True)) if read.probe.simplifies else ():
            if not _is_shorter(2, least):
                break
            own, other = self._taken_for_equal(read, graph, usual)
            if self._with_conditions(own, graph, usual) is None:
                continue
            equal, view, assumed = own, other, usual
            if least.parts or equal != found:
                consider(equal, view, usual)
                if not usual.is_parted:
                    break  # the next plan would be the same
        if least.parts and _is_shorter(2, least):
            with_numbers, numbered = taken_for_numbers(equal, view, self._renamer(read, assumed))
            if numbered is not view:
                consider(with_numbers, numbered, assumed)
        return least, found

    def _renamer(self, read: ReadModel, assumed: AssumedSizes | None) -> Callable[[Mapping[str, str | int]], GraphView]:
        return lambda names: volumes_as_images(read.with_names(names, assumed))

    def _taken_for_equal(
        self, read: ReadModel, graph: GraphView, assumed: AssumedSizes | None
    ) -> tuple[EqualSizes, GraphView]:
        """What a plan takes for equal, and the graph."""
        with_names = self._renamer(read, assumed)
        return taken_for_equal(
            graph if assumed is None else with_names({}), with_names, self.options.input_shapes or {}
        )

    def _with_conditions(self, equal: EqualSizes, graph: GraphView, assumed: AssumedSizes | None) -> EqualSizes | None:
        """``equal`` and what was assumed, if given sizes fulfil it; None if they do not, or no run can be asked."""
        found = equal if assumed is None else with_conditions(equal, graph, assumed)
        return None if found is None or found.difference(self.options.input_shapes or {}) else found


def _metadata(model: Model) -> ModelMetadata:
    proto = model.origin
    return ModelMetadata(
        proto.graph.name, proto.producer_name, proto.domain, proto.doc_string, proto.model_version, dict(model.metadata)
    )


def _output_spec(graph: GraphView, declared: onnx.ValueInfoProto) -> TensorSpec:
    info = graph.value_info(declared.name)
    assert info is not None  # graph outputs have one
    tensor = info.type.tensor_type
    known, own = declared_shape(tensor), declared_shape(declared.type.tensor_type)
    if known is not None and own is not None and len(known) == len(own):
        known = tuple(text if size is None else size for size, text in zip(known, own, strict=True))
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return TensorSpec(declared.name, dtype, known)


def _is_shorter(parts: int, plan: Plan) -> bool:
    """Whether ``parts`` is less than the number of parts of ``plan``; true if it has none."""
    return not plan.parts or parts < len(plan.parts)
