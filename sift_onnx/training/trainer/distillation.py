"""Distillation: a model learns the outputs of a teacher as well as the targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sift_onnx.errors import UsageError
from sift_onnx.plugins import first_line
from sift_onnx.training.trainer.batch import Batch
from sift_onnx.training.trainer.losses import first_output
from sift_onnx.training.trainer.settings import DistillationSettings

__all__ = ["Teacher"]

# Losses that compare scores of classes; of others, outputs are compared as numbers.
_OF_CLASSES = {"classification": 1, "next-token": 2}


class Teacher:
    """A trained model, in evaluation mode and without gradients.

    For losses of classes, what is learned from it is ``temperature ** 2`` times the divergence of Kullback and Leibler
    of the softened scores, a mean over predictions (Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural
    Network, section 2.1). For others it is the mean squared difference of the first outputs.
    """

    def __init__(self, module: nn.Module, settings: DistillationSettings, loss_name: str) -> None:
        """Freeze a module.

        Args:
            module: takes the inputs of the model that is trained.
            settings: of the distillation.
            loss_name: of the loss that compares with targets.
        """
        self._module = module.eval().requires_grad_(False)
        self._settings, self._axis = settings, _OF_CLASSES.get(loss_name)

    def to(self, device: torch.device) -> Teacher:
        """The teacher on a device."""
        self._module.to(device)
        return self

    def check(self, outputs: Any, batch: Batch) -> None:
        """Run the teacher on a first batch.

        Raises:
            UsageError: it does not take the batch, or its outputs have another shape than ``outputs``.
        """
        try:
            own = first_output(self._outputs(batch))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise UsageError(f"the teacher does not run on the first batch (`teacher`): {first_line(error)}") from error
        wanted = first_output(outputs)
        if own.shape != wanted.shape:
            raise UsageError(
                f"the teacher gives {list(own.shape)} and the model {list(wanted.shape)} (`teacher`); "
                "give a model with the same outputs"
            )

    def mixed(self, loss: torch.Tensor, outputs: Any, batch: Batch) -> torch.Tensor:
        """``loss`` and what is learned from the teacher, by the weight of the settings."""
        weight = self._settings.weight
        return (1 - weight) * loss + weight * self._divergence(first_output(outputs), batch)

    def _divergence(self, scores: torch.Tensor, batch: Batch) -> torch.Tensor:
        wanted = first_output(self._outputs(batch))
        if self._axis is None:
            return functional.mse_loss(scores.float(), wanted.float())
        heat, axis = self._settings.temperature, self._axis
        own, taught = (functional.log_softmax(each.float() / heat, axis) for each in (scores, wanted))
        each = functional.kl_div(own, taught, reduction="none", log_target=True).sum(axis)
        return heat**2 * each.mean()

    def _outputs(self, batch: Batch) -> Any:
        with torch.no_grad():
            return self._module(*batch.inputs)
