"""Sparse evolutionary training."""

from __future__ import annotations

import torch

from sift_onnx.training.sparse.algorithms.drop_grow import DropGrow
from sift_onnx.weights.sparse import generator

__all__ = ["SET"]


class SET(DropGrow):
    """Drop the smallest weights, grow random ones (Mocanu et al. 2018, arXiv:1707.04780).

    What grows depends on seed, name and step alone, so that ranks and resumed runs draw the same.
    """

    def growth_scores(self, p: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rng = generator(self.seed, self.current.name, "grow", self.step)
        return torch.from_numpy(rng.random(tuple(p.shape), dtype="float32")).to(p.device)
