"""The settings of a training: what stands under ``training`` in a recipe."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
from msgspec import Meta

from sift_onnx.datasets.normalization import Normalization
from sift_onnx.errors import UsageError
from sift_onnx.settings import convert
from sift_onnx.training.trainer.optimizer_classes import class_of

__all__ = [
    "LOSSES",
    "Augmentation",
    "DistillationSettings",
    "KernelSetting",
    "OptimizerSettings",
    "ScheduleSettings",
    "TrainingSettings",
    "first_difference",
]

# What a resumed run may have otherwise: it does not change what is computed, but for rounding by other kernels.
_FREE = ("kernels", "log_every", "checkpoint_every", "keep_checkpoints")

Augmentation = Literal["none", "crop", "crop-flip", "resized-crop-flip"]
LOSSES = ("classification", "next-token", "mse", "l1", "huber")
KernelSetting = Literal["auto", "sparse", "dense"]

# torch refuses larger ones only in a step.
_LARGEST = float(np.finfo(np.float32).max)
_Positive = Annotated[float, Meta(gt=0, le=_LARGEST, description="a number above 0 that float32 can hold")]
_NotNegative = Annotated[float, Meta(ge=0, le=_LARGEST, description="a number, 0 or more, that float32 can hold")]
_BelowOne = Annotated[float, Meta(ge=0, lt=1)]
_AtLeastOne = Annotated[int, Meta(ge=1)]
_ZeroOrMore = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer.

    Attributes:
        type: ``sgd``, ``adamw``, or the name of a class of ``torch.optim``, such as ``RMSprop``.
        lr: learning rate at its peak.
        weight_decay: of weights of two dimensions or more; norms' scales and biases have none.
        momentum: of SGD.
        nesterov: of SGD.
        betas: of AdamW.
        eps: of AdamW.
        options: further arguments of the class, by name.
    """

    type: str = "sgd"
    lr: _Positive = 0.1
    weight_decay: _NotNegative = 0.0
    momentum: _BelowOne = 0.9
    nesterov: bool = True
    betas: tuple[_BelowOne, _BelowOne] = (0.9, 0.999)
    eps: _NotNegative = 1e-8
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)
        _check_options(self.options, "options")
        class_of(self.type)
        if self.type not in ("sgd", "adamw"):
            own = ("momentum", "nesterov", "betas", "eps")
            given = [f.name for f in dataclasses.fields(self) if f.name in own and getattr(self, f.name) != f.default]
            if given:
                raise UsageError(f"{given[0]} is of sgd and adamw; write it under 'options' for {self.type!r}")
        if self.type == "sgd" and self.nesterov and not self.momentum:
            raise UsageError("nesterov needs a momentum; write 'nesterov: false'")


@dataclass(frozen=True)
class ScheduleSettings:
    """How the learning rate goes, in optimizer steps.

    Attributes:
        type: of the schedule.
        warmup: steps in which it rises linearly to its peak.
        final: of ``cosine``, the share of the peak at the end.
        every: of ``step``, steps between two drops; or else ``milestones`` names them one by one.
        milestones: of ``step``.
        gamma: of ``step``, the factor of a drop.
    """

    type: Literal["constant", "cosine", "step"] = "cosine"
    warmup: _ZeroOrMore = 0
    final: _NotNegative = 0.0
    every: _AtLeastOne | None = None
    milestones: tuple[int, ...] = ()
    gamma: _NotNegative = 0.1

    def __post_init__(self) -> None:
        _check(self)
        if self.type == "step" and (self.every is None) == (not self.milestones):
            raise UsageError("a schedule of type 'step' needs one of 'every' and 'milestones', in steps")


