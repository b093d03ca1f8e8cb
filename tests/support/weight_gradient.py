"""A stand-in for the kernel of weight gradients, by torch, for builds that have none."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


class WeightGradient:
    def __init__(self, rows: int, columns: int, indices: Any, places: Any = None, **geometry: Any) -> None:
        self._rows, self._columns, self._indices, self._places = rows, columns, indices, places
        self._geometry = geometry

    def run(self, pool: Any, shape: Any, x: Any, dy: Any, dvalues: Any, accumulate: bool = False) -> None:
        n, c, h, w = shape
        geometry = self._geometry
        top, left, bottom, right = geometry["pads"]
        planes = [t.permute(0, 4, 1, 2, 3).flatten(0, 1)[:n].double() for t in (x, dy)]
        padded = functional.pad(planes[0], (left, right, top, bottom))
        sizes = (self._rows, c, *geometry["kernel"])
        dense = torch.nn.grad.conv2d_weight(
            padded, sizes, planes[1], geometry["stride"], 0, geometry["dilation"]
        ).reshape(-1)[self._indices]
        found = torch.empty_like(dense)
        found[self._places if self._places is not None else slice(None)] = dense
        dvalues.copy_(dvalues + found if accumulate else found)
