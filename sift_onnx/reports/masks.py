"""The results of ``prune`` and ``densify`` as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from sift_onnx.records.transform import LayerChange, TransformReport
from sift_onnx.reports.fitting_table import FittingTable
from sift_onnx.reports.layer_groups import remark, shown_changes
from sift_onnx.reports.left_out import left_out_tables
from sift_onnx.reports.numbers import dims, si

__all__ = ["figures", "mask_tables", "status_text", "totals_lines"]


def mask_tables(report: TransformReport, title: str, full: bool = False) -> Iterator[RenderableType]:
    """A table of layers and lines of totals for what ``prune`` or ``densify`` reports.

    Args:
        report: of the pass.
        title: of the table.
        full: whether every layer has a row in models of any size.
    """
    columns = "<weight|<kind|<shape|non-zeros|sparsity|MACs before|MACs after|<status"
    table = FittingTable(columns, title=title, spare=("kind", "MACs before", "shape", "MACs after"))
    shown = shown_changes(report.layers, full)
    for layer in shown:
        table.add_row(layer.name, layer.kind, dims(layer.shape_after), *figures(layer), status_text(layer))
    yield table
    yield from remark(len(report.layers), len(shown))
    yield from left_out_tables(report.left_out or ())
    yield from totals_lines(report)


def figures(layer: LayerChange) -> tuple[str, str, str, str]:
    """Non-zeros, sparsity, and MACs before and after, as cells of a table."""
    return f"{layer.nnz:,}", f"{layer.sparsity:.2%}", si(layer.macs_before), si(layer.macs_after)


def status_text(layer: LayerChange) -> str:
    """What became of a layer, and why."""
    return layer.status + (f": {layer.reason}" if layer.reason else "")


def totals_lines(report: TransformReport) -> Iterator[str]:
    """MACs, non-zeros and the search space of the whole model."""
    totals = report.totals
    yield (
        f"weight MACs      {totals.weight_macs_before:,} -> {totals.weight_macs_after:,} "
        f"(ratio {totals.weight_macs_ratio:.6f})"
    )
    if totals.attention_macs_before:
        ratio = (totals.attention_macs_after or 0) / totals.attention_macs_before
        unbudgeted = ", not part of the budget unless `budget='total'`" if ratio != 1 else ""
        yield (
            f"attention MACs   {totals.attention_macs_before:,} -> {totals.attention_macs_after:,} "
            f"(ratio {ratio:.4f}{unbudgeted})"
        )
    yield f"non-zeros        {totals.nnz_before:,} -> {totals.nnz_after:,}"
    widths = f"; widths times {report.width_factor:.4f}" if report.width_factor not in (None, 1) else ""
    yield f"search space     {totals.search_space:,} masked weights{widths}"
