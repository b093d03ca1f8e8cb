"""What a program opens: a model that is read and lowered, or found in a cache, as programs in order.

Sessions on models of one content, with one cache and one pool, share what they open: weights are packed once.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import onnx

from sift_onnx.backends.base import CompileOptions, ModelSource, Placement
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.costs import Estimate, plan_estimate
from sift_onnx.backends.cpu.lower.lowered_model import LoweredModel, ModelMetadata, RegionWeights
from sift_onnx.backends.cpu.lower.profitability import is_certain
from sift_onnx.backends.cpu.lower.rates import rates_of
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.packed.cache import ModelKey, PackedCache
from sift_onnx.backends.cpu.run.any_sizes import AnySizes
from sift_onnx.backends.cpu.run.conversion import Conversion, held_caches
from sift_onnx.backends.cpu.run.lowering import Lowering
from sift_onnx.backends.cpu.run.numpy_program import by_numpy, numpy_program
from sift_onnx.backends.cpu.run.parts import PartProgram, Parts, Shapes
from sift_onnx.backends.cpu.run.peak import Peak
from sift_onnx.backends.cpu.run.pool import ThreadPool
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.trials import Trials, clock_of
from sift_onnx.backends.cpu.run.whole_model import whole_model
from sift_onnx.backends.forks import renew_in_children
from sift_onnx.backends.lowering.equal_sizes import NOTHING_EQUAL, EqualSizes
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.backends.source_files import SourceFiles, Sources, data_files
from sift_onnx.errors import BackendError
from sift_onnx.graphs.branches import choosing_inputs, take_branch
from sift_onnx.model import Model
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["Opened", "OpenedModel", "open_model"]

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
        held: caches of halves that may be fed in float32, and are then returned so: the input by the output's name.
        equal: sizes of inputs that it takes for one.
        otherwise: the model for requests in which these differ; None where nothing is taken for equal.
        sources: files that it may be read from again; None of a model from memory.
    """

    metadata: ModelMetadata
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    placements: tuple[Placement, ...]
    parts: Parts
    trials: Trials | None
    held: Mapping[str, str] = field(default_factory=dict)
    equal: EqualSizes = NOTHING_EQUAL
    otherwise: AnySizes[OpenedModel] | None = None
    sources: Sources | None = None


@dataclass(frozen=True, eq=False)
class Opened:
    """A model, or the two graphs that it chooses between.

    Attributes:
        models: by the value of the input that chooses; of a model that does not choose, the only one, under True.
        condition: name of that input; or empty.
    """

    models: Mapping[bool, OpenedModel]
    condition: str = ""

    @property
    def metadata(self) -> ModelMetadata:
        """What the file says about itself."""
        return self.models[True].metadata


class _Shared:
    """Opened models that sessions have, by the key of a cache, its folder, and the pool that they run on."""

    def __init__(self) -> None:
        self._models: weakref.WeakValueDictionary[tuple[str, Path, int], OpenedModel] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        renew_in_children(self)

    def renew(self) -> None:
        """In a forked child: a thread that it does not have may hold the lock."""
        self._lock = threading.Lock()

    def get(self, key: ModelKey, cache: PackedCache, pool: ThreadPool) -> OpenedModel | None:
        with self._lock:
            return self._models.get((key.text, cache.folder.resolve(), id(pool.kernels)))

    def add(self, key: ModelKey, cache: PackedCache, pool: ThreadPool, opened: OpenedModel) -> OpenedModel:
        """``opened``, or what another thread has opened meanwhile.

        What runs on the pool holds it, so that no other pool has its identity. What does not run on any may be shared
        by all that have this one.
        """
        with self._lock:
            return self._models.setdefault((key.text, cache.folder.resolve(), id(pool.kernels)), opened)


_shared = _Shared()


def open_model(model: ModelSource | Model, options: CompileOptions, pool: ThreadPool, isa: str, peak: Peak) -> Opened:
    """Open ``model``; errors as :meth:`Backend.compile` has them.

    Args:
        model: what to run.
        options: how, with a number of threads.
        pool: threads of the kernels.
        isa: instruction set of the kernels.
        peak: of this machine.
    """
    opener = _Opener(model, options, pool, isa, peak)
    if options.packed_cache is None:
        opened = _branches(opener) or Opened({True: opener.opened(*opener.read())})
    else:
        opened = Opened({True: _cached(opener, PackedCache.at(options.packed_cache))})
    if opener.constant_bytes >= _LARGE_BYTES:
        # The graph is full of cycles and may hold the whole file: it would stay until Python happens to look.
        gc.collect()
        _kernels.trim_memory()
    return opened


