"""The reference back end: onnxruntime on the CPU. It runs masked weights as dense ones."""

from __future__ import annotations

import json
import os
import re
import statistics
import tempfile
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

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
from sift_onnx.backends.forks import keep_for_ever, renew_in_children
from sift_onnx.backends.processors import usable_processors
from sift_onnx.backends.source_files import SourceFiles
from sift_onnx.errors import BackendError, ModelReadError, UnsupportedError
from sift_onnx.model_files.paths import check_name_for_onnx
from sift_onnx.operators.domains import is_standard
from sift_onnx.shapes.random_inputs import check_feeds, random_feeds
from sift_onnx.shapes.tensor_specs import TensorSpec, shape_text

__all__ = ["EXACT_INTEGERS", "OnnxRuntimeBackend", "OnnxRuntimeProgram"]

# The entry of a session's options that keeps sums of products of bytes from saturating where there is no VNNI.
EXACT_INTEGERS = "session.x64quantprecision"

_PROVIDER = "CPUExecutionProvider"
_REASON = "the only execution provider of this back end"
_PROFILED_RUNS = 10
_PROTOBUF_LIMIT = 2**31 - 1
_DTYPES: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "string": np.object_,
    **{name: name for name in ("float16", "bool", "int8", "int16", "int32", "int64")},
    **{name: name for name in ("uint8", "uint16", "uint32", "uint64")},
}


class OnnxRuntimeBackend(Backend):
    """onnxruntime's CPUExecutionProvider, with all of its graph optimisations."""

    name = "onnxruntime"

    def compile(self, model: ModelSource, options: CompileOptions = DEFAULT_OPTIONS) -> OnnxRuntimeProgram:
        """A session of onnxruntime on ``model``; see :meth:`Backend.compile`. It runs at any batch."""
        return OnnxRuntimeProgram(model, options)


