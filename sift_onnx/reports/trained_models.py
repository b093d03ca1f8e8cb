"""Trainings as points of accuracy over cost: repetitions are one group, and groups of equal cost are compared."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sift_onnx.records.train import TrainedCost, TrainReport
from sift_onnx.reports.documents import Document

__all__ = ["Group", "Point", "best_gain", "group_points", "points_of", "same_cost", "training_words"]

# MACs that differ by no more are the same cost: widths are whole numbers.
_SAME_COST = 0.02


@dataclass(frozen=True)
class Point:
    """A trained model.

    Attributes:
        name: to show; repetitions of a run share it.
        cost: MACs of an example's forward pass, those of attention products among them.
        accuracy: on validation data, 0 to 1.
        dense: whether it has no masks.
        steps: that it was trained for.
    """

    name: str
    cost: int
    accuracy: float
    dense: bool
    steps: int


@dataclass(frozen=True)
class Group:
    """Repetitions of a run; ``values`` are their accuracies, the rest is as in :class:`Point`."""

    name: str
    cost: int
    dense: bool
    steps: int
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)


def training_words(data: TrainReport) -> str:
    """What repetitions of a run share: the model that they started from, its sparsity, and the algorithm."""
    parts = [Path(data.model).stem]
    sparsity = data.sparsity
    if sparsity.nnz < sparsity.numel:
        algorithms = dict.fromkeys(entry.algorithm for entry in sparsity.algorithms)
        parts += [f"{1 - sparsity.nnz / sparsity.numel:.0%}", "+".join(algorithms)]
    return " ".join(parts)


def points_of(documents: Sequence[Document[TrainReport]]) -> list[Point]:
    """A point for each training whose cost and accuracy are known."""
    points = []
    for document in documents:
        data = document.data
        accuracy = data.validation.accuracy
        if not isinstance(data.cost, TrainedCost) or accuracy is None:
            continue
        cost = data.cost.effective_macs + data.cost.attention_macs
        if cost > 0:
            dense = data.sparsity.nnz == data.sparsity.numel
            points.append(Point(training_words(data), cost, accuracy, dense, data.steps))
    return points


def group_points(points: Sequence[Point]) -> list[Group]:
    """Repetitions together, by cost and then by their mean."""
    found: dict[tuple[str, int, bool, int], list[float]] = defaultdict(list)
    for point in points:
        found[point.name, point.cost, point.dense, point.steps].append(point.accuracy)
    groups = [Group(*key, tuple(values)) for key, values in found.items()]
    return sorted(groups, key=lambda group: (group.cost, group.mean))


def same_cost(groups: Sequence[Group]) -> bool:
    """Whether all of them cost the same, up to the rounding of widths; groups are in order of cost."""
    return groups[-1].cost / groups[0].cost - 1 <= _SAME_COST


def best_gain(groups: Sequence[Group]) -> tuple[Group, Group] | None:
    """A dense model and one with masks at its cost, where they differ most.

    Each model with masks is compared with the best dense one that was trained for as many steps or more: a dense model
    may have been given the seconds that sparse steps take.
    """
    pairs = []
    for sparse in groups:
        rivals = [
            dense
            for dense in groups
            if dense.dense and dense.steps >= sparse.steps and abs(sparse.cost / dense.cost - 1) <= _SAME_COST
        ]
        if rivals and not sparse.dense:
            pairs.append((max(rivals, key=lambda dense: dense.mean), sparse))
    return max(pairs, key=lambda pair: pair[1].mean - pair[0].mean, default=None)
