"""What ``evaluate`` reports."""

from __future__ import annotations

from sift_onnx.records.record import SCHEMA, Count, Real, Record

__all__ = ["EvaluationReport", "EvaluationRun", "MetricDifference"]


class EvaluationRun(Record, frozen=True, kw_only=True):
    """The figures of a model on a back end.

    Attributes:
        model: the file, as given.
        baseline: whether it is what others are compared with.
        backend: as it was chosen.
        threads: that it ran on.
        metrics: by name. Accuracies are shares from 0 to 1; losses are means over examples, or over tokens.
    """

    model: str
    baseline: bool = False
    backend: str
    threads: Count
    metrics: dict[str, Real]


class MetricDifference(Record, frozen=True, kw_only=True):
    """How far a model is from the baseline on the same back end.

    Attributes:
        model: the file.
        baseline: the file that it is compared with.
        backend: of both.
        metric: its name.
        difference: the model's figure less the baseline's.
    """

    model: str
    baseline: str
    backend: str
    metric: str
    difference: Real


class EvaluationReport(Record, frozen=True, kw_only=True):
    """Figures of models on the same examples.

    Attributes:
        data: the data, and which part of it.
        task: ``classification``, ``next-token``, ``regression``, or ``custom`` where all metrics are the user's.
        examples: how many there were.
        batch: examples per run; the last run is filled up and what it adds is left out.
        runs: one for each model on each back end.
        differences: from the baseline; empty without one.
        warnings: one line each.
        seconds: that it took.
    """

    schema: int = SCHEMA
    data: str
    task: str
    examples: Count
    batch: Count
    runs: tuple[EvaluationRun, ...]
    differences: tuple[MetricDifference, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
