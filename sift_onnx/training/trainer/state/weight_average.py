"""An exponential moving average of the weights, under masks that move.

torch's ``AveragedModel`` copies a module and follows its parameters. Parameters of sparse kernels are vectors whose
elements are other weights after an update of the masks, so the average is kept in dense tensors by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

__all__ = ["WeightAverage"]


class WeightAverage:
    """The average of a module's state.

    Attributes:
        state: averages of floating-point tensors, and the newest of the others, masks among them.
    """

    def __init__(self, decay: float, state: Mapping[str, torch.Tensor]) -> None:
        """Start from a state.

        Args:
            decay: weight of the average in a step.
            state: full tensors by name, which are copied.
        """
        self._decay, self._steps = decay, 0
        self.state = {name: tensor.clone() for name, tensor in state.items()}

    def update(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take in the state after a step.

        At the start the average is over the few steps there are: the decay of step t is at most (1 + t) / (10 + t).
        """
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        for name, tensor in state.items():
            if tensor.is_floating_point():
                self.state[name].lerp_(tensor, 1 - decay)
            else:
                self.state[name].copy_(tensor)

    def masked(self, masks: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The average with pruned weights at zero: those that were active before have an average of their own.

        Args:
            masks: of the weights by name, as they are now.
        """
        return {
            name: torch.where(masks[name].cpu(), tensor, 0) if name in masks else tensor
            for name, tensor in self.state.items()
        }

    def saved(self) -> dict[str, object]:
        """What a checkpoint keeps."""
        return {"steps": self._steps, "state": self.state}

    def load(self, saved: Mapping[str, object]) -> None:
        """Go on from a checkpoint."""
        steps, state = saved["steps"], saved["state"]
        assert isinstance(steps, int)
        assert isinstance(state, dict)
        self._steps, self.state = steps, dict(state)
