"""DeepSparse's ``Engine`` and ``compile_model`` on the sparse CPU back end.

    from sift_onnx.compat.deepsparse import Engine, compile_model

The names and arguments of DeepSparse 1.8 that say what is run and on how many cores do the same here. Arguments about
its scheduler are refused unless they ask for what happens anyway: one run at a time, on all threads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.base import CompileOptions, refuse_copies
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import UsageError
from sift_onnx.shapes.random_inputs import random_feeds

__all__ = ["BenchmarkResults", "Engine", "compile_model"]

Array = npt.NDArray[Any]

_SCHEDULERS = (None, "default", "single_stream", "sync")


@dataclass(frozen=True)
class BenchmarkResults:
    """Times of repeated runs.

    Attributes:
        batch_times: of each run, in seconds.
        batch_size: items per run.
    """

    batch_times: tuple[float, ...]
    batch_size: int

    @property
    def num_iterations(self) -> int:
        """Number of runs."""
        return len(self.batch_times)

    @property
    def ms_per_batch(self) -> float:
        """Mean time of a run, in milliseconds."""
        return 1e3 * float(np.mean(self.batch_times))

    @property
    def items_per_second(self) -> float:
        """Items per second, over all runs."""
        return self.batch_size * len(self.batch_times) / sum(self.batch_times)


class Engine:
    """A compiled model with a fixed batch size."""

    def __init__(
        self,
        model: str | onnx.ModelProto,
        batch_size: int | None = 1,
        num_cores: int | None = None,
        num_streams: int | None = None,
        scheduler: Any = None,
        input_shapes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Compile ``model``.

        Args:
            model: path, or the model itself.
            batch_size: first axis of each input; None takes any.
            num_cores: threads; None or 0 is all that the process may use.
            num_streams: None, 0 or 1.
            scheduler: None, or one that runs one request at a time.
            input_shapes: shape per input, for those with other dynamic axes; the batch goes before.

        Raises:
            UsageError: an argument is out of its range, or asks for what there is not.
            ModelReadError: the file cannot be read.
        """
        if num_streams not in (None, 0, 1):
            raise UsageError(f"num_streams={num_streams} is not supported: runs of one engine share its threads; use 1")
        name = getattr(scheduler, "value", scheduler)
        if name not in _SCHEDULERS:
            raise UsageError(f"scheduler {name!r} is not supported; leave it out, or use 'single_stream'")
        if input_shapes is not None and not all(input_shapes):
            raise UsageError("input_shapes holds an empty shape; give one shape per input")
        self._model = model
        self._batch_size = batch_size
        self._program = CpuProgram(model, CompileOptions(num_cores or None, batch_size))
        self._shapes = dict(zip(self.input_names, (tuple(s) for s in input_shapes or ()), strict=False))

    def __reduce__(self) -> NoReturn:
        refuse_copies("an engine")

    def __call__(self, inp: Sequence[Array], val_inp: bool = True) -> list[Array]:
        """As :meth:`run`."""
        return self.run(inp, val_inp)

    def run(self, inp: Sequence[Array], val_inp: bool = True) -> list[Array]:
        """The outputs for one array per input, both in the model's order.

        Args:
            inp: the arrays.
            val_inp: check the batch; names, dtypes and other sizes are always checked.

        Raises:
            UsageError: an array does not fit the model or the batch.
        """
        if len(inp) != len(self.input_names):
            raise UsageError(f"{len(inp)} inputs were given, the model takes {len(self.input_names)}")
        feeds = dict(zip(self.input_names, inp, strict=True))
        if val_inp:
            self._check_batch(feeds)
        return list(self._program.run(feeds).values())

    def mapped_run(self, inp: Sequence[Array], val_inp: bool = True) -> dict[str, Array]:
        """As :meth:`run`, by output name."""
        return dict(zip(self.output_names, self.run(inp, val_inp), strict=True))

    def timed_run(self, inp: Sequence[Array], val_inp: bool = False) -> tuple[list[Array], float]:
        """As :meth:`run`, and how many seconds it took."""
        start = time.perf_counter()
        outputs = self.run(inp, val_inp)
        return outputs, time.perf_counter() - start

    def benchmark(
        self,
        inp: Sequence[Array],
        num_iterations: int = 20,
        num_warmup_iterations: int = 5,
        include_inputs: bool = False,
        include_outputs: bool = False,
    ) -> BenchmarkResults:
        """Times of repeated runs on the same arrays.

        Raises:
            UsageError: inputs or outputs are to be kept with the times, or ``num_iterations`` is below 1.
        """
        if include_inputs or include_outputs:
            raise UsageError("include_inputs and include_outputs are not supported; keep the arrays yourself")
        if num_iterations < 1:
            raise UsageError(f"num_iterations is {num_iterations}; it must be at least 1")
        for _ in range(num_warmup_iterations):
            self.run(inp)
        times = tuple(self.timed_run(inp)[1] for _ in range(num_iterations))
        return BenchmarkResults(times, int(inp[0].shape[0]) if len(inp) and inp[0].ndim else 1)

    def generate_random_inputs(self) -> list[Array]:
        """Arrays that :meth:`run` takes."""
        feeds = random_feeds(self._program.inputs, self._batch_size, self._shapes)
        return [feeds[name] for name in self.input_names]

    def _check_batch(self, feeds: dict[str, Array]) -> None:
        for name, array in feeds.items():
            if self._batch_size is not None and array.ndim and array.shape[0] != self._batch_size:
                raise UsageError(
                    f"input {name!r} has batch {array.shape[0]}, the engine was compiled for {self._batch_size}"
                )

    @property
    def model_path(self) -> str:
        """Where the model came from; empty if it was not a file."""
        return "" if isinstance(self._model, onnx.ModelProto) else str(self._model)

    @property
    def batch_size(self) -> int | None:
        """First axis of each input."""
        return self._batch_size

    @property
    def num_cores(self) -> int:
        """Threads."""
        return self._program.threads

    @property
    def num_streams(self) -> int:
        """Runs at a time that do not share threads."""
        return 1

    @property
    def input_names(self) -> list[str]:
        """In the model's order."""
        return [spec.name for spec in self._program.inputs]

    @property
    def output_names(self) -> list[str]:
        """In the model's order."""
        return [spec.name for spec in self._program.outputs]

    @property
    def fraction_of_supported_ops(self) -> float:
        """Share of the model's nodes that run outside onnxruntime."""
        places = [placement.placement for placement in self._program.placements]
        return sum(place != "onnxruntime" for place in places) / len(places) if places else 0.0


def compile_model(
    model: str | onnx.ModelProto,
    batch_size: int | None = 1,
    num_cores: int | None = None,
    num_streams: int | None = None,
    scheduler: Any = None,
    input_shapes: Sequence[Sequence[int]] | None = None,
) -> Engine:
    """An :class:`Engine`; arguments as there."""
    return Engine(model, batch_size, num_cores, num_streams, scheduler, input_shapes)
