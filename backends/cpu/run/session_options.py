"""onnxruntime's ways to configure a session and a run: what of them is honoured, refused, or said to have no effect.

``SessionOptions`` does not tell what was given to it by its ``add_`` and ``register_`` methods; of that only the
entries below are known here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import onnxruntime as ort

from sift_onnx.backends.onnxruntime import EXACT_INTEGERS
from sift_onnx.errors import BackendError, UsageError

__all__ = ["PACKED_CACHE", "SessionSettings", "check_providers", "check_run_options", "session_settings"]

# The entry of a session's options that names a folder of lowered models.
PACKED_CACHE = "sift.packed_cache"

# Sessions run on the CPU; the others are what they call the parts of theirs.
_PROVIDERS = ("CPUExecutionProvider", "kernels", "onnxruntime")
_REFUSED = {
    "optimized_model_filepath": "there is no optimized model to write; leave it out",
}
# They change how fast onnxruntime is and what it logs, not what a model computes.
_WITHOUT_EFFECT = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "execution_mode",
    "execution_order",
    "graph_optimization_level",
    "inter_op_num_threads",
    "log_verbosity_level",
    "logid",
    "use_per_session_threads",
)
_REFUSED_ENTRIES = ("session.set_denormal_as_zero", "ep.context_enable")
_ENTRIES_WITHOUT_EFFECT = (
    "session.disable_prepacking",
    "session.dynamic_block_base",
    "session.inter_op.allow_spinning",
    "session.intra_op.allow_spinning",
    "session.intra_op_thread_affinities",
)
_OF_RUNS_WITHOUT_EFFECT = ("log_verbosity_level", "logid")
# Nothing is logged, which is what a call for warnings, errors or less has asked for.
_WARNINGS = 2
_ARGUMENTS_REFUSED = ("disabled_optimizers", "read_config_from_model")


@dataclass(frozen=True)
class SessionSettings:
    """What a session takes from its arguments.

    Attributes:
        threads: worker threads; None is one per core that the process may run on.
        enable_profiling: record every run.
        profile_file_prefix: what the trace's file name begins with; None for the session's own.
        options: the options that were given, or new ones that say the same.
        deterministic: whether nothing is timed to choose where the model runs: ``use_deterministic_compute``.
        packed_cache: folder of lowered models, the entry ``sift.packed_cache``; None for none.
        exact_integers: onnxruntime's entry ``session.x64quantprecision``, for the parts that it runs.
    """

    threads: int | None
    enable_profiling: bool
    profile_file_prefix: str | None
    options: ort.SessionOptions
    deterministic: bool = False
    packed_cache: str | None = None
    exact_integers: bool = False


def session_settings(
    sess_options: ort.SessionOptions | int | None, threads: int | None, others: Mapping[str, Any]
) -> SessionSettings:
    """Settings from onnxruntime's options and from ours.

    Args:
        sess_options: options; or a number of threads, which is what stands in their place in older code for this class.
        threads: as the argument ``threads``.
        others: further arguments of ``onnxruntime.InferenceSession``.

    Raises:
        UsageError: an option cannot be met, is given twice, or is unknown; the message names it.
    """
    for name, value in others.items():
        if name not in (*_ARGUMENTS_REFUSED, "enable_fallback"):
            raise UsageError(f"InferenceSession: unknown argument {name!r}")
        if name in _ARGUMENTS_REFUSED and value:
            raise UsageError(f"InferenceSession: {name} is not supported; leave it out")
    given = sess_options
    if isinstance(given, int) and not isinstance(given, bool):
        given = ort.SessionOptions()
        _check_once(sess_options, threads)
        threads = sess_options
    elif given is None:
        given = ort.SessionOptions()
    elif isinstance(given, ort.SessionOptions):
        _check_options(given)
        wanted = given.intra_op_num_threads or None
        _check_once(wanted, threads)
        threads = threads if wanted is None else wanted
        prefix = given.profile_file_prefix
        usual = prefix == ort.SessionOptions().profile_file_prefix
        return SessionSettings(
            threads,
            given.enable_profiling,
            None if usual else prefix,
            given,
            given.use_deterministic_compute,
            _entry(given, PACKED_CACHE) or None,
            _entry(given, EXACT_INTEGERS) == "1",
        )
    else:
        raise UsageError(
            f"sess_options is {given!r}; pass onnxruntime.SessionOptions, or a number of threads (threads=...)"
        )
    if isinstance(threads, Integral) and threads > 0:
        given.intra_op_num_threads = int(threads)
    return SessionSettings(threads, False, None, given)


def _check_once(one: object, other: object) -> None:
    if one is not None and other is not None and one != other:
        raise UsageError(f"threads are given twice, as {one} and {other}; leave one of them out")


def _check_options(options: ort.SessionOptions) -> None:
    usual = ort.SessionOptions()
    for name, reason in _REFUSED.items():
        if getattr(options, name, None) != getattr(usual, name, None):
            raise UsageError(f"SessionOptions.{name} is not supported: {reason}")
    if getattr(options, "has_providers", bool)():
        raise UsageError("SessionOptions.add_provider is not supported: sessions run on the CPU; leave it out")
    for key in _REFUSED_ENTRIES:
        if _entry(options, key) not in (None, "", "0"):
            raise UsageError(f"SessionOptions: the entry {key!r} is not supported; leave it out")
    idle = [name for name in _WITHOUT_EFFECT if getattr(options, name, None) != getattr(usual, name, None)]
    idle += [key for key in _ENTRIES_WITHOUT_EFFECT if _entry(options, key) is not None]
    _say_idle("SessionOptions", [*idle, *_chatty(options)], depth=5)


def _entry(options: ort.SessionOptions, key: str) -> str | None:
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return None


def _chatty(options: ort.SessionOptions | ort.RunOptions) -> list[str]:
    return ["log_severity_level"] if 0 <= options.log_severity_level < _WARNINGS else []


def _say_idle(owner: str, names: Sequence[str], depth: int) -> None:
    """Warn of settings without effect, at the caller of the session, who is ``depth`` calls away."""
    if names:
        warnings.warn(f"{owner}: without effect here: {', '.join(names)}", UserWarning, stacklevel=depth)


def check_providers(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None, options: Sequence[Mapping[str, Any]] | None = None
) -> None:
    """Refuse execution providers that are not the CPU's, and options of providers.

    Args:
        providers: names, or names with options.
        options: of the providers, in their order.

    Raises:
        UsageError: the message names the provider or the option.
    """
    if providers is None:
        if options:
            raise UsageError("provider_options are given without providers; leave them out")
        return
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise UsageError(f"providers is {providers!r}; pass a list, as ['CPUExecutionProvider']")
    if options is not None and len(options) != len(providers):
        raise UsageError(f"{len(options)} provider_options for {len(providers)} providers; give one for each")
    apart = options if options is not None else [{}] * len(providers)
    for provider, more in zip(providers, apart, strict=True):
        name, own = provider if isinstance(provider, tuple) and len(provider) == 2 else (provider, {})
        if not isinstance(name, str):
            raise UsageError(f"providers has {provider!r} in it; pass names, as ['CPUExecutionProvider']")
        if name not in _PROVIDERS:
            raise UsageError(
                f"provider {name!r} is not supported: sessions run on the CPU; pass ['CPUExecutionProvider'], or leave "
                "providers out"
            )
        for key in (*own, *more):
            raise UsageError(f"provider {name!r}: its option {key!r} is not supported; leave it out")


def check_run_options(options: ort.RunOptions | None) -> None:
    """Refuse options of a run that cannot be met, and say which have no effect.

    Raises:
        UsageError: they are none, or an option cannot be met.
        BackendError: the run is to be terminated before it begins.
    """
    if options is None:
        return
    if not isinstance(options, ort.RunOptions):
        raise UsageError(f"run_options is a {type(options).__name__}; pass onnxruntime.RunOptions")
    if options.terminate:
        raise BackendError("the run was not begun: terminate is set in its RunOptions")
    if getattr(options, "training_mode", False):
        raise UsageError("RunOptions.training_mode is not supported; train with sift_onnx.to_torch")
    usual = ort.RunOptions()
    idle = [name for name in _OF_RUNS_WITHOUT_EFFECT if getattr(options, name) != getattr(usual, name)]
    _say_idle("RunOptions", [*idle, *_chatty(options)], depth=4)
