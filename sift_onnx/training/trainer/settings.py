"""The settings of a training: what stands under ``training`` in a recipe."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sift_onnx.errors import UsageError

__all__ = ["OptimizerSettings", "ScheduleSettings", "TrainingSettings", "first_difference"]

# What a resumed run may have otherwise: it does not change what is computed.
_FREE = ("log_every", "checkpoint_every", "keep_checkpoints")


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer.

    Attributes:
        type: ``sgd`` or ``adamw``.
        lr: learning rate at its peak.
        weight_decay: of weights of two dimensions or more; norms' scales and biases have none.
        momentum: of SGD.
        nesterov: of SGD.
        betas: of AdamW.
        eps: of AdamW.
    """

    type: str = "sgd"
    lr: float = 0.1
    weight_decay: float = 0.0
    momentum: float = 0.9
    nesterov: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass(frozen=True)
class ScheduleSettings:
    """How the learning rate goes, in optimizer steps.

    Attributes:
        type: ``constant``, ``cosine`` or ``step``.
        warmup: steps in which it rises linearly to its peak.
        final: of ``cosine``, the share of the peak at the end.
        every: of ``step``, steps between two drops; ``milestones`` in its place names them one by one.
        milestones: of ``step``.
        gamma: of ``step``, the factor of a drop.
    """

    type: str = "cosine"
    warmup: int = 0
    final: float = 0.0
    every: int | None = None
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1


