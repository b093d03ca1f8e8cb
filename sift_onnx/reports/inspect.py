"""The result of ``inspect`` as a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from sift_onnx.records.cost import CostReport
from sift_onnx.reports.active_zeros import zeros_line
from sift_onnx.reports.fitting_table import FittingTable
from sift_onnx.reports.layer_groups import remark, shown_costs
from sift_onnx.reports.left_out import left_out_tables
from sift_onnx.reports.numbers import dims, si

__all__ = ["inspect_tables"]


def inspect_tables(report: CostReport, title: str, full: bool = False) -> Iterator[RenderableType]:
    """Tables of layers and of those left out, and a line of totals, for what ``inspect`` reports.

    Args:
        report: of the model.
        title: the model's name.
        full: whether every layer has a row in models of any size.
    """
    totals, zeros = report.totals, report.totals.active_zeros
    with_zeros = "|active zeros" if zeros else ""
    has_quads = any(layer.live_quads is not None for layer in report.layers)
    with_quads = "|live quads" if has_quads else ""
    counts = f"parameters|active{with_zeros}|sparsity{with_quads}|dense MACs|MACs of active|search space"
    columns = f"<weight|<kind|<shape|{counts}"
    spare = ("search space", "kind", "dense MACs", "parameters", "active zeros")
    table = FittingTable(columns, title=title, show_footer=True, spare=spare)
    footers = (
        *("total", "", ""),
        f"{totals.params:,}",
        f"{totals.nnz:,}",
        *((f"{zeros:,}",) if zeros else ()),
        f"{1 - totals.nnz / totals.params:.2%}" if totals.params else "",
        *(("",) if has_quads else ()),
        si(totals.macs),
        si(totals.effective_macs),
        f"{totals.search_space:,}",
    )
    for column, footer in zip(table.columns, footers, strict=True):
        column.footer = footer
    shown = shown_costs(report.layers, full)
    for layer in shown:
        table.add_row(
            layer.name,
            layer.kind,
            dims(layer.shape),
            f"{layer.params:,}",
            f"{layer.nnz:,}",
            *((f"{layer.active_zeros:,}" if layer.active_zeros else "",) if zeros else ()),
            f"{layer.sparsity:.2%}",
            *((f"{layer.live_quads:.2%}" if layer.live_quads is not None else "",) if has_quads else ()),
            si(layer.macs),
            si(layer.effective_macs),
            f"{layer.search_space:,}" if layer.search_space else "",
        )
    yield table
    yield from remark(len(report.layers), len(shown))
    yield from left_out_tables(report.left_out)
    yield from zeros_line(title, totals.nnz, zeros)
    if totals.attention_macs:
        yield f"MACs of activation products (attention): {totals.attention_macs:,}"
