"""``InferenceSession``: onnxruntime's way to run a model, on the sparse CPU back end."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from sift_onnx.backends.base import CompileOptions, Placement, refuse_copies
from sift_onnx.backends.cpu.run.io_binding import IOBinding
from sift_onnx.backends.cpu.run.pool import ThreadPool
from sift_onnx.backends.cpu.run.program import CpuProgram, ModelMetadata
from sift_onnx.backends.cpu.run.session_options import check_providers, check_run_options, session_settings
from sift_onnx.backends.cpu.run.trace import trace_events
from sift_onnx.backends.forks import renew_in_children
from sift_onnx.errors import OutputError, UsageError
from sift_onnx.model import Model, ModelLike
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["InferenceSession", "ModelMetadata", "NodeArg"]

_NOTHING: Mapping[str, npt.NDArray[Any]] = {}
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
    """A model, ready to run; several threads may call :meth:`run` at once.

    Where it is unclear whether the model is faster with or without the kernels, the first run of each class of shapes
    times both and keeps the faster way, which may differ in the last bits. With ``use_deterministic_compute`` among the
    options, nothing is timed.
    """

    def __init__(
        self,
        path_or_model: ModelLike | None = None,
        sess_options: ort.SessionOptions | int | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        path_or_bytes: ModelLike | None = None,
        threads: int | None = None,
        enable_profiling: bool = False,
        profile_file_prefix: str | None = None,
        pool: ThreadPool | None = None,
        weight_values: str = "fp32",
        packed_cache: str | os.PathLike[str] | None = None,
        **others: Any,
    ) -> None:
        """Read, lower and pack a model.

        Args:
            path_or_model: a path, an ``onnx.ModelProto``, its bytes, or anything else that :func:`sift_onnx.load`
                takes.
            sess_options: ``onnxruntime.SessionOptions``, of which the number of threads within an operator, profiling,
                and ``use_deterministic_compute`` are honoured; see
                :mod:`sift_onnx.backends.cpu.run.session_options`. A number stands for ``threads``.
            providers: of onnxruntime's, only that of the CPU.
            provider_options: of the providers; there are none.
            path_or_bytes: another name of ``path_or_model``.
            threads: worker threads; None is one per processor that the process may use.
            enable_profiling: record every run, for :meth:`end_profiling`.
            profile_file_prefix: what the trace's file name begins with; ``sift_onnx_profile`` by default.
            pool: threads of the kernels, in place of ``threads``; None are those that all sessions of as many threads
                share.
            weight_values: how weights of matrix products are held that the model stores in float32. ``fp32`` keeps
                their bits; ``bf16``, ``fp16`` and ``int8``, with a scale per output, round them, and take fewer bytes
                from memory. With ``int8``, activations of these products may lose as much as in fp16.
            packed_cache: folder in which lowered models are kept: the next session on the same model opens without
                reading it. The entry ``sift.packed_cache`` of ``sess_options`` says the same. docs/cpu-executor.md has
                what it trusts.
            others: further arguments of ``onnxruntime.InferenceSession``, at what they are by default.

        Raises:
            ModelReadError: the file cannot be read.
            UsageError: ``threads`` is below 1 or not what ``pool`` has, what was passed is no model, an option or a
                provider is not supported, or others may write to the folder ``packed_cache``.
            BackendError: onnxruntime refused a part of the model.
        """
        source = path_or_bytes if path_or_model is None else path_or_model
        if source is None:
            raise UsageError("InferenceSession: which model? pass a path, an onnx.ModelProto or its bytes")
        if path_or_model is not None and path_or_bytes is not None:
            raise UsageError("InferenceSession: two models are given; leave path_or_bytes out")
        settings = session_settings(sess_options, threads, others)
        check_providers(providers, provider_options)
        self._options = settings.options
        if not isinstance(source, (str, os.PathLike, onnx.ModelProto)):
            source = Model.load(source)
        cache = settings.packed_cache if packed_cache is None else packed_cache
        options = CompileOptions(
            settings.threads,
            deterministic=settings.deterministic,
            packed_cache=cache,
            weight_values=weight_values,
            exact_integers=settings.exact_integers,
        )
        self._program = CpuProgram(source, options, pool)
        self._output_names = [spec.name for spec in self._program.outputs]
        self._prefix = profile_file_prefix or settings.profile_file_prefix or "sift_onnx_profile"
        self._events: list[dict[str, Any]] | None = [] if enable_profiling or settings.enable_profiling else None
        self._lock = threading.Lock()
        renew_in_children(self)

    def renew(self) -> None:
        """In a forked child: a thread that it does not have may hold the lock."""
        self._lock = threading.Lock()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.NDArray[Any]],
        run_options: ort.RunOptions | None = None,
    ) -> list[npt.NDArray[Any]]:
        """The named outputs, or all of them.

        Args:
            output_names: which, in which order; None or empty is all, in the model's order.
            input_feed: one array per input, by name, of the input's dtype and shape.
            run_options: ``onnxruntime.RunOptions``; what they ask for beyond the usual is refused, or said to have no
                effect.

        Raises:
            UsageError: an input is missing, unknown, or of another dtype or shape; an output is unknown.
            BackendError: the run failed.
        """
        if run_options is not None:
            check_run_options(run_options)
        if not output_names and self._events is None:
            arrays = self._program.run_whole(input_feed)
            if arrays is not None:
                return arrays
        names = self._checked(output_names, input_feed)
        outputs = self._program.run(input_feed) if self._events is None else self._results(input_feed, _NOTHING)
        # All of them are in the model's order.
        return list(outputs.values()) if names is self._output_names else [outputs[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.NDArray[Any]],
        callback: Callable[[list[npt.NDArray[Any]], Any, str], object],
        user_data: Any,
        run_options: ort.RunOptions | None = None,
    ) -> None:
        """Begin a run, and call ``callback(outputs, user_data, error)`` on a separate thread when it is over.

        Args:
            output_names: as of :meth:`run`.
            input_feed: as of :meth:`run`; the arrays must not change before the call.
            callback: gets the outputs and an empty text, or no outputs and what went wrong.
            user_data: is handed on.
            run_options: as of :meth:`run`.

        Raises:
            UsageError: an output is unknown, an input is no array, or the callback cannot be called.
        """
        check_run_options(run_options)
        names = self._checked(output_names, input_feed)
        if not callable(callback):
            raise UsageError(f"callback is a {type(callback).__name__}; pass a function of outputs, data and error")

        def work() -> None:
            outputs: list[npt.NDArray[Any]] = []
            failure = ""
            try:
                outputs = self._outputs(names, input_feed)
            except Exception as error:
                failure = str(error) or type(error).__name__
            callback(outputs, user_data, failure)

        threading.Thread(target=work, name="sift-onnx-run").start()

    def io_binding(self) -> IOBinding:
        """Nothing bound yet; for :meth:`run_with_iobinding`."""
        return IOBinding([spec.name for spec in self._program.inputs], self._output_names)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: ort.RunOptions | None = None) -> None:
        """A run on what is bound; its outputs are where they are bound, and in ``iobinding.get_outputs()``.

        Caches are written right there, and where their past lies in the same memory, nothing but what is new.

        Args:
            iobinding: made by :meth:`io_binding`.
            run_options: as of :meth:`run`.

        Raises:
            UsageError: as of :meth:`run`; or no output is bound, or memory that does not fit.
            BackendError: the run failed.
        """
        check_run_options(run_options)
        if not iobinding.outputs:
            raise UsageError("no output is bound; name those that are wanted by `bind_output`")
        caches = self._program.caches
        into = {name: array for name, array in iobinding.outputs.items() if array is not None and name in caches}
        iobinding.take(self._results(iobinding.inputs, into))

    def _checked(self, output_names: Sequence[str] | None, input_feed: Mapping[str, npt.NDArray[Any]]) -> Sequence[str]:
        """The outputs that are asked for, once all names and arrays have been looked at."""
        known = self._output_names
        names = output_names or known
        for name in () if names is known else names:
            if name not in known:
                raise UsageError(f"unknown output {name!r}; the model's outputs are {', '.join(map(repr, known))}")
        # The usual case first: an abstract class is asked slowly.
        if not isinstance(input_feed, (dict, Mapping)):
            raise UsageError(f"input_feed is a {type(input_feed).__name__}; pass arrays by the names of the inputs")
        for name, array in input_feed.items():
            if not isinstance(array, np.ndarray):
                raise UsageError(f"input {name!r} is a {type(array).__name__}; pass a numpy array")
        return names

    def _outputs(self, names: Sequence[str], input_feed: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        outputs = self._results(input_feed, _NOTHING)
        return [outputs[name] for name in names]

    def _results(
        self, feeds: Mapping[str, npt.NDArray[Any]], into: Mapping[str, npt.NDArray[Any]]
    ) -> dict[str, npt.NDArray[Any]]:
        if self._events is None:
            return self._program.run(feeds, into)
        outputs, times = self._program.run_timed(feeds)
        with self._lock:
            self._events.extend(trace_events(times))
        return outputs

    def __reduce__(self) -> NoReturn:
        refuse_copies("a session")

    def __repr__(self) -> str:
        inputs = ", ".join(spec.name for spec in self._program.inputs)
        return f"InferenceSession({inputs} -> {', '.join(self._output_names)}, threads={self.threads})"

    def get_inputs(self) -> list[NodeArg]:
        """What :meth:`run` takes."""
        return [_argument(spec) for spec in self._program.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """What it returns."""
        return [_argument(spec) for spec in self._program.outputs]

    def get_providers(self) -> list[str]:
        """What runs the model's nodes: ``kernels``, ``onnxruntime`` or both."""
        places = dict.fromkeys(placement.placement for placement in self.placements)
        return [place for place in ("kernels", "onnxruntime") if place in places]

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]],
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Nothing, if they are the CPU's.

        Raises:
            UsageError: they are not.
        """
        check_providers(providers, provider_options)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """None of any that :meth:`get_providers` names."""
        return {provider: {} for provider in self.get_providers()}

    def get_session_options(self) -> ort.SessionOptions:
        """The options that were given, or such as say the same."""
        return self._options

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says about itself."""
        return self._program.metadata

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Every node of the model: where it runs, and why there."""
        return self._program.placements

    @property
    def verdict(self) -> str:
        """What timing said about where requests like the last one run; empty where nothing was timed for that."""
        return self._program.verdict

    @property
    def threads(self) -> int:
        """Threads, the calling one included."""
        return self._program.threads

    def end_profiling(self) -> str:
        """Write what was recorded since the session began, or since the last call, as a Chrome trace.

        Returns:
            The file's name; chrome://tracing and ui.perfetto.dev open it.

        Raises:
            UsageError: the session does not profile.
            OutputError: the file cannot be written; the next call has what was recorded.
        """
        if self._events is None:
            raise UsageError("the session does not profile; create it with enable_profiling=True")
        with self._lock:
            events, self._events = self._events, []
        path = Path(f"{self._prefix}_{datetime.now(timezone.utc):%Y-%m-%d_%H-%M-%S-%f}.json")
        try:
            path.write_text(json.dumps(events), encoding="utf-8")
        except OSError as error:
            with self._lock:
                self._events[:0] = events
            raise OutputError(f"cannot write the profile to {str(path)!r}: {error.strerror}") from error
        return str(path)


def _argument(spec: TensorSpec) -> NodeArg:
    name = spec.dtype.name
    return NodeArg(spec.name, list(spec.shape or ()), f"tensor({_TYPE_NAMES.get(name, name)})")
