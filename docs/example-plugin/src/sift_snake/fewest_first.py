"""A sparsity algorithm: weights grow where there are few."""

from __future__ import annotations

import torch

from sift_onnx.training.sparse import SET
from sift_onnx.weights.sparse import generator


class FewestFirst(SET):
    """As SET: drop the smallest weights. Grow at the output features that have the fewest.

    Ties are broken at random, by seed, name and step alone, so that ranks and resumed runs agree.
    """

    def growth_scores(self, p: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Higher where the row of ``p`` has fewer active weights; of the shape of ``p``."""
        active = mask.reshape(mask.shape[0], -1).sum(dim=1, dtype=torch.float32)
        draws = generator(self.seed, self.current.name, "fewest first", self.step).random(
            tuple(p.shape), dtype="float32"
        )
        return torch.from_numpy(draws).to(p.device) - active.reshape(-1, *(1,) * (p.dim() - 1))
