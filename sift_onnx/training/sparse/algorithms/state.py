"""What a resumed run needs of an algorithm, besides the model's own state and the optimizer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sift_onnx.errors import UsageError

__all__ = ["AlgorithmState"]


@dataclass(frozen=True)
class AlgorithmState:
    """The state of one algorithm. Masks are not in it: they are buffers of the model.

    Checkpoints hold it as a dictionary of its fields, of which those of cstorch are ``step`` and ``sparsity``.

    Attributes:
        step: number of optimizer steps.
        algorithm: its name; None where cstorch wrote the state.
        seed: of what is drawn.
        dense: whether masks have become ones for good.
        parameters: shapes by name.
        settings: what a run must have in common with the one it resumes, in words.
        sparsity: states of schedules, by the name of their first parameter.
        metrics: the history of the masks, if it is followed.
    """

    step: int
    algorithm: str | None = None
    seed: int | None = None
    dense: bool = False
    parameters: Mapping[str, list[int]] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    sparsity: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, state: Any) -> AlgorithmState:
        """The state that a dictionary holds; keys of subclasses' own are left alone.

        Raises:
            UsageError: it holds none.
        """
        if not isinstance(state, Mapping) or "step" not in state:
            raise UsageError("this is not a state of a sparsity algorithm; load what state_dict() gave")
        known = {key: state[key] for key in cls.__dataclass_fields__ if key in state}
        return cls(**{**known, "step": int(state["step"]), "dense": bool(state.get("dense", False))})

    def to_dict(self) -> dict[str, Any]:
        """The state as checkpoints hold it."""
        state = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in state.items() if name != "metrics" or value is not None}

    def check_fits(self, own: AlgorithmState) -> None:
        """Compare a saved state with that of the algorithm that is to take it over.

        Raises:
            UsageError: it is of another algorithm, other settings or other parameters.
        """
        _compare("algorithm", self.algorithm, own.algorithm)
        shapes = own.parameters or {}
        saved_shapes = shapes if self.parameters is None else self.parameters
        for name in [*saved_shapes, *shapes]:
            _compare(f"shape of {name!r}", saved_shapes.get(name, "absent"), shapes.get(name, "absent"))
        for key, value in self.settings.items():
            _compare(key, value, own.settings.get(key))


def _compare(what: str, saved: object, own: object) -> None:
    if saved is not None and saved != own:
        raise UsageError(f"the saved run has {what} {saved}, this one {own}; resume with its own recipe and model")
