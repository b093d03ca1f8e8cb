"""What is left of a run besides its weights: how its figures went, and what an example costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sift_onnx.analysis.cost import inspect
from sift_onnx.errors import SiftError
from sift_onnx.records.train import History, StepEntry, TrainedCost, ValidationEntry
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["RunHistory", "example_cost"]

_MOST_ENTRIES = 1000


class RunHistory:
    """The log lines of steps and validations; of long runs every second one, every fourth, and so on."""

    def __init__(self) -> None:
        self._entries: dict[str, list[dict[str, Any]]] = {"step": [], "validation": []}
        self._stride, self._seen = dict.fromkeys(self._entries, 1), dict.fromkeys(self._entries, 0)

    def note(self, event: dict[str, Any]) -> None:
        """Take in a log line."""
        kind = event["event"]
        if kind not in self._entries:
            return
        if self._seen[kind] % self._stride[kind] == 0:
            self._entries[kind].append({key: value for key, value in event.items() if key != "event"})
        self._seen[kind] += 1
        if len(self._entries[kind]) > _MOST_ENTRIES:
            self._entries[kind] = self._entries[kind][::2]
            self._stride[kind] *= 2

    def record(self) -> History:
        """What is kept, in the order of the run."""
        return History(
            steps=tuple(StepEntry(**entry) for entry in self._entries["step"]),
            validations=tuple(ValidationEntry(**entry) for entry in self._entries["validation"]),
        )


def example_cost(
    model: str | Path, specs: Sequence[TensorSpec], shapes: Sequence[tuple[int, ...]]
) -> TrainedCost | None:
    """What the forward pass of one example costs.

    Args:
        model: the file.
        specs: its inputs.
        shapes: of a batch, for axes that the model leaves open.

    Returns:
        None if the cost of the model is unknown.
    """
    bound = {}
    for spec, shape in zip(specs, shapes, strict=True):
        sizes = [None] * len(shape) if spec.shape is None else spec.shape
        if any(not isinstance(size, int) for size in sizes):
            own = [size if isinstance(size, int) else seen for size, seen in zip(sizes, shape, strict=True)]
            bound[spec.name] = own if isinstance(sizes[0], int) else [1, *own[1:]]
    first = specs[0].shape
    batch = max(first[0], 1) if first and isinstance(first[0], int) else 1
    try:
        totals = inspect(model, bound).totals
    except SiftError:
        return None
    return TrainedCost(
        params=totals.params,
        nnz=totals.nnz,
        macs=totals.macs // batch,
        effective_macs=totals.effective_macs // batch,
        attention_macs=totals.attention_macs // batch,
    )
