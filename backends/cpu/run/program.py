"""The sparse CPU back end: regions in its own kernels, everything else in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

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
from sift_onnx.backends.cpu.lower.lowered_model import ModelMetadata
from sift_onnx.backends.cpu.lower.placements import ONNXRUNTIME
from sift_onnx.backends.cpu.lower.weights import WEIGHT_VALUES
from sift_onnx.backends.cpu.run.cache_rooms import CacheRooms, CacheStep
from sift_onnx.backends.cpu.run.numpy_program import NumpyProgram
from sift_onnx.backends.cpu.run.opening import open_model
from sift_onnx.backends.cpu.run.parts import PartProgram, PartTime
from sift_onnx.backends.cpu.run.peak import Peak
from sift_onnx.backends.cpu.run.pool import ThreadPool, pool_of
from sift_onnx.backends.cpu.run.profiling import profile_region, with_shares
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.routed_model import RoutedModel
from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.shapes.random_inputs import random_feeds

__all__ = ["CpuBackend", "CpuProgram", "ModelMetadata"]

Array = npt.NDArray[Any]
_PROFILED_RUNS = 10


class CpuBackend(Backend):
    """Sparse layers in kernels of this package, what surrounds them in the same layout, the rest in onnxruntime.

    The preset says how weights of matrix products are held; see :class:`CpuProgram`.
    """

    name = "cpu"
    presets = tuple(WEIGHT_VALUES)
    takes_models = True

    def compile(self, model: ModelSource | Model, options: CompileOptions = DEFAULT_OPTIONS) -> CpuProgram:
        """A program for ``model``; see :meth:`Backend.compile`. It runs at any batch and size that the model allows."""
        if self.preset is not None:
            options = replace(options, weight_values=self.preset)
        return CpuProgram(model, options)


class CpuProgram(Program):
    """A compiled model; runs on several threads at once.

    Where an ``If`` chooses between two graphs by an input, as in merged decoders, each of them is compiled, and each
    run takes the one that is asked for.

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
    ) -> None:
        """Lower and pack ``model``; errors as :meth:`Backend.compile` has them.

        Args:
            model: what to run.
            options: how.
            pool: threads of the kernels; None are those that all programs of as many threads share.

        Raises:
            UsageError: ``weight_values`` of the options is none that kernels take.
        """
        if options.weight_values not in WEIGHT_VALUES:
            raise UsageError(f"weight_values is {options.weight_values!r}; choose {', '.join(WEIGHT_VALUES)}")
        self._pool = pool_of(options.threads, pool)
        self.threads = self._pool.threads
        self.isa = selected_isa()
        self._options = options = replace(options, threads=self.threads)
        self._peak = Peak(self._pool.kernels, self.isa)
        opened = open_model(model, options, self._pool, self.isa, self._peak)
        self._models = {value: RoutedModel(each) for value, each in opened.models.items()}
        self._condition = opened.condition
        self._latest = first = next(iter(self._models.values()))
        self.metadata, self.inputs, self.outputs = opened.metadata, first.opened.inputs, first.opened.outputs

    def run(self, feeds: Mapping[str, Array], into: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """See :meth:`Program.run`. The first run of a shape class may take about three runs more, to time them.

        Args:
            feeds: as there.
            into: arrays that kernels may write caches to, by the names of outputs. They may be longer parts of the
                memory that the past is in: then only what is new is written. What is returned says which were used.
        """
        return self._model(feeds).run(feeds, into)

    def run_whole(self, feeds: Mapping[str, Array]) -> list[Array] | None:
        """See :meth:`RoutedModel.run_whole`."""
        return None if self._condition else self._latest.run_whole(feeds)

    def cache_rooms(self, arrays: Mapping[str, Array], presents: Mapping[str, str]) -> CacheRooms | None:
        """Memory for the caches of many steps, for :meth:`run_step`.

        Args:
            arrays: [sequences, heads, room, depth] by the names of inputs, with room for more tokens than there are.
            presents: the output that each of them is after a step.

        Returns:
            None where kernels do not have all of these caches, in float32.

        Raises:
            UsageError: an array does not fit the model.
        """
        is_float = all(array.dtype == np.float32 for array in arrays.values())
        if not is_float or not all(model.can_have_rooms(presents) for model in self._models.values()):
            return None
        return CacheRooms(arrays, presents, self.inputs)

    def run_step(self, feeds: Mapping[str, Array], rooms: CacheRooms, past: int, total: int) -> dict[str, Array]:
        """As :meth:`run`, with caches that stay where they are.

        Args:
            feeds: the other inputs.
            rooms: the caches.
            past: tokens that they have.
            total: tokens that they are to have.

        Returns:
            The outputs that are no cache.
        """
        return self._model(feeds).run_step(feeds, CacheStep(rooms, past), total)

    def run_timed(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[PartTime]]:
        """As :meth:`run`, and how long each part took, and each step of the regions."""
        return self._model(feeds).route(feeds)[0].way.run_timed(feeds)

    def _model(self, feeds: Mapping[str, Array]) -> RoutedModel:
        """The model that runs a request; of two, the one that an input chooses."""
        if self._condition and self._condition in feeds:
            values = np.asarray(feeds[self._condition])
            if values.size != 1:
                raise UsageError(f"input {self._condition!r} is {list(values.shape)}; it chooses by one value")
            chosen = self._models[bool(values.reshape(())[()])]
            self._latest = chosen
            return chosen
        return self._latest

    @property
    def caches(self) -> frozenset[str]:
        """Names of outputs that :meth:`run` can write into arrays of the caller's."""
        return frozenset(name for region in self._regions() for cache in region.region.caches for name in cache.written)

    @property
    def wide_caches(self) -> frozenset[str]:
        """Names of inputs that are caches of halves, and may be fed in float32; their outputs are then float32, too."""
        return frozenset(past for model in self._models.values() for past in model.opened.held.values())

    def _regions(self) -> list[RegionProgram]:
        return [region for model in self._models.values() for region in model.regions]

    @property
    def parts(self) -> tuple[PartProgram, ...]:
        """Regions and what lies between them, in order; see :attr:`placements` for where requests run.

        Of a model that chooses between graphs, those of the one that ran last.
        """
        return self._latest.programs

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Every node of the model, and why it is where it is, in requests like the one that ran last."""
        first, *others = (model.placements for model in self._models.values())
        # Nodes around a choice are in both graphs.
        return (*first, *(one for placements in others for one in placements if one not in first))

    @property
    def verdict(self) -> str:
        """See :attr:`Program.verdict`; on requests like the one that ran last."""
        return self._latest.verdict

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that the kernels hold; those of onnxruntime's parts are not among them.

        The first run of a shape packs them; what they were packed from is given up after it.
        """
        return sum(region.weight_bytes for region in self._regions())

    def release_idle(self) -> None:
        """See :meth:`Program.release_idle`."""
        regions = self._regions()
        for region in regions:  # those of one graph take their arrays from one pool
            region.release_idle()
        if regions:
            _kernels.trim_memory()

    @property
    def peak_gflops(self) -> float:
        """Multiply-adds per second of all threads, twice, in 10**9; the best measured so far, in profiles too."""
        return self._peak.gflops

    def profile(self, feeds: Mapping[str, Array] | None = None) -> Profile:
        """See :meth:`Program.profile`. Nodes that were fused appear under the name of the first one."""
        if feeds is None:
            feeds = random_feeds(self.inputs, self._options.batch, self._options.input_shapes)
        way = self._model(feeds).route(feeds)[0].way
        reasons = {placement.name: placement.reason for placement in self.placements}
        nodes: list[NodeProfile] = []
        for program, operands in way.in_turn(feeds):
            if isinstance(program, RegionProgram):
                nodes += profile_region(program, operands, reasons, _PROFILED_RUNS, self._peak)
                continue
            if isinstance(program, NumpyProgram):
                nodes += program.profile_unchecked(operands).nodes
                continue
            for node in program.profile_unchecked(operands).nodes:
                reason = reasons.get(node.name, "a node of onnxruntime, after its own fusions")
                nodes.append(NodeProfile(node.name, node.op, ONNXRUNTIME, reason, node.ms))
        return Profile(with_shares(nodes, self._peak), _PROFILED_RUNS)
