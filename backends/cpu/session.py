"""``InferenceSession``: onnxruntime's way to run a model, on the sparse CPU back end."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.base import CompileOptions, Placement
from sift_onnx.backends.cpu.program import CpuProgram, ModelMetadata
from sift_onnx.backends.cpu.trace import trace_events
from sift_onnx.errors import OutputError, UsageError
from sift_onnx.model import Model, ModelLike
from sift_onnx.tensor_specs import TensorSpec

__all__ = ["InferenceSession", "ModelMetadata", "NodeArg"]

_TYPE_NAMES = {"float32": "float", "float64": "double", "object": "string"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output.

    Attributes:
        name: as the model has it.
        shape: a size, a name or None per axis.
        type: as onnxruntime writes it, ``tensor(float)``.
    """

    name: str
    shape: list[int | str | None]
    type: str


class InferenceSession:
    """A model, ready to run; several threads may call :meth:`run` at once."""

    def __init__(
        self,
        path_or_model: ModelLike,
        threads: int | None = None,
        *,
        enable_profiling: bool = False,
        profile_file_prefix: str = "sift_onnx_profile",
    ) -> None:
        """Read, lower and pack a model.

        Args:
            path_or_model: a path, an ``onnx.ModelProto``, its bytes, or anything else that :func:`sift_onnx.load`
                takes.
            threads: worker threads; None is one per core that the process may run on.
            enable_profiling: record every run, for :meth:`end_profiling`.
            profile_file_prefix: what the trace's file name begins with.

        Raises:
            ModelReadError: the file cannot be read.
            UsageError: ``threads`` is below 1, or what was passed is no model.
            BackendError: onnxruntime refused a part of the model.
        """
        source = path_or_model
        if not isinstance(source, (str, os.PathLike, onnx.ModelProto)):
            source = Model.load(source)
        self._program = CpuProgram(source, CompileOptions(threads))
        self._prefix = profile_file_prefix
        self._events: list[dict[str, Any]] | None = [] if enable_profiling else None
        self._lock = threading.Lock()

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, npt.NDArray[Any]]
    ) -> list[npt.NDArray[Any]]:
        """The named outputs, or all of them.

        Args:
            output_names: which, in which order; None or empty is all, in the model's order.
            input_feed: one array per input, by name, of the input's dtype and shape.

        Raises:
            UsageError: an input is missing, unknown, or of another dtype or shape; an output is unknown.
            BackendError: the run failed.
        """
        known = [spec.name for spec in self._program.outputs]
        names = list(output_names or known)
        for name in names:
            if name not in known:
                raise UsageError(f"unknown output {name!r}; the model's outputs are {', '.join(map(repr, known))}")
        for name, array in input_feed.items():
            if not isinstance(array, np.ndarray):
                raise UsageError(f"input {name!r} is a {type(array).__name__}; pass a numpy array")
        if self._events is None:
            outputs = self._program.run(input_feed)
        else:
            outputs, times = self._program.run_timed(input_feed)
            with self._lock:
                self._events.extend(trace_events(self._program, times))
        return [outputs[name] for name in names]

    def get_inputs(self) -> list[NodeArg]:
        """What :meth:`run` takes."""
        return [_argument(spec) for spec in self._program.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """What it returns."""
        return [_argument(spec) for spec in self._program.outputs]

    def get_providers(self) -> list[str]:
        """Who runs the model's nodes: ``kernels``, ``onnxruntime`` or both."""
        places = dict.fromkeys(placement.placement for placement in self.placements)
        return [place for place in ("kernels", "onnxruntime") if place in places]

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says about itself."""
        return self._program.metadata

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Every node of the model: where it runs, and why there."""
        return self._program.placements

    @property
    def threads(self) -> int:
        """Worker threads, the calling one included."""
        return self._program.threads

    def end_profiling(self) -> str:
        """Write what was recorded since the session began, or since the last call, as a Chrome trace.

        Returns:
            The file's name; chrome://tracing and ui.perfetto.dev open it.

        Raises:
            UsageError: the session does not profile.
            OutputError: the file cannot be written.
        """
        if self._events is None:
            raise UsageError("the session does not profile; create it with enable_profiling=True")
        with self._lock:
            events, self._events = self._events, []
        path = Path(f"{self._prefix}_{datetime.now(timezone.utc):%Y-%m-%d_%H-%M-%S-%f}.json")
        try:
            path.write_text(json.dumps(events), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write the profile to {str(path)!r}: {error.strerror}") from error
        return str(path)


def _argument(spec: TensorSpec) -> NodeArg:
    name = spec.dtype.name
    return NodeArg(spec.name, list(spec.shape or ()), f"tensor({_TYPE_NAMES.get(name, name)})")
