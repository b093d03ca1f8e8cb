"""The result of ``quantize`` as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from sift_onnx.records.quantization import QuantizationReport
from sift_onnx.reports.evaluation import evaluation_words
from sift_onnx.reports.fitting_table import FittingTable
from sift_onnx.reports.numbers import dims

__all__ = ["quantization_words"]


def quantization_words(report: QuantizationReport) -> Iterator[RenderableType]:
    """A table of layers, a line of what it amounts to, and accuracies before and after."""
    totals = report.totals
    columns = "<weight|<operator|<shape|<type|non-zeros|sparsity|rounded to zero|live quads"
    title = f"Quantized ({report.format}, {'per channel' if report.per_channel else 'per tensor'})"
    table = FittingTable(columns, title=title, spare=("rounded to zero", "operator", "shape"))
    for layer in report.layers:
        table.add_row(
            layer.name,
            layer.op,
            dims(layer.shape),
            layer.type,
            f"{layer.nnz:,}",
            f"{layer.sparsity:.2%}",
            f"{layer.zeros:,}" if layer.zeros else "",
            "" if layer.live_quads is None else f"{layer.live_quads:.2%}",
        )
    yield table
    parts = [f"{1 - totals.nnz / totals.params:.2%} of the quantized weights pruned"] if totals.params else []
    parts.append(f"{totals.live_quads:.2%} of quads live")
    if report.masks:
        parts.append(f"{report.masks} mask{'s' * (report.masks != 1)} kept bit for bit")
    if totals.bytes_before and totals.bytes_after:
        parts.append(f"{totals.bytes_before / 1e6:.2f} MB before, {totals.bytes_after / 1e6:.2f} MB after")
    yield ", ".join(parts)
    if report.accuracy is not None:
        yield from evaluation_words(report.accuracy)