class OnnxRuntimeProgram(Program):
    """A session of onnxruntime.

    Attributes:
        threads: intra-op threads; there is one inter-op thread.
        inputs: what :meth:`run` takes.
        outputs: what it returns.
    """

    def __init__(
        self,
        model: ModelSource,
        options: CompileOptions,
        initializers: Mapping[str, npt.NDArray[Any]] | None = None,
        *,
        files: SourceFiles | None = None,
        stays_awake: bool = True,
    ) -> None:
        """Load and optimise ``model``.

        Args:
            model: as :meth:`Backend.compile` takes it, with the same errors.
            options: as above.
            initializers: values of those that the model says lie elsewhere; they are not copied.
            files: that the model is read from, its external data included; by default the file that is named.
            stays_awake: whether workers wait a moment for the next run. Where something else runs between two runs, it
                would wait for their processors.
        """
        self._stays_awake = stays_awake
        self.threads = options.threads or usable_processors()
        self._options = options
        self._initializers = {
            name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in (initializers or {}).items()
        }
        self._tables = _tables(model) & set(self._initializers) if isinstance(model, onnx.ModelProto) else frozenset()
        self._source, self._label = _source(model)
        self._files = files or (SourceFiles.of(self._source) if isinstance(self._source, str) else None)
        self._opened: ort.InferenceSession | None = self._open(self._session_options())
        self._opening = threading.Lock()
        renew_in_children(self)
        self.inputs = _specs(self._opened.get_inputs())
        self.outputs = _specs(self._opened.get_outputs())
        self._names = [spec.name for spec in self.outputs]

    def renew(self) -> None:
        """In a forked child: the next run opens a session of the child's own, since this one waits for its threads."""
        self._opening = threading.Lock()
        if self._opened is not None:
            keep_for_ever(self._opened)
            self._opened = None

    @property
    def _session(self) -> ort.InferenceSession:
        session = self._opened
        if session is None:
            with self._opening:
                session = self._opened = self._opened or self._open_again(self._session_options())
        return session

    def _session_options(self) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.use_deterministic_compute = self._options.deterministic
        options.inter_op_num_threads = 1
        # Errors come as exceptions; onnxruntime would print them a second time.
        options.log_severity_level = 4
        # By default workers spin for tens of milliseconds after a run, which slows whatever runs next in the process
        # (measured on 2 cores: a ResNet-18 of 8 ms takes 16 ms while another session's worker spins). This long is
        # enough to stay awake between the ops of one run. Versions that do not know the entry ignore it.
        options.add_session_config_entry("session.intra_op.spin_duration_us", "500")
        if not self._stays_awake:
            options.add_session_config_entry("session.force_spinning_stop", "1")
        if self._options.exact_integers:
            options.add_session_config_entry(EXACT_INTEGERS, "1")
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return options

    def _open(self, options: ort.SessionOptions) -> ort.InferenceSession:
        if self._initializers:
            options.add_external_initializers(list(self._initializers), list(self._initializers.values()))
        for name in self._tables:
            # Besides, so that the session reads them where they are; of others it may make new ones of its own.
            options.add_initializer(name, self._initializers[name])
        if isinstance(self._source, str):
            check_name_for_onnx(self._source)
        try:
            return ort.InferenceSession(self._source, options, providers=[_PROVIDER])
        except Exception as error:  # whatever comes out of here is onnxruntime's
            kind = ModelReadError if type(error).__name__ in ("NoSuchFile", "InvalidProtobuf") else BackendError
            raise kind(f"onnxruntime cannot load {self._label}: {_first_line(error)}") from error

    def _open_again(self, options: ort.SessionOptions) -> ort.InferenceSession:
        if self._files is not None:
            self._files.check()
        return self._open(options)

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """See :meth:`Program.run`."""
        check_feeds(self.inputs, feeds)
        return self.run_unchecked(feeds)

    def run_unchecked(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """As :meth:`run`, for feeds that are known to fit: the check takes inputs of unknown rank for scalars."""
        arrays, names = self.run_in_order(feeds), self._names
        return {names[0]: arrays[0]} if len(names) == 1 else dict(zip(names, arrays, strict=True))

    def run_in_order(self, feeds: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """As :meth:`run_unchecked`, the outputs in the order of :attr:`outputs`."""
        return self._run(self._opened or self._session, feeds)

    def _run(self, session: ort.InferenceSession, feeds: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        # Without the checks of onnxruntime's own wrapper, which the feeds have passed here: of a model that takes some
        # microseconds they are a quarter.
        bare = getattr(session, "_sess", session)
        try:
            arrays: list[npt.NDArray[Any]] = bare.run(
                self._names, feeds if isinstance(feeds, dict) else dict(feeds), None
            )
        except Exception as error:  # as above
            raise BackendError(f"onnxruntime cannot run {self._label}: {_first_line(error)}{self._hint()}") from error
        return arrays

    def _hint(self) -> str:
        """What to do about inputs whose open axes the exporter wrote as zeros, of which onnxruntime takes no others."""
        for spec in self.inputs:
            if spec.shape and any(
                dim == 0 and size is None for dim, size in zip(spec.shape, spec.extents, strict=True)
            ):
                return (
                    f"; input {spec.name!r} is declared as {shape_text(spec.shape)}: give open axes names (dim_param)"
                )
        return ""

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The nodes of the model as they were before fusion; empty in versions of onnxruntime that do not tell."""
        if not hasattr(self._session, "get_provider_graph_assignment_info"):
            return ()
        return tuple(
            Placement(node.name, node.op_type, part.ep_name, _REASON)
            for part in self._session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        )

    def profile(self, feeds: Mapping[str, npt.NDArray[Any]] | None = None) -> Profile:
        """See :meth:`Program.profile`. The nodes are onnxruntime's, after fusion.

        It opens a second session, since onnxruntime decides about profiling when a session is opened.
        """
        if feeds is None:
            feeds = random_feeds(self.inputs, self._options.batch, self._options.input_shapes)
        check_feeds(self.inputs, feeds)
        return self.profile_unchecked(feeds)

    def profile_unchecked(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Profile:
        """As :meth:`profile`, for feeds that are known to fit."""
        with tempfile.TemporaryDirectory() as folder:
            options = self._session_options()
            options.enable_profiling = True
            options.profile_file_prefix = os.path.join(folder, "profile")
            session = self._open_again(options)
            for _ in range(1 + _PROFILED_RUNS):
                self._run(session, feeds)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
            del session
        return _read_profile(events)


def _tables(model: onnx.ModelProto) -> frozenset[str]:
    """Initializers that nodes only look up rows of, as embeddings."""
    nodes = model.graph.node
    if any(attribute.HasField("g") or attribute.graphs for node in nodes for attribute in node.attribute):
        return frozenset()
    tables = {node.input[0] for node in nodes if node.op_type == "Gather" and is_standard(node.domain)}
    read = [name for node in nodes for name in (node.input[1:] if node.op_type == "Gather" else node.input)]
    return frozenset(tables.difference(read, (info.name for info in model.graph.output)))


def _source(model: ModelSource) -> tuple[str | bytes, str]:
    """What onnxruntime loads, and what messages call it."""
    if not isinstance(model, onnx.ModelProto):
        path = os.fspath(model)
        return path, path
    if model.ByteSize() > _PROTOBUF_LIMIT:
        raise UnsupportedError("the model is larger than 2 GB; save it and compile it by its path")
    return model.SerializeToString(), "the model"


def _specs(values: Sequence[Any]) -> tuple[TensorSpec, ...]:
    specs = []
    for value in values:
        element = re.fullmatch(r"tensor\((.+)\)", value.type)
        if element is None or element[1] not in _DTYPES:
            raise UnsupportedError(
                f"{value.name!r} is {value.type}, and only tensors of numbers, booleans or strings are exchanged; "
                "export the model with tensors at its ends (skl2onnx: options={'zipmap': False})"
            )
        shape = tuple(size if isinstance(size, int) else size or None for size in value.shape)
        specs.append(TensorSpec(value.name, np.dtype(_DTYPES[element[1]]), shape))
    return tuple(specs)


def _read_profile(events: Sequence[Mapping[str, Any]]) -> Profile:
    """Medians per node from onnxruntime's trace events; the first run, which allocates, is left out."""
    runs = [e for e in events if e["cat"] == "Session" and e["name"] == "model_run"][1:]
    kernels = [e for e in events if e["cat"] == "Node" and e["name"].endswith("_kernel_time")]
    times: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(runs))
    nodes: dict[str, Mapping[str, Any]] = {}
    for number, run in enumerate(runs):
        for event in kernels:
            if run["ts"] <= event["ts"] <= run["ts"] + run["dur"]:
                # Names need not be unique; inside a subgraph, indices start again.
                key = f"{event['args']['node_index']}/{event['name']}"
                times[key][number] += event["dur"] / 1e3
                nodes.setdefault(key, event)
    return Profile(
        tuple(
            NodeProfile(
                name=event["name"].removesuffix("_kernel_time"),
                op=event["args"]["op_name"],
                placement=event["args"]["provider"],
                reason=_REASON,
                ms=statistics.median(times[key]),
            )
            for key, event in nodes.items()
        ),
        len(runs),
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?", "", lines[0]).strip()
