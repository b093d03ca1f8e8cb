"""The weight layers that a result lacks, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sift_onnx.records.cost import LeftOut
from sift_onnx.reports.fitting_table import FittingTable
from sift_onnx.reports.numbers import dims

__all__ = ["left_out_tables"]


def left_out_tables(entries: Sequence[LeftOut]) -> Iterator[FittingTable]:
    """A table of the layers that are left out; nothing where none is."""
    if not entries:
        return
    columns = "<weight|<shape|parameters|<node|<operator|<why"
    table = FittingTable(columns, title="Layers left out", spare=("operator", "parameters"))
    for entry in entries:
        table.add_row(entry.name, dims(entry.shape), f"{entry.params:,}", entry.node, entry.op, entry.reason)
    yield table