@dataclass(frozen=True)
class DistillationSettings:
    """How a model learns from a teacher; without one these do nothing.

    Attributes:
        temperature: that scores are divided by before they become probabilities.
        weight: of what is learned from the teacher; the targets have the rest.
    """

    temperature: _Positive = 2.0
    weight: Annotated[float, Meta(ge=0, le=1)] = 0.5

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class TrainingSettings:
    """A training.

    Attributes:
        loss: ``classification``, ``next-token``, ``mse``, ``l1``, ``huber``, or ``FILE.py:FUNCTION``, called with
            outputs and target.
        label_smoothing: of ``classification`` and ``next-token``.
        epochs: passes over the data; of ``epochs`` and ``steps`` one is given.
        steps: optimizer steps.
        batch_size: of ``.npz`` data and folders of images, examples per optimizer step, of all ranks and accumulated
            parts together.
        normalize: of images, ``none``, ``imagenet`` or ``MEAN/STD``, see
            :class:`~sift_onnx.datasets.normalization.Normalization`.
        augment: of images to train on, by torchvision: ``crop`` shifts them by up to an eighth, ``crop-flip`` also
            mirrors half of them, ``resized-crop-flip`` cuts out a part of any size as for ImageNet.
        accumulate: parts whose gradients make one step: of such data, parts of ``batch_size``; of a loader,
            batches.
        optimizer: see :class:`OptimizerSettings`.
        schedule: see :class:`ScheduleSettings`.
        distillation: see :class:`DistillationSettings`.
        ema: decay of an exponential moving average of the weights, which is what is validated and written; None for
            the weights themselves.
        keep_best: whether what is written is what did best in validation, and not the end.
        patience: validations without gain after which the training ends; None for none.
        clip_norm: largest norm of all gradients together; None for no clipping.
        amp: ``off``, ``bfloat16`` or ``float16`` (CUDA only, with loss scaling).
        kernels: of masked layers: ``sparse`` computes with active weights alone, ``dense`` with zeros in a dense layer,
            and ``auto`` by one of them, which depends on the density of the layer.
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
    label_smoothing: _BelowOne = 0.0
    epochs: _AtLeastOne | None = None
    steps: _AtLeastOne | None = None
    batch_size: _AtLeastOne = 64
    normalize: str = "none"
    augment: Augmentation = "none"
    accumulate: _AtLeastOne = 1
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    distillation: DistillationSettings = field(default_factory=DistillationSettings)
    ema: Annotated[float, Meta(gt=0, lt=1)] | None = None
    keep_best: bool = False
    patience: _AtLeastOne | None = None
    clip_norm: _Positive | None = None
    amp: Literal["off", "bfloat16", "float16"] = "off"
    kernels: KernelSetting = "auto"
    sparsity: Any = None
    trainable: tuple[str, ...] = ()
    folded_batch_norm: Literal["refuse", "allow"] = "refuse"
    parallelism: Literal["ddp", "fsdp2"] = "ddp"
    seed: _ZeroOrMore = 0
    log_every: _AtLeastOne = 10
    checkpoint_every: _ZeroOrMore = 0
    keep_checkpoints: _AtLeastOne = 2

    def __post_init__(self) -> None:
        _check(self)
        Normalization.parse(self.normalize)
        if self.loss not in LOSSES and ".py:" not in self.loss:
            raise UsageError(f"loss is {self.loss!r}; choose {', '.join(LOSSES)}, or write FILE.py:FUNCTION")
        if self.ema is not None and self.parallelism == "fsdp2":
            raise UsageError("ema needs whole weights in each step, and fsdp2 shares them out; drop one of them")

    @classmethod
    def of_recipe(cls, settings: Mapping[str, Any], source: str = "recipe") -> TrainingSettings:
        """Settings from the mapping under ``training``.

        Args:
            settings: names and values; what is not given has its default.
            source: what error messages call the recipe.

        Raises:
            UsageError: a name is unknown, or a value is of the wrong type or out of its range.
        """
        document = dict(settings)
        for name in ("optimizer", "schedule"):
            # The type alone will do where the rest has defaults.
            if isinstance(document.get(name), str):
                document[name] = {"type": document[name]}
        if isinstance(document.get("trainable"), str):
            document["trainable"] = [document["trainable"]]
        if document.get("amp") is False:
            # YAML reads a plain off as a boolean.
            document["amp"] = "off"
        return convert(document, cls, where=f"{source}, training")

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


def _check(settings: Any) -> None:
    """Check the fields of settings that were made in Python by their annotations.

    Raises:
        UsageError: one is of another type or out of its range.
    """
    for name, annotation in get_type_hints(type(settings), include_extras=True).items():
        convert(getattr(settings, name), annotation, where=name)


def _check_options(value: Any, where: str) -> None:
    """Check numbers that the annotations say nothing of.

    Args:
        value: a number, or a container of numbers and other values.
        where: what it is, for errors.

    Raises:
        UsageError: float32 cannot hold a number.
    """
    if isinstance(value, Mapping):
        for name, entry in value.items():
            _check_options(entry, f"{where}.{name}")
    elif isinstance(value, (list, tuple)):
        for i, entry in enumerate(value):
            _check_options(entry, f"{where}[{i}]")
    elif isinstance(value, (int, float)) and not abs(value) <= _LARGEST:
        raise UsageError(f"{where} is {value}; float32 cannot hold it")
