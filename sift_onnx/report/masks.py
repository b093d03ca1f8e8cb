"""The results of ``prune`` and ``densify`` as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from sift_onnx.records.transform import TransformReport
from sift_onnx.report.fitting_table import FittingTable
from sift_onnx.report.left_out import left_out_tables
from sift_onnx.report.numbers import dims, si

__all__ = ["mask_tables"]


def mask_tables(report: TransformReport, title: str) -> Iterator[RenderableType]:
    """A table of layers and lines of totals for what ``prune`` or ``densify`` reports."""
    table = FittingTable(title=title, spare=("kind", "MACs before", "shape", "MACs after"))
    for header, justify in (
        ("weight", "left"),
        ("kind", "left"),
        ("shape", "left"),
        ("non-zeros", "right"),
        ("sparsity", "right"),
        ("MACs before", "right"),
        ("MACs after", "right"),
        ("status", "left"),
    ):
        table.add_column(header, justify=justify)
    for layer in report.layers:
        table.add_row(
            layer.name,
            layer.kind,
            dims(layer.shape_after),
            f"{layer.nnz:,}",
            f"{layer.sparsity:.2%}",
            si(layer.macs_before),
            si(layer.macs_after),
            layer.status + (f": {layer.reason}" if layer.reason else ""),
        )
    yield table
    yield from left_out_tables(report.left_out or ())
    totals = report.totals
    yield (
        f"weight MACs      {totals.weight_macs_before:,} -> {totals.weight_macs_after:,} "
        f"(ratio {totals.weight_macs_ratio:.6f})"
    )
    yield f"non-zeros        {totals.nnz_before:,} -> {totals.nnz_after:,}"
    yield f"search space     {totals.search_space:,} weights under masks"
