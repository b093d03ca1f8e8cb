"""The sparse CPU back end: regions in its own kernels, everything else in onnxruntime."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.base import (
    DEFAULT_OPTIONS,
    Backend,
    CompileOptions,
    ModelSource,
    NodeProfile,
    Placement,
    Profile,
    Program,
)
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.isa import selected_isa
from sift_onnx.backends.cpu.lower.costs import Estimate, plan_estimate
from sift_onnx.backends.cpu.lower.plan import ONNXRUNTIME, Plan, Region, lower
from sift_onnx.backends.cpu.lower.profitability import Setting, is_certain, sizes_to_expect
from sift_onnx.backends.cpu.lower.rates import Rates, rates_of
from sift_onnx.backends.cpu.run.parts import PartProgram, Parts, PartTime, Shapes
from sift_onnx.backends.cpu.run.peak import Peak
from sift_onnx.backends.cpu.run.pool import ThreadPool, pool_of
from sift_onnx.backends.cpu.run.profiling import profile_region, with_shares
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.trials import Route, Trials, clock_of, placed
from sift_onnx.backends.cpu.run.whole_model import may_be_opened, whole_model
from sift_onnx.backends.lowering.constant_sizes import check_constant_sizes
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.backends.lowering.weights import ValueType
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import UsageError
from sift_onnx.graphs.constants import nbytes_of
from sift_onnx.model import Model
from sift_onnx.shapes.open_axes import declared_shape
from sift_onnx.shapes.random_inputs import check_feeds, random_feeds
from sift_onnx.shapes.tensor_specs import TensorSpec, graph_inputs

__all__ = ["WEIGHT_VALUES", "CpuBackend", "CpuProgram", "ModelMetadata"]

Array = npt.NDArray[Any]
_PROFILED_RUNS = 10
# How weights of products may be held: names of the option, and of the kernels.
WEIGHT_VALUES: dict[str, ValueType] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
_LARGE_BYTES = 32 << 20
# Requests whose names, shapes and types have been checked, and are not looked at again.
_KNOWN = 64


class CpuBackend(Backend):
    """Sparse layers in kernels of this package, what surrounds them in the same layout, the rest in onnxruntime.

    The preset says how weights of matrix products are held; see :class:`CpuProgram`.
    """

    name = "cpu"
    presets = tuple(WEIGHT_VALUES)

    def compile(self, model: ModelSource, options: CompileOptions = DEFAULT_OPTIONS) -> CpuProgram:
        """A program for ``model``; see :meth:`Backend.compile`. It runs at any batch and size that the model allows."""
        return CpuProgram(model, options, weight_values=self.preset or "fp32")


@dataclass(frozen=True)
class ModelMetadata:
    """What the file says about itself, under onnxruntime's names."""

    graph_name: str
    producer_name: str
    domain: str
    description: str
    version: int
    custom_metadata_map: dict[str, str]


