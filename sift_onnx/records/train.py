"""What ``train`` reports, as far as it is shown."""

from __future__ import annotations

from sift_onnx.records.record import SCHEMA, Amount, Count, Real, Record, Share

__all__ = ["Algorithm", "History", "Masks", "StepEntry", "TrainReport", "TrainedCost", "Validation", "ValidationEntry"]


class Validation(Record, frozen=True, kw_only=True):
    """Figures on validation data; empty where there is none."""

    accuracy: Share | None = None
    loss: Real | None = None


class Algorithm(Record, frozen=True, kw_only=True):
    """An algorithm and how its masks moved: explored weights, weights that were never dropped, and churn."""

    algorithm: str
    itop: Share | None = None
    doc: Share | None = None
    churn: Share | None = None


class Masks(Record, frozen=True, kw_only=True):
    """The masked weights at the end."""

    layers: Count
    nnz: Count
    numel: Count
    algorithms: tuple[Algorithm, ...]


class TrainedCost(Record, frozen=True, kw_only=True):
    """What one example costs; the fields are those of ``inspect``."""

    params: Count
    nnz: Count
    macs: Count
    effective_macs: Count
    attention_macs: Count


class StepEntry(Record, frozen=True, kw_only=True):
    """A log line of steps."""

    step: Count
    loss: Real | None = None
    itop: Share | None = None
    doc: Share | None = None
    churn: Share | None = None


class ValidationEntry(Record, frozen=True, kw_only=True):
    """A log line of a validation."""

    step: Count
    loss: Real | None = None
    accuracy: Share | None = None


class History(Record, frozen=True, kw_only=True):
    """How the figures went."""

    steps: tuple[StepEntry, ...]
    validations: tuple[ValidationEntry, ...]


class TrainReport(Record, frozen=True, kw_only=True):
    """A training."""

    schema: int = SCHEMA
    model: str
    out: str
    steps: Count
    loss: Real | None
    validation: Validation
    device: str
    seconds: Amount
    sparsity: Masks
    cost: TrainedCost | None = None
    history: History | None = None
