"""The page of ``sift-onnx report``: sections in the order in which a model is made, trained, timed and simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sift_onnx.report.charts.masks import MaskPicture
from sift_onnx.report.documents import Document, sparsities
from sift_onnx.report.numbers import si
from sift_onnx.report.page.frame import Section, document
from sift_onnx.report.page.markup import Markup, join, tag
from sift_onnx.report.page.table import Table, table_html
from sift_onnx.report.sections.model import check_html, inspect_html, mask_html, transform_html, transform_words
from sift_onnx.report.sections.runs import benchmark_html, profile_html
from sift_onnx.report.sections.simulation import bounds_html, simulation_html, simulation_words
from sift_onnx.report.sections.training import accuracy_html, training_html
from sift_onnx.report.simulate import time_text

__all__ = ["results_page"]


def results_page(documents: Sequence[Document], masks: Sequence[tuple[str, Sequence[MaskPicture]]] = ()) -> str:
    """The page as text.

    Args:
        documents: the results, at least one, of one model or of several.
        masks: pictures of masks, by the model that they are of.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    of = {kind: [d for d in documents if d.kind == kind] for kind in dict.fromkeys(d.kind for d in documents)}
    known = sparsities(documents)
    models = list(dict.fromkeys(d.model for d in documents if d.kind != "benchmark"))
    sections = [Section("Results", _overview(documents))]

    def add(title: str, content: Markup | None) -> None:
        if content:
            sections.append(Section(title, content))

    add("Transform", _each(of.get("transform", ()), "transform", transform_html))
    add("Masks", join(*(join(tag("h3", name), mask_html(p, f"masks-{i}")) for i, (name, p) in enumerate(masks))))
    add("Training", training_html(of["train"], "training") if "train" in of else None)
    add("Accuracy against FLOPs", accuracy_html(of.get("train", ()), "accuracy"))
    add("Latency", _each(of.get("benchmark", ()), "latency", lambda d, prefix: benchmark_html(d, known, prefix)))
    add("Profile", _each(of.get("profile", ()), "profile", profile_html))
    simulations = of.get("simulate", ())
    add(
        "Simulator",
        join(
            bounds_html(simulations, "bounds"),
            _each(simulations, "simulator", _simulation),
        ),
    )
    add("Layers", _each(of.get("inspect", ()), "layers", inspect_html))
    add("Checks", _each(of.get("check", ()), "checks", check_html))
    names = ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")
    count = f"{len(documents)} result{'s' * (len(documents) != 1)} of sift-onnx"
    return document(names or "Benchmark", count + ("; each model has its own headings" if len(models) > 1 else ""),
                    sections)  # fmt: skip


def _each(documents: Sequence[Document], prefix: str, html: Callable[[Document, str], Markup]) -> Markup:
    headings = [_heading(d) for d in documents]
    # Of two results of one model, the files tell which is which.
    told = [
        f"{h} ({Path(d.path).name})" if headings.count(h) > 1 else h for h, d in zip(headings, documents, strict=True)
    ]
    return join(*(join(tag("h3", told[i]), html(d, f"{prefix}-{i}")) for i, d in enumerate(documents)))


def _simulation(document: Document, prefix: str) -> Markup:
    return join(tag("p", simulation_words(document.data), class_="soft"), simulation_html(document.data, prefix))


def _heading(document: Document) -> str:
    out = document.data.get("out")
    return f"{document.model} \u2192 {Path(out).name}" if out else document.model


def _overview(documents: Sequence[Document]) -> Markup:
    rows = [(d.model, _verb(d), _finding(d), Path(d.path).name) for d in documents]
    return table_html(Table.of("Results", "<model|<verb|<finding|<file", rows))


def _verb(document: Document) -> str:
    name = document.data.get("pass")
    return str(name) if document.kind == "transform" and name in ("prune", "densify") else document.kind


def _finding(document: Document) -> str:
    """The result in a line."""
    data = document.data
    match document.kind:
        case "transform":
            return transform_words(data)
        case "inspect":
            totals = data["totals"]
            share = 1 - totals["nnz"] / max(totals["params"], 1)
            return f"{totals['params']:,} weights, {share:.2%} of them pruned; {si(totals['effective_macs'])} MACs"
        case "check":
            failed = [check["name"] for check in data["checks"] if not check["ok"]]
            return f"failed: {', '.join(failed)}" if failed else "all checks passed"
        case "train":
            validation = data["validation"]
            found = [f"{key} {validation[key]:.4g}" for key in ("accuracy", "loss") if key in validation]
            return f"{data['steps']:,} steps" + (f"; validation {', '.join(found)}" if found else "")
        case "benchmark":
            return f"{len({run['model'] for run in data['runs']})} models, {len(data['runs'])} runs"
        case "profile":
            return f"{data['total_ms']:.3f} ms on {data['backend']}, batch {data['batch']}"
    return f"{time_text(data['totals']['seconds'])} on {data['preset']}, batch {data['batch']} (simulated)"