class CpuProgram(Program):
    """A compiled model; runs on several threads at once.

    Attributes:
        threads: of the kernels, and of onnxruntime's parts.
        inputs: what :meth:`run` takes.
        outputs: what it returns.
        isa: instruction set of the kernels.
        metadata: what the file says about itself.
    """

    def __init__(
        self,
        model: ModelSource | Model,
        options: CompileOptions = DEFAULT_OPTIONS,
        pool: ThreadPool | None = None,
        weight_values: str = "fp32",
    ) -> None:
        """Lower and pack ``model``; errors as :meth:`Backend.compile` has them.

        Args:
            model: what to run.
            options: how.
            pool: threads of the kernels; None are those that all programs of as many threads share.
            weight_values: how weights of matrix products are held that the model stores in float32: ``fp32`` keeps
                their bits; ``bf16``, ``fp16`` and ``int8``, with a scale per output, round them.

        Raises:
            UsageError: there are no such values.
        """
        if weight_values not in WEIGHT_VALUES:
            raise UsageError(f"weight_values is {weight_values!r}; choose {', '.join(WEIGHT_VALUES)}")
        self._pool = pool_of(options.threads, pool)
        self.threads = self._pool.threads
        self.isa = selected_isa()
        self._options = options = replace(options, threads=self.threads)
        self._peak = Peak(self._pool.kernels, self.isa)
        self._workspace = _kernels.Workspace()
        self._arrays = _kernels.ArrayPool()
        loaded = Model.load(os.fspath(model) if isinstance(model, os.PathLike) else model)
        self.metadata = _metadata(loaded)
        graph = GraphView(loaded)
        check_constant_sizes(graph)
        rates = rates_of(self.isa, self.threads, _kernels.detected_isa())
        setting = Setting(rates, sizes_to_expect(graph, options.batch, options.input_shapes))
        is_timed = not options.deterministic and may_be_opened(graph)
        plan = lower(graph, self.threads, setting, is_timed, WEIGHT_VALUES[weight_values])
        self._placements = plan.placements
        self._trials: Trials | None = None
        if plan.parts:
            self.inputs = graph_inputs(graph.proto)
            self.outputs = tuple(_output_spec(graph, info) for info in graph.proto.graph.output)
            self._parts = self._in_order([self._program(part) for part in plan.parts])
            if is_timed:
                self._trials = self._weighed(model, graph, plan, rates)
        else:
            # As it came: onnxruntime knows best how to read its data.
            source = loaded.to_proto() if isinstance(model, Model) else model
            whole = OnnxRuntimeProgram(source, options)
            self.inputs, self.outputs = whole.inputs, whole.outputs
            self._parts = self._in_order([whole])
        self._latest = Route(self._parts)
        self._known: dict[tuple[Any, ...], Route] = {}
        if sum(nbytes_of(constant) for constant in graph.constants.values()) >= _LARGE_BYTES:
            # The graph is full of cycles and may hold the whole file: it would stay until Python happens to look.
            del loaded, graph, plan
            gc.collect()

    def _program(self, part: Region | Subgraph) -> RegionProgram | OnnxRuntimeProgram:
        if isinstance(part, Region):
            return RegionProgram(part, self._pool.kernels, self._workspace, self._arrays, self.isa)
        return OnnxRuntimeProgram(part.model, self._options, part.arrays, stays_awake=False)

    def _in_order(self, programs: Sequence[PartProgram]) -> Parts:
        return Parts(programs, [spec.name for spec in self.outputs])

    def _weighed(self, model: ModelSource | Model, graph: GraphView, plan: Plan, rates: Rates) -> Trials:
        """Trials against onnxruntime."""
        regions = sum(isinstance(part, Region) for part in plan.parts)
        sessions = len(plan.parts) - regions
        clear = all(is_certain(plan_estimate(own, regions, sessions, rates)) for own in plan.estimates)
        opened = whole_model(model, graph, self._options, is_kept=not clear)
        return Trials(
            self._parts,
            lambda: self._in_order([opened()]),
            [spec.name for spec in self.inputs],
            self._estimate_by(rates),
            clock_of(self.threads),
        )

    def _estimate_by(self, rates: Rates) -> Callable[[Sequence[Shapes]], Estimate]:
        """Estimates of requests, as many times those of ``rates`` as this machine is slower in multiply-adds."""
        return lambda shapes: self._parts.estimate(shapes, rates).times(rates.kernels.peak_gflops / self._peak.gflops)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """See :meth:`Program.run`. The first run of a shape class may take about three runs more, to time them."""
        request = tuple([(name, array.shape, array.dtype) for name, array in feeds.items()])
        route = self._known.get(request)
        if route is None:
            _check(self.inputs, feeds)
            route, outputs = self._route(feeds)
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[request] = route
            if outputs is not None:
                return outputs
        self._latest = route
        return route.way.run(feeds)

    def _route(self, feeds: Mapping[str, Array]) -> tuple[Route, dict[str, Array] | None]:
        route, outputs = (Route(self._parts), None) if self._trials is None else self._trials.decide(feeds)
        self._latest = route
        return route, outputs

    def run_timed(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[PartTime]]:
        """As :meth:`run`, and how long each part took, and each step of the regions."""
        _check(self.inputs, feeds)
        return self._route(feeds)[0].way.run_timed(feeds)

    @property
    def parts(self) -> tuple[PartProgram, ...]:
        """Regions and what lies between them, in order; see :attr:`placements` for where requests run."""
        return self._parts.programs

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Every node of the model, and why it is where it is, in requests like the one that ran last."""
        return tuple(placed(one, self._latest.verdict) for one in self._placements)

    @property
    def verdict(self) -> str:
        """See :attr:`Program.verdict`; on requests like the one that ran last."""
        return self._latest.verdict.reason

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that the kernels hold; those of onnxruntime's parts are not among them.

        The first run of a shape packs them; what they were packed from is given up after it.
        """
        return sum(part.weight_bytes for part in self.parts if isinstance(part, RegionProgram))

    @property
    def peak_gflops(self) -> float:
        """Multiply-adds per second of all threads, twice, in 10**9; the best measured so far, in profiles too."""
        return self._peak.gflops

    def profile(self, feeds: Mapping[str, Array] | None = None) -> Profile:
        """See :meth:`Program.profile`. Nodes that were fused appear under the name of the first one."""
        if feeds is None:
            feeds = random_feeds(self.inputs, self._options.batch, self._options.input_shapes)
        _check(self.inputs, feeds)
        way = self._route(feeds)[0].way
        reasons = {placement.name: placement.reason for placement in self.placements}
        nodes: list[NodeProfile] = []
        for program, operands in way.in_turn(feeds):
            if isinstance(program, RegionProgram):
                nodes += profile_region(program, operands, reasons, _PROFILED_RUNS, self._peak)
                continue
            for node in program.profile_unchecked(operands).nodes:
                reason = reasons.get(node.name, "a node of onnxruntime, after its own fusions")
                nodes.append(NodeProfile(node.name, node.op, ONNXRUNTIME, reason, node.ms))
        return Profile(with_shares(nodes, self._peak), _PROFILED_RUNS)


def _check(inputs: Sequence[TensorSpec], feeds: Mapping[str, Array]) -> None:
    """Also that axes of one name have one size: the lowering relies on it.

    Raises:
        UsageError: see :func:`check_feeds`, or two sizes contradict each other.
    """
    check_feeds(inputs, feeds)
    sizes: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        for axis, (name, size) in enumerate(zip(spec.extents, feeds[spec.name].shape, strict=False)):
            if not isinstance(name, str):
                continue
            known, where = sizes.setdefault(name, (size, spec.name))
            if known != size:
                raise UsageError(
                    f"input {spec.name!r} has {size} along axis {axis}, but {name!r} is {known} in input {where!r}"
                )


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
