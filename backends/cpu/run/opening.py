"""What a program opens: a model that is read and lowered, or found in a cache, as programs in order.

Sessions on models of one content, with one cache and one pool, share what they open: weights are packed once.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from sift_onnx.analysis.computed_parameters import store_computed_parameters
from sift_onnx.backends.base import CompileOptions, ModelSource, Placement
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.costs import Estimate, plan_estimate
from sift_onnx.backends.cpu.lower.lowered_model import LoweredModel, ModelMetadata, RegionWeights, weights_of
from sift_onnx.backends.cpu.lower.plan import lower
from sift_onnx.backends.cpu.lower.profitability import Setting, is_certain, sizes_to_expect
from sift_onnx.backends.cpu.lower.rates import rates_of
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.lower.weights import WEIGHT_VALUES
from sift_onnx.backends.cpu.packed.cache import ModelKey, PackedCache
from sift_onnx.backends.cpu.run.parts import PartProgram, Parts, Shapes
from sift_onnx.backends.cpu.run.peak import Peak
from sift_onnx.backends.cpu.run.pool import ThreadPool
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.trials import Trials, clock_of
from sift_onnx.backends.cpu.run.whole_model import may_be_opened, whole_model
from sift_onnx.backends.forks import renew_in_children
from sift_onnx.backends.lowering.channel_order import channels_first
from sift_onnx.backends.lowering.constant_sizes import check_constant_sizes
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.standard_quantization import with_standard_quantization
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.graphs.constants import nbytes_of
from sift_onnx.graphs.zero_biases import drop_zero_biases, has_zero_biases
from sift_onnx.model import Model
from sift_onnx.shapes.open_axes import declared_shape
from sift_onnx.shapes.tensor_specs import TensorSpec, graph_inputs

__all__ = ["OpenedModel", "open_model"]

_LARGE_BYTES = 32 << 20


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model as programs; several sessions may run it at once.

    Attributes:
        metadata: what the file says about itself.
        inputs: of the model.
        outputs: of the model.
        placements: every node of the model, and why it is where it is.
        parts: programs in order.
        trials: which way is faster for a class of shapes; None where nothing is timed.
    """

    metadata: ModelMetadata
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    placements: tuple[Placement, ...]
    parts: Parts
    trials: Trials | None


class _Shared:
    """Opened models that sessions have, by the key of a cache and the pool that they run on."""

    def __init__(self) -> None:
        self._models: weakref.WeakValueDictionary[tuple[str, int], OpenedModel] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        renew_in_children(self)

    def renew(self) -> None:
        """In a forked child: a thread that it does not have may hold the lock."""
        self._lock = threading.Lock()

    def get(self, key: ModelKey, pool: ThreadPool) -> OpenedModel | None:
        with self._lock:
            return self._models.get((key.text, id(pool.kernels)))

    def add(self, key: ModelKey, pool: ThreadPool, opened: OpenedModel) -> OpenedModel:
        """``opened``, or what another thread has opened meanwhile; it holds the pool, whose identity stays."""
        with self._lock:
            return self._models.setdefault((key.text, id(pool.kernels)), opened)


_shared = _Shared()


def open_model(
    model: ModelSource | Model, options: CompileOptions, pool: ThreadPool, isa: str, peak: Peak
) -> OpenedModel:
    """Open ``model``; errors as :meth:`Backend.compile` has them.

    Args:
        model: what to run.
        options: how, with a number of threads.
        pool: threads of the kernels.
        isa: instruction set of the kernels.
        peak: of this machine.
    """
    opener = _Opener(model, options, pool, isa, peak)
    opened = _opened(opener) if options.packed_cache is None else _cached(opener, PackedCache.at(options.packed_cache))
    if opener.constant_bytes >= _LARGE_BYTES:
        # The graph is full of cycles and may hold the whole file: it would stay until Python happens to look.
        gc.collect()
    return opened


def _opened(opener: _Opener) -> OpenedModel:
    return opener.opened(*opener.read())


def _cached(opener: _Opener, cache: PackedCache) -> OpenedModel:
    pool = opener.pool
    key = cache.key(opener.model, opener.options, opener.isa)
    shared = _shared.get(key, pool)
    if shared is not None:
        return shared
    found = cache.find(key, pool.threads)
    if found is not None:
        return _shared.add(key, pool, opener.opened(found, None))
    lowered, graph = opener.read()
    cache.add(key, lowered)
    return _shared.add(key, pool, opener.opened(lowered, graph))


