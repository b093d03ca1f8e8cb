"""Saving and resuming an algorithm: what is written, and what must agree when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sift_onnx.errors import UsageError

if TYPE_CHECKING:
    from sift_onnx.training.sparse.algorithms.algorithm import SparsityAlgorithm
    from sift_onnx.training.sparse.schedules.hyper_parameters import HyperParameterSchedule

__all__ = ["algorithm_state", "load_algorithm_state", "sparsity_schedules"]


def algorithm_state(algorithm: SparsityAlgorithm) -> dict[str, Any]:
    """The state of one algorithm, by cstorch's keys ``step`` and ``sparsity``, and others."""
    state: dict[str, Any] = {
        "algorithm": type(algorithm).__name__.lower(),
        "step": algorithm.step,
        "seed": algorithm.seed,
        "dense": algorithm.is_dense,
        "parameters": {name: list(sparse.param.shape) for name, sparse in algorithm.sparse_params.items()},
        "settings": algorithm.settings(),
        "sparsity": {
            name: saved for name, schedule in sparsity_schedules(algorithm) if (saved := schedule.state_dict())
        },
    }
    if algorithm.history is not None:
        state["metrics"] = algorithm.history.state_dict()
    return state


def load_algorithm_state(algorithm: SparsityAlgorithm, state: Any) -> None:
    """Take over an :func:`algorithm_state`; only ``step`` is needed, as in states that cstorch wrote.

    Raises:
        UsageError: the state is of another algorithm, other settings or other parameters.
    """
    if not isinstance(state, Mapping) or "step" not in state:
        raise UsageError("this is no state of a sparsity algorithm; load what state_dict() gave")
    _compare("algorithm", state.get("algorithm"), type(algorithm).__name__.lower())
    shapes = {name: list(sparse.param.shape) for name, sparse in algorithm.sparse_params.items()}
    saved_shapes = state.get("parameters", shapes)
    for name in [*saved_shapes, *shapes]:
        _compare(f"shape of {name!r}", saved_shapes.get(name, "absent"), shapes.get(name, "absent"))
    own = algorithm.settings()
    for key, value in state.get("settings", {}).items():
        _compare(key, value, own.get(key))
    algorithm.step = int(state["step"])
    algorithm.seed = int(state.get("seed", algorithm.seed))
    algorithm._dense = bool(state.get("dense", False))
    schedules = dict(sparsity_schedules(algorithm))
    for name, saved in state.get("sparsity", {}).items():
        if name not in schedules:
            raise UsageError(f"the state has a sparsity schedule for {name!r}, which has none here")
        schedules[name].load_state_dict(saved)
    if algorithm.history is not None and "metrics" in state:
        algorithm.history.load_state_dict(state["metrics"])


def sparsity_schedules(algorithm: SparsityAlgorithm) -> list[tuple[str, HyperParameterSchedule]]:
    """Each sparsity schedule once, under the name of its first parameter."""
    seen: set[int] = set()
    named = []
    for name, sparse in algorithm.sparse_params.items():
        if id(sparse.schedule) not in seen:
            seen.add(id(sparse.schedule))
            named.append((name, sparse.schedule))
    return named


def _compare(what: str, saved: object, own: object) -> None:
    if saved is not None and saved != own:
        raise UsageError(f"the saved run has {what} {saved}, this one {own}; resume with its own recipe and model")