@dataclass(frozen=True)
class TrainingSettings:
    """A training.

    Attributes:
        loss: ``classification``, ``next-token``, or ``FILE.py:FUNCTION``, called with outputs and target.
        label_smoothing: of ``classification`` and ``next-token``.
        epochs: passes over the data; of ``epochs`` and ``steps`` one is given.
        steps: optimizer steps.
        batch_size: of ``.npz`` data, examples per optimizer step, of all ranks and accumulated parts together.
        accumulate: parts whose gradients make one step: of ``.npz`` data, parts of ``batch_size``; of a loader,
            batches.
        optimizer: see :class:`OptimizerSettings`.
        schedule: see :class:`ScheduleSettings`.
        clip_norm: largest norm of all gradients together; None for no clipping.
        amp: ``off``, ``bfloat16`` or ``float16`` (CUDA only, with loss scaling).
        sparsity: what :func:`sift_onnx.training.sparse.configure` takes; None keeps the masks of the model.
        trainable: globs of further initializers to train, see :func:`sift_onnx.to_torch`.
        folded_batch_norm: ``refuse`` or ``allow`` training from scratch where normalization was folded away.
        parallelism: of several ranks: ``ddp``, or ``fsdp2``; see :mod:`sift_onnx.training.trainer.parallelism`.
        seed: of every random draw.
        log_every: steps between log lines.
        checkpoint_every: steps between checkpoints; 0 for none.
        keep_checkpoints: the newest that are kept.
    """

    loss: str = "classification"
    label_smoothing: float = 0.0
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 64
    accumulate: int = 1
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    clip_norm: float | None = None
    amp: str = "off"
    sparsity: Any = None
    trainable: tuple[str, ...] = ()
    folded_batch_norm: str = "refuse"
    parallelism: str = "ddp"
    seed: int = 0
    log_every: int = 10
    checkpoint_every: int = 0
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        """Hold numbers and names against their ranges.

        Raises:
            UsageError: one is out of its range.
        """
        optimizer, schedule = self.optimizer, self.schedule
        _among("optimizer.type", optimizer.type, ("sgd", "adamw"))
        _among("schedule.type", schedule.type, ("constant", "cosine", "step"))
        _among("amp", self.amp, ("off", "bfloat16", "float16"))
        _among("folded_batch_norm", self.folded_batch_norm, ("refuse", "allow"))
        _among("parallelism", self.parallelism, ("ddp", "fsdp2"))
        if self.loss not in ("classification", "next-token") and ".py:" not in self.loss:
            raise UsageError(f"loss is {self.loss!r}; choose classification, next-token, or write FILE.py:FUNCTION")
        for name in ("epochs", "steps", "batch_size", "accumulate", "log_every", "keep_checkpoints"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise UsageError(f"{name} is {value}; it has to be 1 or more")
        for name, number in (("seed", self.seed), ("checkpoint_every", self.checkpoint_every)):
            if not 0 <= number < math.inf:
                raise UsageError(f"{name} is {number}; it has to be 0 or more")
        _within("optimizer.lr", optimizer.lr, above=0.0)
        _within("optimizer.weight_decay", optimizer.weight_decay)
        _within("optimizer.momentum", optimizer.momentum, below=1.0)
        _within("optimizer.eps", optimizer.eps)
        for i, beta in enumerate(optimizer.betas):
            _within(f"optimizer.betas[{i}]", beta, below=1.0)
        _within("label_smoothing", self.label_smoothing, below=1.0)
        _within("schedule.final", schedule.final)
        _within("schedule.gamma", schedule.gamma)
        if self.clip_norm is not None:
            _within("clip_norm", self.clip_norm, above=0.0)
        if schedule.warmup < 0:
            raise UsageError(f"schedule.warmup is {schedule.warmup}; it has to be 0 or more")
        if schedule.type == "step" and (schedule.every is None) == (not schedule.milestones):
            raise UsageError("a schedule of type 'step' needs one of 'every' and 'milestones', in steps")
        if schedule.every is not None and schedule.every < 1:
            raise UsageError(f"schedule.every is {schedule.every}; it has to be 1 or more")
        if optimizer.type == "sgd" and optimizer.nesterov and not optimizer.momentum:
            raise UsageError("optimizer.nesterov needs a momentum; write 'nesterov: false'")

    @classmethod
    def of_recipe(cls, settings: Mapping[str, Any], source: str = "recipe") -> TrainingSettings:
        """Settings from the mapping under ``training``.

        Args:
            settings: names and values; what is not given has its default.
            source: what error messages call the recipe.

        Raises:
            UsageError: a name is unknown, or a value is of the wrong type or out of its range.
        """
        try:
            made: TrainingSettings = _made(cls, settings, "")
        except UsageError as error:
            raise UsageError(f"{source}, training: {error}") from error
        return made

    def total_steps(self, steps_per_epoch: int | None) -> int:
        """How many optimizer steps the training has.

        Args:
            steps_per_epoch: of the data; None if it does not say.

        Raises:
            UsageError: the settings do not say, or not in a way that this data allows.
        """
        if (self.epochs is None) == (self.steps is None):
            raise UsageError("give one of epochs and steps: how long to train")
        if self.steps is not None:
            return self.steps
        if steps_per_epoch is None:
            raise UsageError("the data does not say how many batches it has; give steps, not epochs")
        assert self.epochs is not None
        return self.epochs * steps_per_epoch

    def telling(self) -> dict[str, Any]:
        """What a resumed run must have in common with the one it resumes, as it comes back from JSON."""
        document = {k: v for k, v in dataclasses.asdict(self).items() if k not in _FREE}
        result: dict[str, Any] = json.loads(json.dumps(document, default=str, sort_keys=True))
        return result


def first_difference(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """The first setting in which two of :meth:`TrainingSettings.telling` differ, in words; None if they do not."""
    for key in {**own, **saved}:
        if saved.get(key) != own.get(key):
            return f"{key} {saved.get(key)!r} in the saved run and {own.get(key)!r} in this one"
    return None


def _made(cls: type[Any], settings: Mapping[str, Any], prefix: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in fields:
            raise UsageError(f"unknown setting {prefix + str(key)!r}; there are {', '.join(fields)}")
        values[key] = _value(f"{prefix}{key}", str(fields[key].type), value)
    return cls(**values)


_NESTED: dict[str, type[Any]] = {"OptimizerSettings": OptimizerSettings, "ScheduleSettings": ScheduleSettings}


def _value(name: str, kind: str, value: Any) -> Any:
    """``value`` as the annotation ``kind`` wants it."""
    if kind == "Any" or (value is None and kind.endswith("| None")):
        return value
    kind = kind.removesuffix(" | None")
    if kind in _NESTED:
        # The type alone will do where the rest has defaults.
        settings = {"type": value} if isinstance(value, str) else value
        if not isinstance(settings, Mapping):
            raise UsageError(f"{name} is {value!r}; write a mapping, as '{{type: ..., ...}}'")
        return _made(_NESTED[kind], settings, f"{name}.")
    if kind.startswith("tuple["):
        items = [value] if isinstance(value, str) else value
        parts = [part.strip() for part in kind[6:-1].split(",")]
        if not isinstance(items, Sequence) or (parts[-1] != "..." and len(items) != len(parts)):
            raise UsageError(f"{name} is {value!r}; write a list" + (f" of {len(parts)}" if parts[-1] != "..." else ""))
        return tuple(_value(f"{name}[{i}]", parts[0], item) for i, item in enumerate(items))
    if kind == "str" and value is False:
        # YAML reads a plain off as a boolean.
        return "off"
    if kind == "float" and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        # Recipes take 1e-3, which has no point, as text.
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(value, {"int": int, "bool": bool, "str": str}.get(kind, ())) and (
        kind == "bool" or not isinstance(value, bool)
    ):
        return value
    wanted = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}[kind]
    raise UsageError(f"{name} is {value!r}; it has to be {wanted}")


def _among(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UsageError(f"{name} is {value!r}; choose one of {', '.join(choices)}")


def _within(name: str, value: float, *, above: float | None = None, below: float = math.inf) -> None:
    low_enough = math.isfinite(value) and value < below
    if not low_enough or (value <= above if above is not None else value < 0):
        limits = ("above 0" if above is not None else "0 or more") + (
            f" and below {below:g}" if below < math.inf else ""
        )
        raise UsageError(f"{name} is {value:g}; it has to be {limits}")