@dataclass
class _Opener:
    """How a model is opened, see :func:`open_model`, and bytes of its constants, if it was read."""

    model: ModelSource | Model
    options: CompileOptions
    pool: ThreadPool
    isa: str
    peak: Peak
    constant_bytes: int = 0

    def read(self) -> tuple[LoweredModel, GraphView]:
        """The model lowered, and the graph that it was read to."""
        model, threads = self.model, self.pool.threads
        loaded = Model.load(os.fspath(model) if isinstance(model, os.PathLike) else model)
        if has_zero_biases(loaded.graph):
            loaded = loaded.copy()
            drop_zero_biases(loaded.graph)
        # Weights that nodes make of stored ones, such as gates in another order, are layers' weights.
        loaded, _ = store_computed_parameters(loaded, integers=True)
        graph = GraphView(loaded)
        check_constant_sizes(graph)
        graph = channels_first(with_standard_quantization(graph))
        self.constant_bytes = sum(nbytes_of(constant) for constant in graph.constants.values())
        rates = rates_of(self.isa, threads, _kernels.detected_isa())
        setting = Setting(rates, sizes_to_expect(graph, self.options.batch, self.options.input_shapes))
        is_timed = not self.options.deterministic and may_be_opened(graph)
        plan = lower(graph, threads, setting, is_timed, WEIGHT_VALUES[self.options.weight_values])
        inputs: tuple[TensorSpec, ...] = ()
        outputs: tuple[TensorSpec, ...] = ()
        if plan.parts:
            inputs = graph_inputs(graph.proto)
            outputs = tuple(_output_spec(graph, info) for info in graph.proto.graph.output)
        weights = tuple(map(weights_of, plan.parts))
        return LoweredModel(plan, weights, inputs, outputs, _metadata(loaded), is_timed), graph

    def opened(self, lowered: LoweredModel, graph: GraphView | None) -> OpenedModel:
        """What runs a lowered model; there is no graph where it was found in a cache."""
        plan = lowered.plan
        placements = plan.placements
        if not plan.parts:
            # As it came: onnxruntime knows best how to read its data.
            source = self.model.to_proto() if isinstance(self.model, Model) else self.model
            whole = OnnxRuntimeProgram(source, self.options)
            parts = Parts([whole], [spec.name for spec in whole.outputs])
            return OpenedModel(lowered.metadata, whole.inputs, whole.outputs, placements, parts, None)
        workspace, arrays = _kernels.Workspace(), _kernels.ArrayPool()
        programs = [
            self._program(part, weights, workspace, arrays)
            for part, weights in zip(plan.parts, lowered.weights, strict=True)
        ]
        shapes = {name: read for part in plan.parts if isinstance(part, Subgraph) for name, read in part.shapes.items()}
        parts = Parts(programs, [spec.name for spec in lowered.outputs], shapes)
        trials = self._trials(lowered, parts, graph) if lowered.is_timed else None
        return OpenedModel(lowered.metadata, lowered.inputs, lowered.outputs, placements, parts, trials)

    def _program(
        self,
        part: Region | Subgraph,
        weights: RegionWeights,
        workspace: _kernels.Workspace,
        arrays: _kernels.ArrayPool,
    ) -> PartProgram:
        if isinstance(part, Region):
            return RegionProgram(part, weights, self.pool.kernels, workspace, arrays, self.isa)
        return OnnxRuntimeProgram(part.model, self.options, part.arrays, stays_awake=False)

    def _trials(self, lowered: LoweredModel, parts: Parts, graph: GraphView | None) -> Trials:
        """Trials against onnxruntime."""
        threads, plan = self.pool.threads, lowered.plan
        rates = rates_of(self.isa, threads, _kernels.detected_isa())
        regions = sum(isinstance(part, Region) for part in plan.parts)
        sessions = len(plan.parts) - regions
        clear = all(is_certain(plan_estimate(own, regions, sessions, rates)) for own in plan.estimates)
        whole = whole_model(self.model, graph, self.options, is_kept=not clear)
        outputs = [spec.name for spec in lowered.outputs]

        def estimate(shapes: Sequence[Shapes]) -> Estimate:
            """As many times that of ``rates`` as this machine is slower in multiply-adds."""
            return parts.estimate(shapes, rates).times(rates.kernels.peak_gflops / self.peak.gflops)

        return Trials(
            parts,
            lambda: Parts([whole()], outputs),
            [spec.name for spec in lowered.inputs],
            estimate,
            clock_of(threads),
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
