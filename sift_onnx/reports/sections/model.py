"""Sections about a model as it is: transform, inspect, check, masks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sift_onnx.errors import listing
from sift_onnx.records.check import CheckReport
from sift_onnx.records.cost import CostReport
from sift_onnx.records.transform import TransformReport
from sift_onnx.reports.charts.canvas import charts_html
from sift_onnx.reports.charts.layers import budget_chart, layers_chart
from sift_onnx.reports.charts.masks import MaskPicture, mask_chart
from sift_onnx.reports.documents import Document
from sift_onnx.reports.layer_groups import shown_costs
from sift_onnx.reports.numbers import dims, si
from sift_onnx.reports.page.markup import Markup, join, tag
from sift_onnx.reports.page.notes import notes_html
from sift_onnx.reports.page.table import Table, table_html

__all__ = ["check_html", "inspect_html", "mask_html", "transform_html", "transform_words"]


def transform_words(report: TransformReport) -> str:
    """What was done, in a line."""
    totals, name = report.totals, report.pass_ or "transform"
    title = "recipe" if name == "recipe" else name.replace("-", " ").capitalize()
    at = f" at sparsity {report.sparsity:g}" if report.sparsity else ""
    masked = sum(layer.status == "sparse" for layer in report.layers)
    return (
        f"{title}{at}: {masked} of {len(report.layers)} layers masked, weight MACs times "
        f"{totals.weight_macs_ratio:.6f}, {totals.search_space:,} weights to search among"
    )


def transform_html(document: Document[TransformReport], prefix: str) -> Markup:
    """Budget, layers, and what kept its size."""
    data = document.data
    if not any(layer.macs_before for layer in data.layers):
        return tag("p", "The model has no weight layer.")
    charts = charts_html([c for c in (budget_chart(data), layers_chart(data)) if c is not None], prefix)
    rows = [
        (str(p.size), listing(p.layers, 3), f"{p.macs_share:.1%}", p.reason, p.node, p.op) for p in data.pinned or ()
    ]
    table = Table.of("Sizes that cannot grow", "size|<layers|share of MACs|<why|<node|<operator", rows)
    summary = f"{len(rows)} size{'s' * (len(rows) != 1)} that cannot grow"
    kept = tag("details", tag("summary", summary), table_html(table)) if rows else ""
    notes = [*(data.warnings or ()), *(f"No rule covers {node}." for node in data.unknown or ())]
    return join(charts, kept, notes_html(notes))


def inspect_html(document: Document[CostReport], prefix: str) -> Markup:
    """The table of layers, and the totals in words."""
    totals = document.data.totals
    sparsity = 1 - totals.nnz / max(totals.params, 1)
    words = (
        f"{totals.params:,} weights, {totals.nnz:,} active (sparsity {sparsity:.2%}); "
        f"{si(totals.effective_macs)} MACs of active weights, {si(totals.macs)} if executed dense"
    )
    if totals.attention_macs:
        words += f"; {si(totals.attention_macs)} MACs of attention products"
    shown = shown_costs(document.data.layers)
    rows = [
        (
            layer.name,
            layer.kind,
            dims(layer.shape),
            f"{layer.params:,}",
            f"{layer.nnz:,}",
            f"{layer.sparsity:.2%}",
            si(layer.macs),
            si(layer.effective_macs),
        )
        for layer in shown
    ]
    columns = "<weight|<kind|<shape|weights|active|sparsity|dense MACs|MACs of active"
    table = table_html(Table.of(f"Layers of {document.model}", columns, rows))
    repeated = len(shown) < len(document.data.layers)
    note = tag("p", "Layers that repeat are one row, with their sums.", class_="soft") if repeated else ""
    return join(tag("p", words + "."), note, table, notes_html(document.data.warnings))


def check_html(document: Document[CheckReport], prefix: str) -> Markup:
    """Each check with its finding."""
    data = document.data
    failed = sum(not check.ok for check in data.checks)
    words = f"{failed} of {len(data.checks)} checks failed" if failed else f"All {len(data.checks)} checks passed"
    if data.max_abs_error is not None:
        words += f"; largest difference from {data.reference or 'the reference'}: {data.max_abs_error:.3g}"
    rows = [(c.name, "passed" if c.ok else tag("span", "FAILED", class_="bad"), c.detail) for c in data.checks]
    return join(
        tag("p", words + "."), table_html(Table.of(f"Checks of {document.model}", "<check|<result|<detail", rows))
    )


def mask_html(pictures: Sequence[MaskPicture], prefix: str) -> Markup:
    """A picture per mask."""
    total = sum(math.prod(p.shape) for p in pictures)
    words = f"{len(pictures)} weights with {total:,} positions; the first axis of a weight is its rows."
    return join(tag("p", words, class_="soft"), charts_html([mask_chart(p) for p in pictures], prefix))