def _branches(opener: _Opener) -> Opened | None:
    """Both graphs that a model chooses between; None if it does not choose, or kernels have no part of either."""
    condition = next(iter(choosing_inputs(opener.loaded.graph)), None)
    if condition is None:
        return None
    openers = {value: replace(opener, model=_with_branch(opener.loaded, condition, value)) for value in (True, False)}
    read = {value: own.read() for value, own in openers.items()}
    if not any(lowered.plan.parts for lowered, _ in read.values()):
        return None
    opener.constant_bytes = max(own.constant_bytes for own in openers.values())
    return Opened({value: own.opened(*read[value]) for value, own in openers.items()}, condition)


def _with_branch(model: Model, condition: str, value: bool) -> Model:
    made = model.copy()
    take_branch(made.graph, condition, value)
    return made


def _cached(opener: _Opener, cache: PackedCache) -> OpenedModel:
    pool = opener.pool
    key = cache.key(opener.model, opener.options, opener.isa)
    files = SourceFiles.of(key.files[0], key.files[1:]) if key.files else None
    shared = _shared.get(key, cache, pool)
    if shared is None:
        opener.sources = Sources(files) if files is not None else None
        found = cache.find(key, pool.threads, opener.isa)
        if found is not None:
            return _shared.add(key, cache, pool, opener.opened(found, None))
        lowered, graph = opener.read()
        cache.add(key, lowered)
        return _shared.add(key, cache, pool, opener.opened(lowered, graph))
    if files is not None and shared.sources is not None:
        shared.sources.add(files)
    return shared


