"""What a back end is: it compiles a model to a program that runs, and that says where each node went and why."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Union

import numpy.typing as npt
import onnx

from sift_onnx.errors import BackendError, MissingExtraError, PluginError, UnsupportedError, UsageError
from sift_onnx.plugins import BACKENDS, first_line, load_file, plugin_class, plugin_names
from sift_onnx.records.profile import NodeProfile, Placement
from sift_onnx.records.record import json_of

__all__ = [
    "DEFAULT_OPTIONS",
    "Backend",
    "CompileOptions",
    "ModelSource",
    "NodeProfile",
    "Placement",
    "Profile",
    "Program",
    "available_backends",
    "get_backend",
    "plugin_backend",
    "refuse_copies",
]

_MOST_THREADS = 4096

ModelSource = Union[str, "os.PathLike[str]", onnx.ModelProto]

# name -> module:class, imported when the back end is asked for.
_BACKENDS = {
    "onnxruntime": "sift_onnx.backends.onnxruntime:OnnxRuntimeBackend",
    "cpu": "sift_onnx.backends.cpu.run.program:CpuBackend",
    "dataflow": "sift_onnx.backends.dataflow.backend:DataflowBackend",
}


@dataclass(frozen=True)
class CompileOptions:
    """How a program is to be run.

    Attributes:
        threads: worker threads; None is one per processor that the process may use.
        batch: images or sequences per run that the program may be specialised to; None is any.
        input_shapes: shapes of inputs with dynamic axes, by name.
        deterministic: whether results must have the same bits in every session. Back ends otherwise may time several
            ways to run a model, which differ in rounding, and keep the fastest.
        packed_cache: folder in which the CPU back end keeps lowered models, to open them fast later; None keeps none.
            Other back ends do without.
        weight_values: how the CPU back end holds weights of matrix products that the model stores in float32: ``fp32``
            keeps their bits; ``bf16``, ``fp16`` and ``int8``, with a scale per output, round them, and take fewer bytes
            from memory. Other back ends keep the bits.
        exact_integers: whether onnxruntime adds products of bytes without saturation. On an x86 processor without VNNI
            it otherwise adds pairs of them in 16 bits, which is faster. The kernels never saturate.

    Raises:
        UsageError: threads or batch below 1.
    """

    threads: int | None = None
    batch: int | None = None
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    deterministic: bool = False
    packed_cache: str | os.PathLike[str] | None = None
    weight_values: str = "fp32"
    exact_integers: bool = False

    def __post_init__(self) -> None:
        for name, value in (("threads", self.threads), ("batch", self.batch)):
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool)):
                raise UsageError(f"{name} is {value!r}; it must be a whole number")
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; it must be at least 1")
        if self.threads is not None and self.threads > _MOST_THREADS:
            raise UsageError(f"threads is {self.threads}; at most {_MOST_THREADS} are started")


DEFAULT_OPTIONS = CompileOptions()


@dataclass(frozen=True)
class Profile:
    """Time per executed node.

    Attributes:
        nodes: in order of execution. Back ends fuse and rename nodes, so these need not be those of the model.
        runs: how many runs the medians are over.
    """

    nodes: tuple[NodeProfile, ...]
    runs: int

    @property
    def total_ms(self) -> float:
        """Sum over the nodes, in milliseconds."""
        return sum(node.ms for node in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; what a back end does not report of a node is left out."""
        return {"runs": self.runs, "total_ms": self.total_ms, "nodes": json_of(self.nodes)}


class Program(ABC):
    """A compiled model.

    Attributes:
        threads: that it runs on.
    """

    threads: int = 1

    @abstractmethod
    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """All outputs of the model by name, in the model's order.

        Args:
            feeds: one array per graph input, by name, of the input's dtype and shape.

        Raises:
            UsageError: an input is missing, unknown, or of another dtype or shape.
            BackendError: the run failed.
        """

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Where each node of the model went, and why; empty where the back end does not report it."""
        return ()

    @property
    def verdict(self) -> str:
        """What timing said about where the model runs; empty where nothing was timed for that."""
        return ""

    @property
    def simulated_ms(self) -> float | None:
        """How long a run takes on a machine that is simulated, in milliseconds; None where runs are to be timed."""
        return None

    def release_idle(self) -> None:  # noqa: B027
        """Give memory back that runs keep for the next ones: those to come need less of it."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        refuse_copies(f"a program ({type(self).__name__})")

    def profile(self, feeds: Mapping[str, npt.NDArray[Any]] | None = None) -> Profile:
        """Time per executed node.

        Args:
            feeds: as for :meth:`run`; random ones, at the batch and shapes the program was compiled for, if None.

        Raises:
            UnsupportedError: the back end cannot tell.
        """
        raise UnsupportedError(f"{type(self).__name__} has no profile per node")


