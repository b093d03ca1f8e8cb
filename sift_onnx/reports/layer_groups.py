"""Layers that repeat, as one row: those whose names differ in numbers alone and whose shapes are the same."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from sift_onnx.records.cost import LayerCost
from sift_onnx.records.simulate import SimulatedLayer
from sift_onnx.records.transform import LayerChange

__all__ = ["MOST_SINGLE", "changes_of_each", "remark", "shown_changes", "shown_costs", "shown_simulated"]

# Longer lists are summarised.
MOST_SINGLE = 40

Layer = TypeVar("Layer", LayerChange, LayerCost, SimulatedLayer)


def shown_changes(layers: Sequence[LayerChange], full: bool = False) -> Sequence[LayerChange]:
    """What became of layers, with sums over those that repeat; sparsity is their mean, the error their largest.

    Short lists are returned as they are, and so are long ones if ``full``; this goes for the next two as well.
    """
    if full or len(layers) <= MOST_SINGLE:
        return layers
    return [
        _merged(
            group,
            ("macs_before", "macs_after", "nnz", "search_space"),
            sparsity=sum(layer.sparsity for layer in group) / len(group),
            weight_error=max((e for layer in group if (e := layer.weight_error) is not None), default=None),
        )
        for group in _groups(layers, _change)
    ]


def changes_of_each(layers: Sequence[LayerChange]) -> Sequence[LayerChange]:
    """What became of layers; of those that repeat the first one, under the name of all. Short lists as they are."""
    if len(layers) <= MOST_SINGLE:
        return layers
    return [_merged(group, ()) for group in _groups(layers, _change)]


def _change(layer: LayerChange) -> Hashable:
    parts = tuple((part.role, part.shape) for part in layer.parts or ())
    return layer.kind, layer.shape_before, layer.shape_after, layer.status, layer.reason, parts


def shown_costs(layers: Sequence[LayerCost], full: bool = False) -> Sequence[LayerCost]:
    """What layers cost, with sums over those that repeat; sparsity is their mean."""
    if full or len(layers) <= MOST_SINGLE:
        return layers
    summed = ("params", "nnz", "macs", "effective_macs", "search_space", "active_zeros")
    return [
        _merged(group, summed, sparsity=sum(layer.sparsity for layer in group) / len(group))
        for group in _groups(layers, lambda layer: (layer.kind, layer.shape))
    ]


def shown_simulated(layers: Sequence[SimulatedLayer], full: bool = False) -> Sequence[SimulatedLayer]:
    """What layers took, with sums over those that repeat; utilisation and imbalance are means over their cycles."""
    if full or len(layers) <= MOST_SINGLE:
        return layers
    summed = ("nnz", "macs", "cycles", "edge_index_bytes", "edge_value_bytes", "fabric_bytes", "sram_bytes", "energy_j")
    merged = []
    for group in _groups(layers, lambda layer: (layer.op, layer.step, layer.storage, layer.rows, layer.columns)):
        cycles = max(sum(layer.cycles for layer in group), 1)
        bounds: dict[str, int] = defaultdict(int)
        for layer in group:
            bounds[layer.bound] += layer.cycles
        means = {
            key: sum(getattr(layer, key) * layer.cycles for layer in group) / cycles
            for key in ("utilization", "imbalance")
        }
        limits = {name: sum(layer.limits.get(name, 0.0) for layer in group) for name in group[0].limits}
        bound = max(bounds, key=lambda name: bounds[name])
        merged.append(_merged(group, summed, bound=bound, limits=limits, **means))
    return merged


def remark(layers: int, rows: int) -> Iterator[str]:
    """How a table is read that has fewer rows than there are layers; nothing of others."""
    if rows < layers:
        yield (
            f"{layers} layers in {rows} rows: figures are sums, shapes those of one layer; `full=True` lists all, and "
            "so does the result's field 'layers'."
        )


def _groups(layers: Sequence[Layer], key: Callable[[Layer], Hashable]) -> list[list[Layer]]:
    """Those that repeat together, in the order of their first ones."""
    found: dict[Hashable, list[Layer]] = defaultdict(list)
    for layer in layers:
        found[_pattern(layer.name), key(layer)].append(layer)
    return list(found.values())


def _merged(group: Sequence[Layer], summed: Sequence[str], **others: Any) -> Layer:
    if len(group) == 1:
        return group[0]
    sums = {name: sum(getattr(layer, name) for layer in group) for name in summed}
    return replace(group[0], name=f"{len(group)} x {_pattern(group[0].name)}", **sums, **others)


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "*", name)
