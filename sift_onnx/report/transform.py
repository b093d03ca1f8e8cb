"""The result of ``transform`` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from sift_onnx.report.fitting_table import FittingTable
from sift_onnx.report.left_out import left_out_tables
from sift_onnx.report.masks import mask_tables
from sift_onnx.report.numbers import dims, si

__all__ = ["transform_tables"]


def transform_tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Tables and lines for the JSON document of ``sift-onnx transform``."""
    for step in document.get("steps", []):
        # Each pass of a recipe sees what the others have made of their layers; that is told once.
        changed = [layer for layer in step.get("layers", []) if layer["status"] != "unchanged"]
        if changed:
            yield from _tables({**step, "layers": changed, "left_out": []})
    if "steps" in document:
        yield from left_out_tables(document)
        yield "All passes together:"
        yield from _summary(document)
    else:
        yield from _tables(document)


def _tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    if "pinned" not in document:
        yield from mask_tables(document, document["pass"].capitalize())
        return
    spare = ("kind", "MACs before", "MACs after", "non-zeros", "shape before")
    table = FittingTable(title=_title(document), spare=spare)
    for header, justify in (
        ("weight", "left"),
        ("kind", "left"),
        ("shape before", "left"),
        ("shape after", "left"),
        ("non-zeros", "right"),
        ("sparsity", "right"),
        ("MACs before", "right"),
        ("MACs after", "right"),
        ("status", "left"),
    ):
        table.add_column(header, justify=justify)
    for layer in document["layers"]:
        status = layer["status"] + (f": {layer['reason']}" if layer["reason"] else "")
        if "weight_error" in layer:
            status += f", {layer['weight_error']:.1%} from the original"
        table.add_row(
            layer["name"],
            layer["kind"],
            dims(layer["shape_before"]),
            _parts(layer["parts"]) if "parts" in layer else dims(layer["shape_after"]),
            f"{layer['nnz']:,}",
            f"{layer['sparsity']:.2%}",
            si(layer["macs_before"]),
            si(layer["macs_after"]),
            status,
        )
    yield table
    if document["pinned"]:
        yield _pinned(document["pinned"])
    yield from left_out_tables(document)
    for entry in document["pinned"]:
        # A classifier's outputs belong to one layer; a hidden state holds the width of the whole network.
        if entry["op"] == "output" and entry["macs_share"] > 0.5:
            yield (
                f"The graph output {entry['node']!r} keeps the width {entry['size']} of layers with "
                f"{entry['macs_share']:.0%} of all MACs as it is; `resize_output={entry['node']!r}` would let it grow."
            )
    yield from _summary(document)


def _title(document: Mapping[str, Any]) -> str:
    pattern = document.get("pattern", "unstructured")
    masks = "" if pattern == "unstructured" else f", {pattern} masks"
    if document.get("sparsity") == 0:
        # Of the family's passes, the structured one.
        return f"Low rank at width {document['width_factor']:g}"
    return f"Sparse {document['pass'].capitalize()} at sparsity {document['sparsity']:g}{masks}"


def _parts(parts: Sequence[Mapping[str, Any]]) -> str:
    """What took a layer's place: ``4 x 64x64x3x3``, or a line for each of ``U 288x64x3x3`` and ``V 64x288x1x1``."""
    branches = [part for part in parts if part["role"] == "branch"]
    if branches:
        return f"{len(branches)} x {dims(branches[0]['shape'])}"
    return "\n".join(f"{part['role']} {dims(part['shape'])}" for part in parts)


def _pinned(entries: list[Mapping[str, Any]]) -> FittingTable:
    table = FittingTable(title="Sizes that stay as they are", spare=("operator", "share of MACs"))
    for header in ("size", "layers", "share of MACs", "why", "node", "operator"):
        table.add_column(header)
    for entry in entries:
        layers = ", ".join(entry["layers"][:3])
        more = f" and {len(entry['layers']) - 3} more" if len(entry["layers"]) > 3 else ""
        table.add_row(
            str(entry["size"]), layers + more, f"{entry['macs_share']:.1%}", entry["reason"], entry["node"], entry["op"]
        )
    return table


def _summary(document: Mapping[str, Any]) -> Iterator[str]:
    totals = document["totals"]
    yield (
        f"weight MACs      {totals['weight_macs_before']:,} -> {totals['weight_macs_after']:,} "
        f"(ratio {totals['weight_macs_ratio']:.6f})"
    )
    if totals.get("attention_macs_before"):
        ratio = totals["attention_macs_after"] / totals["attention_macs_before"]
        unbudgeted = ", not part of the budget unless `budget='total'`" if ratio != 1 else ""
        yield (
            f"attention MACs   {totals['attention_macs_before']:,} -> {totals['attention_macs_after']:,} "
            f"(ratio {ratio:.4f}{unbudgeted})"
        )
    yield f"non-zeros        {totals['nnz_before']:,} -> {totals['nnz_after']:,}"
    widths = f"; widths times {document['width_factor']:.4f}" if document["width_factor"] != 1 else ""
    yield f"search space     {totals['search_space']:,} weights under masks{widths}"
