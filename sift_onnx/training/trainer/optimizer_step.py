"""One step of a training: forward and backward passes of its parts, what becomes of gradients, the optimizer."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sift_onnx.errors import CheckError, UsageError
from sift_onnx.training import sparse
from sift_onnx.training.sparse.distributed import full_tensor
from sift_onnx.training.trainer.batch import Batch
from sift_onnx.training.trainer.distillation import Teacher
from sift_onnx.training.trainer.losses import Loss
from sift_onnx.training.trainer.optimization import rate_factor, set_rate
from sift_onnx.training.trainer.parallelism import SharedModel
from sift_onnx.training.trainer.process_group import Ranks
from sift_onnx.training.trainer.seeds import mixed_seed, seed_everything
from sift_onnx.training.trainer.settings import TrainingSettings

__all__ = ["OptimizerStep"]


class OptimizerStep:
    """Makes steps, one after the other.

    Attributes:
        scaler: of losses in half precision; it does nothing otherwise.
    """

    def __init__(
        self,
        shared: SharedModel,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        settings: TrainingSettings,
        ranks: Ranks,
        teacher: Teacher | None,
        checkpoints: Path | None,
    ) -> None:
        """Nothing runs yet.

        Args:
            shared: the model.
            optimizer: over its parameters.
            loss: to make small.
            settings: of the training.
            ranks: that train together.
            teacher: whose outputs count as well; None for none.
            checkpoints: where messages send whoever has lost the training.

        Raises:
            UsageError: this device has no such precision.
        """
        if settings.amp == "float16" and ranks.device.type != "cuda":
            raise UsageError("amp float16 needs a CUDA device; choose bfloat16")
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=settings.amp == "float16")
        self._shared, self._optimizer, self._loss, self._teacher = shared, optimizer, loss, teacher
        self._settings, self._ranks, self._checkpoints = settings, ranks, checkpoints

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """For a forward pass in the precision of the training."""
        amp = self._settings.amp
        if amp == "off":
            return contextlib.nullcontext()
        return torch.autocast(self._ranks.device.type, getattr(torch, amp))

    def run(self, parts: list[Batch], step: int, total: int, sparsity: sparse.SparsityAlgorithm | None) -> float:
        """Make a step.

        Args:
            parts: whose gradients add up.
            step: counted from 0.
            total: steps of the training.
            sparsity: the algorithm at work on the model; None if nothing is sparse.

        Returns:
            The mean loss of this rank's examples.

        Raises:
            CheckError: the loss or the gradient is not finite, or the step overflows.
        """
        settings, module = self._settings, self._shared.module
        seed_everything(mixed_seed("step", settings.seed, step, self._ranks.rank))
        set_rate(self._optimizer, settings.optimizer.lr * rate_factor(settings.schedule, step, total))
        module.train()
        self._optimizer.zero_grad()
        examples = sum(part.size for part in parts)
        mean = 0.0
        for i, part in enumerate(parts):
            with self._shared.accumulating(i + 1 < len(parts)):
                loss = self._loss_of(part.to(self._ranks.device)) * (part.size / examples)
                mean += float(loss.detach())
                if not math.isfinite(mean):
                    raise CheckError(f"step {step}: the loss is {mean}; {self._way_out()}")
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.unscale_(self._optimizer)
        if sparsity is not None:
            # Pruned weights must not count when gradients are clipped.
            sparsity.finalize_grads()
        if settings.clip_norm is not None:
            norm = float(full_tensor(nn.utils.clip_grad_norm_(module.parameters(), settings.clip_norm)))
            if not math.isfinite(norm) and not self.scaler.is_enabled():
                raise CheckError(f"step {step}: the gradient's norm is {norm}; {self._way_out()}")
        try:
            self.scaler.step(self._optimizer)
        except RuntimeError as error:
            # torch's words where a factor of the step, computed from several settings, is too large.
            if "without overflow" not in str(error):
                raise
            problem = "the optimizer computes a number that float32 cannot hold"
            raise CheckError(f"step {step}: {problem}; {self._way_out()}") from error
        self.scaler.update()
        return mean

    def check_loss(self, loss: float, name: str, step: int) -> None:
        """Check a loss that was computed after a step.

        Args:
            loss: the number.
            name: what the message calls it.
            step: steps done.

        Raises:
            CheckError: it is not finite.
        """
        if not math.isfinite(loss):
            raise CheckError(f"after step {step}: the {name} is {loss}; {self._way_out()}")

    def _loss_of(self, batch: Batch) -> torch.Tensor:
        with self.autocast():
            outputs = self._shared(*batch.inputs)
            loss = self._loss(outputs, batch)
            return loss if self._teacher is None else self._teacher.mixed(loss, outputs, batch)

    def _way_out(self) -> str:
        held = f"checkpoints are in {self._checkpoints}; " if self._settings.checkpoint_every else ""
        return f"{held}try a lower optimizer.lr, schedule.warmup or clip_norm, and look at the data"