class Backend(ABC):
    """Something that runs models.

    Attributes:
        name: as ``--backend`` has it.
        presets: what may follow the name after a colon.
        preset: the one chosen, or None.
        takes_models: whether :meth:`compile` takes a :class:`~sift_onnx.model.Model` too, whose data may be in files.
    """

    name: ClassVar[str]
    presets: ClassVar[tuple[str, ...]] = ()
    takes_models: ClassVar[bool] = False

    def __init__(self, preset: str | None = None) -> None:
        """Choose a preset.

        Raises:
            UsageError: there is no such preset.
        """
        if preset is not None and preset not in self.presets:
            choice = f"choose {', '.join(self.presets)}" if self.presets else "it takes none"
            raise UsageError(f"back end {self.name!r} has no preset {preset!r}; {choice}")
        self.preset = preset

    @abstractmethod
    def compile(self, model: ModelSource, options: CompileOptions = DEFAULT_OPTIONS) -> Program:
        """A program for ``model``.

        Args:
            model: a path, or the model itself where it holds all its data; only a path works for models above 2 GB and
                for external data.
            options: threads, batch and shapes.

        Raises:
            ModelReadError: the file cannot be read.
            UnsupportedError: the model or one of its ops is not supported.
            BackendError: the back end refused the model.
        """


def available_backends() -> tuple[str, ...]:
    """The names that :func:`get_backend` knows: our own, then those of plug-ins."""
    return (*_BACKENDS, *(name for name in plugin_names(BACKENDS) if name not in _BACKENDS))


def get_backend(name: str) -> Backend:
    """A back end by name.

    Args:
        name: ``NAME``, ``NAME:PRESET``, or ``FILE.py:CLASS`` for a subclass of :class:`Backend` in a file. The file is
            executed. A name that is none of our own is looked for among plug-ins.

    Raises:
        BackendError: there is no such back end, or its file, class or plug-in does not load.
        MissingExtraError: it needs a package that is not installed.
        UsageError: the preset is unknown, or the class is missing from the name.
    """
    path, _, attribute = name.rpartition(":")
    if path.endswith(".py"):
        return _from_file(Path(path), attribute)
    if name.endswith(".py"):
        raise UsageError(f"back end {name!r}: say which class of the file, as {name}:CLASS")
    base, _, preset = name.partition(":")
    if base not in _BACKENDS:
        found = plugin_backend(base)
        if found is None:
            known = ", ".join(available_backends())
            raise BackendError(f"no back end {base!r}; there are {known}, and FILE.py:CLASS for your own")
        return found(preset or None)
    module, _, attribute = _BACKENDS[base].partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"back end {base!r} needs {error.name}; pip install {error.name}") from error
    backend: Backend = kind(preset or None)
    return backend


def plugin_backend(name: str) -> type[Backend] | None:
    """The back end that a plug-in offers under a name; None if none does.

    Raises:
        PluginError: it does not load, is no back end, or has the name of one of ours.
    """
    found = plugin_class(BACKENDS, name, Backend)  # type: ignore[type-abstract]
    if found is not None and name in _BACKENDS:
        raise PluginError(f"the back end {name!r} of {found.__module__} is never used: sift_onnx has its own {name!r}")
    return found


def refuse_copies(what: str) -> NoReturn:
    """Refuse to copy or pickle ``what``: compiled code, packed weights and threads belong to one process.

    Raises:
        UsageError: always; it says what to do.
    """
    raise UsageError(
        f"{what} cannot be copied or pickled; pickle the path or the bytes of its model, and make it again from them"
    )


def _from_file(path: Path, attribute: str) -> Backend:
    name = f"{path}:{attribute}"
    if not path.is_file():
        raise BackendError(f"back end {name!r}: no such file {str(path)!r}")
    try:
        module = load_file(path)
    except Exception as error:
        raise BackendError(f"back end {name!r}: its file does not load: {first_line(error)}") from error
    kind = getattr(module, attribute, None)
    if not (isinstance(kind, type) and issubclass(kind, Backend)):
        raise BackendError(
            f"back end {name!r}: {attribute!r} is not a subclass of sift_onnx.backends.base.Backend there"
        )
    try:
        return kind()
    except Exception as error:
        raise BackendError(f"back end {name!r} does not start: {first_line(error)}") from error
