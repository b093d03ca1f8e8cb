"""The page of ``sift-onnx report``: sections in the order in which a model is made, trained, timed and simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sift_onnx.errors import listing
from sift_onnx.records.benchmark import BenchmarkReport
from sift_onnx.records.check import CheckReport
from sift_onnx.records.cost import CostReport
from sift_onnx.records.evaluation import EvaluationReport
from sift_onnx.records.profile import ProfileReport
from sift_onnx.records.record import Record
from sift_onnx.records.simulate import SimulationReport
from sift_onnx.records.train import TrainReport
from sift_onnx.records.transform import TransformReport
from sift_onnx.reports.answers import answers
from sift_onnx.reports.charts.masks import MaskPicture
from sift_onnx.reports.documents import Document, documents_of, sparsities
from sift_onnx.reports.numbers import si
from sift_onnx.reports.page.frame import Section, document
from sift_onnx.reports.page.markup import Markup, join, tag
from sift_onnx.reports.page.table import Table, table_html
from sift_onnx.reports.sections.answers import answers_html
from sift_onnx.reports.sections.evaluation import evaluation_html
from sift_onnx.reports.sections.model import check_html, inspect_html, mask_html, transform_html, transform_words
from sift_onnx.reports.sections.runs import benchmark_html, profile_html
from sift_onnx.reports.sections.simulation import bounds_html, simulation_html, simulation_words
from sift_onnx.reports.sections.training import accuracy_html, training_html
from sift_onnx.reports.simulate import time_text

__all__ = ["results_page"]

Report = TypeVar("Report", bound=Record)


def results_page(documents: Sequence[Document[Record]], masks: Sequence[tuple[str, Sequence[MaskPicture]]] = ()) -> str:
    """The page as text.

    Args:
        documents: the results, at least one, of one model or of several.
        masks: pictures of masks, by the model that they are of.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    known = sparsities(documents)
    models = list(dict.fromkeys(d.model for d in documents if d.kind not in ("benchmark", "evaluate")))
    sections = [Section("Results", join(answers_html(answers(documents)), _overview(documents)))]

    def add(title: str, content: Markup | None) -> None:
        if content:
            sections.append(Section(title, content))

    trainings, simulations = documents_of(TrainReport, documents), documents_of(SimulationReport, documents)
    timed = documents_of(BenchmarkReport, documents)
    add("Transform", _each(documents_of(TransformReport, documents), "transform", transform_html))
    add("Masks", join(*(join(tag("h3", name), mask_html(p, f"masks-{i}")) for i, (name, p) in enumerate(masks))))
    add("Training", training_html(trainings, "training") if trainings else None)
    add("Accuracy against FLOPs", accuracy_html(trainings, "accuracy"))
    add("Evaluation", _each(documents_of(EvaluationReport, documents), "evaluation", evaluation_html))
    add("Latency", _each(timed, "latency", lambda d, prefix: benchmark_html(d, known, prefix)))
    add("Profile", _each(documents_of(ProfileReport, documents), "profile", profile_html))
    add("Simulator", join(bounds_html(simulations, "bounds"), _each(simulations, "simulator", _simulation)))
    add("Layers", _each(documents_of(CostReport, documents), "layers", inspect_html))
    add("Checks", _each(documents_of(CheckReport, documents), "checks", check_html))
    count = f"{len(documents)} result{'s' * (len(documents) != 1)} of sift-onnx"
    subtitle = count + ("; each model has its own headings" if len(models) > 1 else "")
    return document(listing(models, 3) or "Benchmark", subtitle, sections)


def _each(
    documents: Sequence[Document[Report]], prefix: str, html: Callable[[Document[Report], str], Markup]
) -> Markup:
    headings = [_heading(d) for d in documents]
    # Two results of one model are distinguished by their files.
    titles = [
        f"{h} ({Path(d.path).name})" if headings.count(h) > 1 else h for h, d in zip(headings, documents, strict=True)
    ]
    return join(*(join(tag("h3", titles[i]), html(d, f"{prefix}-{i}")) for i, d in enumerate(documents)))


def _simulation(document: Document[SimulationReport], prefix: str) -> Markup:
    return join(tag("p", simulation_words(document.data), class_="soft"), simulation_html(document.data, prefix))


def _heading(document: Document[Record]) -> str:
    out = getattr(document.data, "out", None)
    return f"{document.model} \u2192 {Path(out).name}" if out else document.model


def _overview(documents: Sequence[Document[Record]]) -> Markup:
    rows = [(_models(d), _verb(d), _finding(d.data), Path(d.path).name) for d in documents]
    return table_html(Table.of("Results", "<model|<verb|<finding|<file", rows))


def _models(document: Document[Record]) -> str:
    if isinstance(document.data, (BenchmarkReport, EvaluationReport)):
        return listing(list(dict.fromkeys(run.model for run in document.data.runs)), 2)
    return document.model


def _verb(document: Document[Record]) -> str:
    data = document.data
    if isinstance(data, TransformReport) and data.pass_ in ("prune", "densify"):
        return data.pass_
    return document.kind


def _finding(data: Record) -> str:
    """The result in a line."""
    match data:
        case TransformReport():
            return transform_words(data)
        case CostReport(totals=totals):
            share = 1 - totals.nnz / max(totals.params, 1)
            return f"{totals.params:,} weights, {share:.2%} of them pruned; {si(totals.effective_macs)} MACs"
        case CheckReport(checks=checks):
            failed = [check.name for check in checks if not check.ok]
            return f"failed: {', '.join(failed)}" if failed else "all checks passed"
        case TrainReport(validation=validation):
            figures = {"accuracy": validation.accuracy, "loss": validation.loss}
            found = [f"{name} {value:.4g}" for name, value in figures.items() if value is not None]
            return f"{data.steps:,} steps" + (f"; validation {', '.join(found)}" if found else "")
        case EvaluationReport(runs=runs):
            return f"{len({run.model for run in runs})} models on {data.examples:,} examples of {data.data}"
        case BenchmarkReport(runs=runs):
            return f"{len({run.model for run in runs})} models, {len(runs)} runs"
        case ProfileReport():
            return f"{data.total_ms:.3f} ms on {data.backend}, batch {data.batch}"
        case SimulationReport():
            return f"{time_text(data.totals.seconds)} on {data.preset}, batch {data.batch} (simulated)"
    raise AssertionError(type(data))
