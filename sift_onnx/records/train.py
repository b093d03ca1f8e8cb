"""What ``train`` reports."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sift_onnx.records.record import SCHEMA, Amount, Count, Real, Record, Share

__all__ = [
    "Algorithm",
    "History",
    "KernelChange",
    "Kernels",
    "LayerKernels",
    "Masks",
    "StepEntry",
    "TrainReport",
    "TrainedCost",
    "Validation",
    "ValidationEntry",
]


class Validation(Record, frozen=True, kw_only=True):
    """Figures on validation data; empty where there is none. Not every loss has an accuracy."""

    loss: Real | None = None
    examples: Count | None = None
    accuracy: Share | None = None


class Algorithm(Record, frozen=True, kw_only=True):
    """An algorithm and how its masks moved: explored weights, weights that were never dropped, and churn."""

    algorithm: str
    layers: Count | None = None
    itop: Share | None = None
    doc: Share | None = None
    churn: Share | None = None


class Masks(Record, frozen=True, kw_only=True):
    """The masked weights at the end."""

    layers: Count
    nnz: Count
    numel: Count
    algorithms: tuple[Algorithm, ...]


class LayerKernels(Record, frozen=True, kw_only=True):
    """The kernels of a masked layer, ``sparse`` or ``dense``, and why it has these."""

    name: str
    kernels: str
    reason: str


class KernelChange(Record, frozen=True, kw_only=True):
    """Layers that got other kernels in training, since their masks had changed.

    Attributes:
        step: after which.
        sparse: layers that run on sparse kernels from then on.
        dense: layers that run on dense kernels again.
    """

    step: Count
    sparse: tuple[str, ...]
    dense: tuple[str, ...]


class Kernels(Record, frozen=True, kw_only=True):
    """The kernels that were asked for, and those of each masked layer.

    Attributes:
        setting: that was asked for.
        layers: as they are now, or at the end.
        changes: in the order of the run; None if there was none.
    """

    setting: str
    layers: tuple[LayerKernels, ...]
    changes: tuple[KernelChange, ...] | None = None


class TrainedCost(Record, frozen=True, kw_only=True):
    """What one example costs; the fields are those of ``inspect``."""

    params: Count
    nnz: Count
    macs: Count
    effective_macs: Count
    attention_macs: Count


class StepEntry(Record, frozen=True, kw_only=True):
    """A log line of steps.

    Attributes:
        step: the last one.
        epoch: that it belongs to, from 0.
        loss: mean since the line before.
        lr: learning rate.
        examples_per_second: of all ranks.
        original_examples_per_second_estimate: of a dense model of as many multiply-accumulates.
        nnz: active weights of all masks.
        itop: explored weights, as the next two where one algorithm follows its masks.
        doc: weights that were never dropped.
        churn: active weights that the last update of the masks brought.
    """

    step: Count
    epoch: Count | None = None
    loss: Real | None = None
    lr: Amount | None = None
    examples_per_second: Amount | None = None
    original_examples_per_second_estimate: Amount | None = None
    nnz: Count | None = None
    itop: Share | None = None
    doc: Share | None = None
    churn: Share | None = None


class ValidationEntry(Record, frozen=True, kw_only=True):
    """A log line of a validation."""

    step: Count
    epoch: Count | None = None
    loss: Real | None = None
    examples: Count | None = None
    accuracy: Share | None = None


class History(Record, frozen=True, kw_only=True):
    """How the figures went."""

    steps: tuple[StepEntry, ...]
    validations: tuple[ValidationEntry, ...]


class TrainReport(Record, frozen=True, kw_only=True):
    """A training.

    Attributes:
        model: the file that was read.
        out: the file that was written.
        steps: that were made.
        epochs: that were complete.
        loss: of the last step; None where none was made.
        validation: of what was written.
        best_step: after which that was, where the best state was kept.
        stopped_early: whether the training ended since nothing got better.
        teacher: that it learned from.
        kernels: of masked layers.
        examples_per_second: of all ranks, without validation; None where no step was made.
        original_examples_per_second_estimate: of a dense model of as many multiply-accumulates; None where it was not
            estimated.
        seed: of random draws.
        sparsity: the masked weights at the end.
        inference_mode: nodes that were exported in training mode.
        cost: None where it is not known.
        history: how the figures went.
        device: that it ran on.
        ranks: how many processes trained together.
        checkpoints: their folder; None where none were kept.
        seconds: that it took.
    """

    schema: int = SCHEMA
    model: str
    out: str
    steps: Count
    epochs: Count | None = None
    loss: Real | None
    validation: Validation
    best_step: Count | None = None
    stopped_early: bool | None = None
    teacher: str | None = None
    kernels: Kernels | None = None
    examples_per_second: Amount | UnsetType | None = UNSET
    original_examples_per_second_estimate: Amount | UnsetType | None = UNSET
    seed: int | None = None
    sparsity: Masks
    inference_mode: tuple[str, ...] | None = None
    cost: TrainedCost | UnsetType | None = UNSET
    history: History | None = None
    device: str
    ranks: Count | None = None
    checkpoints: str | UnsetType | None = UNSET
    seconds: Amount
