"""The result of ``transform`` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace
from rich.console import RenderableType

from sift_onnx.errors import listing
from sift_onnx.records.reading import is_document_of, read_record
from sift_onnx.records.transform import Part, Pinned, TransformReport
from sift_onnx.reports.fitting_table import FittingTable
from sift_onnx.reports.layer_groups import remark, shown_changes
from sift_onnx.reports.left_out import left_out_tables
from sift_onnx.reports.masks import figures, mask_tables, status_text, totals_lines
from sift_onnx.reports.numbers import dims

__all__ = ["transform_tables"]


def transform_tables(report: TransformReport, full: bool = False) -> Iterator[RenderableType]:
    """Tables and lines for what ``transform`` reports.

    Args:
        report: of the passes.
        full: whether every layer has a row in models of any size.
    """
    if report.steps is None:
        yield from _tables(report, full)
        return
    for step in report.steps:
        if not is_document_of(step, TransformReport):
            continue
        part = read_record(step, TransformReport, "a pass's report")
        # Each pass of a recipe also lists layers that the others changed; each change is shown once.
        changed = tuple(layer for layer in part.layers if layer.status != "unchanged")
        if changed:
            yield from _tables(replace(part, layers=changed, left_out=()), full)
    yield from left_out_tables(report.left_out or ())
    yield "All passes together:"
    yield from totals_lines(report)


def _tables(report: TransformReport, full: bool) -> Iterator[RenderableType]:
    if report.pinned is None:
        yield from mask_tables(report, (report.pass_ or "").capitalize(), full)
        return
    spare = ("kind", "MACs before", "MACs after", "non-zeros", "shape before")
    columns = "<weight|<kind|<shape before|<shape after|non-zeros|sparsity|MACs before|MACs after|<status"
    table = FittingTable(columns, title=_title(report), spare=spare)
    shown = shown_changes(report.layers, full)
    for layer in shown:
        status = status_text(layer)
        if layer.weight_error is not None:
            status += f", {layer.weight_error:.1%} from the original"
        table.add_row(
            layer.name,
            layer.kind,
            dims(layer.shape_before),
            _parts(layer.parts) if layer.parts is not None else dims(layer.shape_after),
            *figures(layer),
            status,
        )
    yield table
    yield from remark(len(report.layers), len(shown))
    if report.pinned:
        yield _pinned(report.pinned)
    if report.centred:
        centred = listing([repr(name) for name in report.centred], 3)
        yield f"Added nodes subtract the mean of old features from {centred}, which normalizations read."
    yield from left_out_tables(report.left_out or ())
    for entry in report.pinned:
        # A classifier's outputs belong to one layer; a hidden state holds the width of the whole network.
        if entry.op == "output" and entry.macs_share > 0.5:
            yield (
                f"The graph output {entry.node!r} keeps the width {entry.size} of layers with "
                f"{entry.macs_share:.0%} of all MACs as it is; `resize_output={entry.node!r}` would let it grow."
            )
    yield from totals_lines(report)


def _title(report: TransformReport) -> str:
    pattern = report.pattern or "unstructured"
    masks = "" if pattern == "unstructured" else f", {pattern} masks"
    if report.sparsity == 0:
        # Of the family's passes, the structured one.
        return f"Low rank at width {report.width_factor:g}"
    return f"Sparse {(report.pass_ or '').capitalize()} at sparsity {report.sparsity:g}{masks}"


def _parts(parts: Sequence[Part]) -> str:
    """What took a layer's place: ``4 x 64x64x3x3``, or a line for each of ``U 288x64x3x3`` and ``V 64x288x1x1``."""
    branches = [part for part in parts if part.role == "branch"]
    if branches:
        return f"{len(branches)} x {dims(branches[0].shape)}"
    return "\n".join(f"{part.role} {dims(part.shape)}" for part in parts)


def _pinned(entries: Sequence[Pinned]) -> FittingTable:
    columns = "<size|<layers|<share of MACs|<why|<node|<operator"
    table = FittingTable(columns, title="Sizes that cannot grow", spare=("operator", "share of MACs"))
    for entry in entries:
        layers = listing(entry.layers, 3)
        table.add_row(str(entry.size), layers, f"{entry.macs_share:.1%}", entry.reason, entry.node, entry.op)
    return table