@dataclass
class _Opener:
    """How a model is opened, see :func:`open_model`.

    Attributes:
        assumes: whether sizes of inputs may be taken for equal.
        constant_bytes: of the model, if it was read.
        sources: files that it may be read from again, once it was read; None of a model from memory.
    """

    model: ModelSource | Model
    options: CompileOptions
    pool: ThreadPool
    isa: str
    peak: Peak
    assumes: bool = True
    constant_bytes: int = 0
    sources: Sources | None = None

    @cached_property
    def loaded(self) -> Model:
        """The model, whose large constants are read when they are asked for."""
        return Model.load(os.fspath(self.model) if isinstance(self.model, os.PathLike) else self.model)

    def read(self) -> tuple[LoweredModel, GraphView]:
        """The model lowered, and the graph that onnxruntime has in its place."""
        if self.sources is None and not isinstance(self.model, (Model, onnx.ModelProto)):
            path = os.fspath(self.model)
            self.sources = Sources(SourceFiles.of(path, data_files(Path(path), self.loaded.origin)))
        found = Lowering(self.options, self.pool.threads, self.isa, self.assumes).of(self.loaded)
        self.constant_bytes = found.constant_bytes
        return found.model, found.graph

    def _without_equal_sizes(self, graph: GraphView | None) -> AnySizes[OpenedModel]:
        """The model without taking sizes for equal; one from memory that was read is kept as it was read."""
        source = self.model
        if graph is not None and not isinstance(source, (str, os.PathLike)):
            source = self.loaded
        opener, sources = replace(self, model=source, assumes=False), self.sources

        def opened() -> OpenedModel:
            own = opener if sources is None else replace(opener, model=sources.unchanged().path)
            return own.opened(*own.read())

        return AnySizes(opened)

    def opened(self, lowered: LoweredModel, graph: GraphView | None) -> OpenedModel:
        """What runs a lowered model; there is no graph where it was found in a cache."""
        plan = lowered.plan
        placements = plan.placements
        if not plan.parts:
            # As it came: onnxruntime knows best how to read its data.
            source = self.model.to_proto() if isinstance(self.model, Model) else self.model
            try:
                files = None if self.sources is None else self.sources.unchanged()
                whole = OnnxRuntimeProgram(source, self.options, files=files)
            except BackendError:
                if graph is None or not lowered.is_widened:
                    raise
                return self._opened_in_float32(lowered, graph)
            parts = Parts([whole], [spec.name for spec in whole.outputs])
            return OpenedModel(
                lowered.metadata, whole.inputs, whole.outputs, placements, parts, None, sources=self.sources
            )
        workspace, arrays = _kernels.Workspace(), _kernels.ArrayPool()
        of_decoder = any(isinstance(part, Region) and part.caches for part in plan.parts)
        programs = [
            self._program(part, weights, workspace, arrays, of_decoder)
            for part, weights in zip(plan.parts, lowered.weights, strict=True)
        ]
        shapes = {name: read for part in plan.parts if isinstance(part, Subgraph) for name, read in part.shapes.items()}
        inputs, outputs = lowered.inputs, lowered.outputs
        held = held_caches(plan.parts, inputs) if lowered.is_widened else {}
        conversion = Conversion.of(inputs, outputs, held, is_widened=True) if lowered.is_widened else None
        parts = Parts(programs, [spec.name for spec in outputs], shapes, conversion)
        trials = self._trials(lowered, parts, graph, held) if lowered.is_timed else None
        placements = by_numpy(placements, programs)
        otherwise = self._without_equal_sizes(graph) if lowered.equal != NOTHING_EQUAL else None
        return OpenedModel(
            lowered.metadata, inputs, outputs, placements, parts, trials, held, lowered.equal, otherwise, self.sources
        )

    def _opened_in_float32(self, lowered: LoweredModel, graph: GraphView) -> OpenedModel:
        """A model of halves that onnxruntime has no operators for, as it has few for bfloat16."""
        whole = Subgraph.of(graph, range(len(graph.nodes)), graph.inputs, graph.outputs)
        program = OnnxRuntimeProgram(whole.model, self.options, whole.arrays)
        conversion = Conversion.of(lowered.inputs, lowered.outputs, {}, is_widened=True)
        parts = Parts([program], [spec.name for spec in lowered.outputs], conversion=conversion)
        return OpenedModel(lowered.metadata, lowered.inputs, lowered.outputs, lowered.plan.placements, parts, None)

    def _program(
        self,
        part: Region | Subgraph,
        weights: RegionWeights,
        workspace: _kernels.Workspace,
        arrays: _kernels.ArrayPool,
        of_decoder: bool,
    ) -> PartProgram:
        if isinstance(part, Region):
            kernels, deterministic = self.pool.kernels, self.options.deterministic
            return RegionProgram(part, weights, kernels, workspace, arrays, self.isa, deterministic)
        return (numpy_program(part) if of_decoder else None) or OnnxRuntimeProgram(
            part.model, self.options, part.arrays, stays_awake=False
        )

    def _trials(self, lowered: LoweredModel, parts: Parts, graph: GraphView | None, held: Mapping[str, str]) -> Trials:
        """Trials against onnxruntime, which has a model from memory as the graph that it was read to."""
        threads, plan = self.pool.threads, lowered.plan
        rates = rates_of(self.isa, threads, _kernels.detected_isa())
        regions = sum(isinstance(part, Region) for part in plan.parts)
        sessions = len(plan.parts) - regions
        # Steps of decoders, which wait for memory, run in a way of their own.
        has_caches = any(isinstance(part, Region) and part.caches for part in plan.parts)
        clear = all(is_certain(plan_estimate(own, regions, sessions, rates)) for own in plan.estimates)
        whole = whole_model(self.model, self.sources, graph, self.options, is_kept=not clear)
        outputs = [spec.name for spec in lowered.outputs]
        conversion: Conversion | None = None
        if lowered.is_widened:
            is_read = graph is not None and not isinstance(self.model, (str, os.PathLike))
            conversion = Conversion.of(lowered.inputs, lowered.outputs, held, is_widened=is_read)

        def estimate(shapes: Sequence[Shapes]) -> Estimate:
            """As many times that of ``rates`` as this machine is slower in multiply-adds."""
            return parts.estimate(shapes, rates).times(rates.kernels.peak_gflops / self.peak.gflops)

        return Trials(
            parts,
            lambda: Parts([whole()], outputs, conversion=conversion),
            [spec.name for spec in lowered.inputs],
            estimate,
            clock_of(threads),
            parts.on_one_thread() if threads > 1 and not has_caches else None,
        )
