"""What detectors do with boxes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.host import number
from sift_onnx.training.registry import kernel

__all__: list[str] = []


def _corners(boxes: Tensor, center_point_box: int) -> tuple[Tensor, Tensor]:
    """Lower and upper corners of boxes, which come as two opposite corners or as centre and size."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center_point_box:
        return first - second / 2, first + second / 2
    return torch.minimum(first, second), torch.maximum(first, second)


@kernel("NonMaxSuppression", since=10, host=(2, 3, 4))
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    most: Any = None,
    iou_threshold: Any = None,
    score_threshold: Any = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """Boxes (batch x boxes x 4) that no better one overlaps, as rows of batch, class and box; scores are per class."""
    limit = int(number(most)) if most is not None else 0
    overlap = float(number(iou_threshold)) if iou_threshold is not None else 0.0
    chosen: list[list[int]] = []
    for item in range(boxes.shape[0]):
        low, high = _corners(boxes[item], center_point_box)
        areas = (high - low).prod(-1)
        for label in range(scores.shape[1]):
            ranked = scores[item, label]
            order = ranked.argsort(descending=True, stable=True)
            if score_threshold is not None:
                order = order[ranked[order] > float(number(score_threshold))]
            kept = 0
            while order.numel() and kept < limit:
                best, order = order[0], order[1:]
                chosen.append([item, label, int(best)])
                kept += 1
                sides = (torch.minimum(high[best], high[order]) - torch.maximum(low[best], low[order])).clamp(min=0)
                shared = sides.prod(-1)
                order = order[shared <= overlap * (areas[best] + areas[order] - shared)]
    return torch.tensor(chosen, dtype=torch.int64, device=boxes.device).reshape(-1, 3)
