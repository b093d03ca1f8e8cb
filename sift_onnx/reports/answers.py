"""What a set of results says in a few figures: cost, accuracy, latency, simulated speed, beside the original."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sift_onnx.records.benchmark import BenchmarkReport, BenchmarkRun
from sift_onnx.records.evaluation import EvaluationReport
from sift_onnx.records.record import Record
from sift_onnx.records.simulate import SimulationReport
from sift_onnx.records.train import TrainReport
from sift_onnx.records.transform import TransformReport
from sift_onnx.reports.documents import Document, documents_of
from sift_onnx.reports.evaluation import difference_text
from sift_onnx.reports.simulate import run_text
from sift_onnx.reports.trained_models import best_gain, group_points, points_of

__all__ = ["Answer", "answers", "factor_text"]

_SAME_MACS = 1e-3
_DENSE = "onnxruntime"  # multiplies by zeros too


class Answer(Record, frozen=True, kw_only=True):
    """One figure.

    Attributes:
        topic: ``cost``, ``accuracy``, ``latency`` or ``simulated``.
        figure: in a few words.
        detail: what was compared with what, in a sentence.
    """

    topic: str
    figure: str
    detail: str


def answers(documents: Sequence[Document[Record]]) -> list[Answer]:
    """The figures that the documents have, in the order in which a model is made, trained, timed and simulated."""
    found = [
        *_cost(documents_of(TransformReport, documents)),
        *_accuracy(documents_of(TrainReport, documents)),
        *(answer for d in documents_of(EvaluationReport, documents) for answer in _evaluated(d.data)),
        *(answer for d in documents_of(BenchmarkReport, documents) for answer in _latency(d.data)),
        *(answer for d in documents_of(SimulationReport, documents) for answer in _simulated(d.data)),
    ]
    return list(dict.fromkeys(found))


def factor_text(ratio: float) -> str:
    """How a time compares with another: ``1.44x slower``, ``7.8x faster``, ``as fast``; ``ratio`` is its quotient."""
    factor = max(ratio, 1 / ratio)
    if factor < 1.02:
        return "as fast"
    number = f"{factor:.2f}" if factor < 2 else f"{factor:.1f}" if factor < 100 else f"{factor:.0f}"
    return f"{number}x {'slower' if ratio > 1 else 'faster'}"


def _cost(documents: Sequence[Document[TransformReport]]) -> Iterator[Answer]:
    for document in documents:
        totals = document.data.totals
        before, after = totals.weight_macs_before, totals.weight_macs_after
        if not before:
            continue
        ratio = after / before
        what = "the same MACs" if abs(ratio - 1) < _SAME_MACS else f"{ratio:.2f}x the MACs"
        out = document.data.out
        name = f"{document.model} to {Path(out).name}" if isinstance(out, str) else document.model
        yield Answer(
            topic="cost",
            figure=what,
            detail=f"{name}: {before:,} before, {after:,} after; {totals.search_space:,} masked weights.",
        )


def _accuracy(documents: Sequence[Document[TrainReport]]) -> Iterator[Answer]:
    groups = group_points(points_of(documents))
    gain = best_gain(groups)
    if gain is None:
        return
    dense, best = gain
    rivals = sum(not g.dense and g.steps == best.steps for g in groups)
    of_dense, of_best = len(dense.values), len(best.values)
    runs = f"means of {of_dense} and {of_best} runs"
    if of_dense == of_best:
        runs = f"means of {of_best} runs each" if of_best > 1 else "one run each"
    chosen = f", the best of {rivals} with masks" if rivals > 1 else ""
    equal = dense.steps == best.steps
    steps = f"{dense.steps:,} steps each" if equal else f"{best.steps:,} and {dense.steps:,} steps"
    yield Answer(
        topic="accuracy",
        figure=f"{100 * (best.mean - dense.mean):+.2f} points",
        detail=(
            f"{best.name}: {best.mean:.2%}{chosen}; {dense.name}: {dense.mean:.2%}. {steps}, "
            f"{best.cost:,} and {dense.cost:,} MACs per example; {runs}."
        ),
    )


def _evaluated(report: EvaluationReport) -> Iterator[Answer]:
    """The first metric of each model that was compared with a baseline, back ends that agree in one answer."""
    metric = next((name for run in report.runs for name in run.metrics), None)
    found: dict[tuple[str, str, str], list[str]] = {}
    for difference in report.differences:
        if difference.metric == metric:
            key = difference_text(difference), difference.model, difference.baseline
            found.setdefault(key, []).append(difference.backend)
    for (text, model, baseline), backends in found.items():
        yield Answer(
            topic="accuracy",
            figure=text,
            detail=(
                f"{model} against {baseline} on {' and '.join(backends)}; "
                f"{report.examples:,} examples of {report.data}."
            ),
        )


def _latency(report: BenchmarkReport) -> Iterator[Answer]:
    """Each model on the back end where it is fastest, against the same file executed dense and against the baseline."""
    timed = [run for run in report.runs if not run.simulated]
    for batch in dict.fromkeys(run.batch for run in timed):
        runs = [run for run in timed if run.batch == batch]
        baseline = min((run for run in runs if run.baseline), key=lambda run: run.median_ms, default=None)
        for model in dict.fromkeys(run.model for run in runs if not run.baseline):
            own = [run for run in runs if run.model == model and not run.baseline]
            best = min(own, key=lambda run: run.median_ms)
            dense = next((run for run in own if run.backend == _DENSE and run is not best), None)
            if baseline is not None:
                yield _compared(report, best, baseline, "than the dense original")
            if dense is not None:
                yield _compared(report, best, dense, "than with its zeros multiplied")


def _compared(report: BenchmarkReport, run: BenchmarkRun, other: BenchmarkRun, than: str) -> Answer:
    paired = [r.median for r in report.ratios if (r.a, r.b, r.batch) == (run.label, other.label, run.batch)]
    ratio = paired[0] if paired else run.median_ms / other.median_ms
    how = factor_text(ratio)
    return Answer(
        topic="latency",
        figure=f"{how} {than}" if how != "as fast" else f"as fast {than.replace('than', 'as', 1)}",
        detail=(
            f"{run.label}: {_ms(run)}; {other.label}: {_ms(other)}. Batch {run.batch}, "
            f"{run.threads} thread{'s' * (run.threads != 1)}, interleaved."
        ),
    )


def _ms(run: BenchmarkRun) -> str:
    return f"{run.median_ms:.3g} ms" if run.median_ms < 1000 else f"{run.median_ms:,.0f} ms"


def _simulated(report: SimulationReport) -> Iterator[Answer]:
    speedup = report.speedup
    what = "a training step" if report.training else run_text(report)
    for key, than in (
        ("vs_dense_original", "than the dense original"),
        ("vs_dense_wide", "than with its zeros multiplied"),
    ):
        value: float | None = getattr(speedup, key)
        if value is None:
            continue
        low, high = getattr(speedup.bands, key) or (value, value)
        band = f"; {low:.2f} to {high:.2f} times as fast over unpublished parameters" if low != high else ""
        how = factor_text(1 / value)
        yield Answer(
            topic="simulated",
            figure=f"{how} {than}" if how != "as fast" else f"as fast {than.replace('than', 'as', 1)}",
            detail=(f"{Path(report.model).name}, {what} at batch {report.batch} on a model of {report.preset}{band}."),
        )
