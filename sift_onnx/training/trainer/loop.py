"""The training loop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sift_onnx.errors import UsageError
from sift_onnx.records.train import Kernels, Validation
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.trainer.batch import Batch
from sift_onnx.training.trainer.data import DataSource
from sift_onnx.training.trainer.distillation import Teacher
from sift_onnx.training.trainer.epoch_figures import EpochFigures
from sift_onnx.training.trainer.first_batch import try_first_batch
from sift_onnx.training.trainer.kernels.layer_kernels import change_summary, kernels_summary
from sift_onnx.training.trainer.kernels.masked_layers import MaskedLayers
from sift_onnx.training.trainer.losses import make_loss
from sift_onnx.training.trainer.optimization import make_optimizer
from sift_onnx.training.trainer.optimizer_step import OptimizerStep
from sift_onnx.training.trainer.parallelism import SharedModel
from sift_onnx.training.trainer.process_group import Ranks
from sift_onnx.training.trainer.settings import TrainingSettings
from sift_onnx.training.trainer.sparsity import attach_sparsity, sparsity_figures
from sift_onnx.training.trainer.state.checkpoint import (
    check_same_recipe,
    check_same_run,
    model_identity,
    prepare_folder,
    save_checkpoint,
)
from sift_onnx.training.trainer.state.full_state import (
    full_optimizer_state,
    full_state,
    load_full_model,
    load_full_optimizer,
)
from sift_onnx.training.trainer.state.kept_weights import KeptWeights
from sift_onnx.training.trainer.validation import validate

__all__ = ["InterruptedRun", "Trainer"]

Report = Callable[[dict[str, Any]], None]
Progress = Callable[[int, int, float], None]


class InterruptedRun(KeyboardInterrupt):
    """A run that was asked to stop.

    Attributes:
        step: after which it did.
        checkpoint: that it goes on from; None where there was no folder for one.
    """

    def __init__(self, step: int, checkpoint: Path | None) -> None:
        super().__init__(f"interrupted after step {step}")
        self.step, self.checkpoint = step, checkpoint


class Trainer:
    """Trains an imported model.

    Attributes:
        module: the model; its parameters and masks change.
        optimizer: over its parameters.
        sparsity: the algorithm at work on both; None if nothing is sparse.
        step: optimizer steps done.
        total: optimizer steps to do.
        last_loss: of the last step, on this rank; None before the first.
        input_shapes: of the first batch.
    """

    def __init__(
        self,
        module: ImportedModule,
        source: DataSource,
        settings: TrainingSettings,
        ranks: Ranks,
        *,
        report: Report = lambda event: None,
        progress: Progress = lambda step, total, loss: None,
        checkpoints: Path | None = None,
        saved_kernels: Mapping[str, Any] | None = None,
        teacher: nn.Module | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare a training, and try the model on its first batch.

        Args:
            module: from :func:`~sift_onnx.to_torch`.
            source: of batches.
            settings: of the training.
            ranks: that train together.
            report: is called with log lines: mappings with an ``event``.
            progress: is called after each step with the step, the total and the loss.
            checkpoints: folder for checkpoints; None for none.
            saved_kernels: the entry ``kernels`` of the checkpoint that :meth:`resume` will be given, if it has one.
            teacher: a model to learn from, with the same inputs and outputs.
            stopping: is asked after each step whether to interrupt the run: it keeps a checkpoint and ends.

        Raises:
            UsageError: settings, data and model do not fit each other.
            CheckError: the loss of the first batch is not finite.
        """
        # Ranks with data of their own may have more of it or less.
        steps = ranks.smallest(-1 if source.steps_per_epoch is None else source.steps_per_epoch)
        self._steps_per_epoch = None if steps < 0 else steps
        self.total = settings.total_steps(self._steps_per_epoch)
        self.module = module.to(ranks.device)
        self._source, self._settings, self._ranks = source, settings, ranks
        self._report = report if ranks.leads else lambda event: None
        self._progress, self._checkpoints, self._stopping = progress, checkpoints, stopping
        self._loss = make_loss(settings.loss, settings.label_smoothing)
        self._identity = model_identity(module)
        if settings.parallelism == "fsdp2" and ranks.size == 1:
            self._warn("parallelism fsdp2 shares a model among processes, and this one is alone; start it by torchrun")
        self._shared = SharedModel(self.module, ranks, settings.parallelism)
        self.optimizer = make_optimizer(module, settings.optimizer)
        self.step, self._epoch, self._step_in_epoch = 0, 0, 0
        self.last_loss: float | None = None
        self._examples, self._seconds = 0, 0.0
        self._validated: tuple[int, dict[str, Any]] | None = None
        self._is_over = False
        self._last_batch: Batch | None = None
        learning = None if teacher is None else Teacher(teacher, settings.distillation, settings.loss)
        self._one_step = OptimizerStep(self._shared, self.optimizer, self._loss, settings, ranks, learning, checkpoints)
        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always")
            self.sparsity = attach_sparsity(settings.sparsity, module, self.optimizer, settings.seed)
        for remark in remarks:
            self._warn(str(remark.message))
        with self._shared.gathered():
            batch = try_first_batch(self.module, source, self._loss, settings.loss, ranks.device, self._warn)
            if learning is not None:
                with torch.no_grad():
                    learning.to(ranks.device).check(self.module(*batch.inputs), batch)
        self.input_shapes = tuple(tuple(tensor.shape) for tensor in batch.inputs)
        self._layers = MaskedLayers(
            self.module,
            self.optimizer,
            self.sparsity,
            settings.kernels,
            ranks,
            self._shared,
            batch,
            autocast=self._one_step.autocast,
            warn=self._warn,
            saved=saved_kernels,
        )
        self._kept = KeptWeights(module, self.sparsity, decay=settings.ema, keeps_best=settings.keep_best)

    @property
    def kernels(self) -> Kernels:
        """Kernels of the masked layers."""
        return self._layers.kernels

    @property
    def original_speed(self) -> float | None:
        """An estimate, in examples per second, of a dense model of as many multiply-accumulates; None without one."""
        return self._layers.original_speed

    def resume(self, path: Path, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, with what the interrupted run would have done next.

        Args:
            path: where it is from, for messages.
            state: what :func:`~sift_onnx.training.trainer.state.checkpoint.load_checkpoint` read there.

        Raises:
            UsageError: it is of a run with another model, recipe or data.
        """
        check_same_recipe(path, state, self._settings)
        # Ranks have data of their own: the first one's are compared.
        data = self._source.fingerprint if self._ranks.leads else None
        check_same_run(path, state, self._identity, self._ranks.size, data)
        load_full_model(self.module, state["model"])
        load_full_optimizer(self.optimizer, state["optimizer"], self.module)
        if self.sparsity is not None:
            self.sparsity.load_state_dict(state["sparsity"])
        self._one_step.scaler.load_state_dict(state["scaler"])
        self._kept.load(state)
        self.step, self._epoch, self._step_in_epoch = state["step"], state["epoch"], state["step_in_epoch"]
        self._layers.resume(state.get("kernels", {}).get("setting"), self.step)
        self._report({"event": "resume", "checkpoint": str(path), "step": self.step, "epoch": self._epoch})

    def run(self) -> dict[str, Any]:
        """Train to the end.

        Returns:
            What a :class:`~sift_onnx.records.train.TrainReport` has of it: steps, epochs, loss and validation, kernels
            and speed.

        Raises:
            CheckError: the loss or the gradient is not finite.
            InterruptedRun: ``stopping`` says so; a checkpoint has been kept where there is a folder for it.
        """
        self._report({"event": "start", "steps": self.total, "device": str(self._ranks.device)})
        if self.kernels.layers and self.kernels.setting != "dense":
            self._report({"event": "kernels", "text": kernels_summary(self.kernels), **self.kernels.to_dict()})
        while self.step < self.total and not self._is_over:
            self._run_epoch()
        if self._ranks.all_have(self._validated is None or self._validated[0] != self.step):
            self._validate()
        self._try_last_batch()
        self._ranks.wait()
        self._shared.leave()
        self.module.eval()
        best = self._kept.best if self._kept.has_best() else None
        figures = best.figures if best is not None else self._validated[1] if self._validated is not None else {}
        return {
            "steps": self.step,
            "epochs": self._epoch,
            "loss": self.last_loss,
            "validation": Validation(**figures),
            "best_step": None if best is None else best.step,
            "stopped_early": True if self._is_over else None,
            "kernels": self.kernels,
            "examples_per_second": self._examples * self._ranks.size / self._seconds if self._examples else None,
            "original_examples_per_second_estimate": self.original_speed,
        }

    def _run_epoch(self) -> None:
        figures = EpochFigures(self._ranks.size)
        batches = self._source.epoch(self._epoch, self._step_in_epoch)
        while self.step < self.total:
            began = time.perf_counter()
            parts = next(batches, None)
            if not self._ranks.all_have(parts is not None):
                break
            assert parts is not None
            self.last_loss = self._one_step.run(parts, self.step, self.total, self.sparsity)
            self._last_batch = parts[-1]
            examples = sum(part.size for part in parts)
            figures.note(self.last_loss, examples)
            self._examples += examples
            self.step += 1
            change = self._layers.follow(self.step)
            self._kept.follow_step()
            self._seconds += time.perf_counter() - began
            if change is not None:
                text = change_summary(change)
                self._report({"event": "kernels", "step": self.step, "text": text, **self.kernels.to_dict()})
            self._step_in_epoch += 1
            self._progress(self.step, self.total, self.last_loss)
            if self.step % self._settings.log_every == 0 or self.step == self.total:
                self._report_step(*figures.since_last_line())
            if self._settings.checkpoint_every and self.step % self._settings.checkpoint_every == 0:
                self._save()
            if self._stopping() and self.step < self.total:
                raise InterruptedRun(self.step, self._save())
        if self._step_in_epoch == 0:
            raise UsageError(f"the data gives no batch in epoch {self._epoch}; an iterator is read once only")
        if self.step < self.total or self._step_in_epoch == self._steps_per_epoch:
            self._epoch, self._step_in_epoch = self._epoch + 1, 0
            self._validate()
            found = figures.of_epoch()
            if found is not None:  # otherwise the epoch was all but over when the run was resumed
                self._report_epoch(*found)
            self._ranks.wait()

    def _report_step(self, loss: float, speed: float) -> None:
        original = self.original_speed
        self._report(
            {
                "event": "step",
                "step": self.step,
                "epoch": self._epoch,
                "loss": loss,
                "lr": self.optimizer.param_groups[0]["lr"],
                "examples_per_second": speed,
                **({} if original is None else {"original_examples_per_second_estimate": original}),
                **sparsity_figures(self.sparsity),
            }
        )

    def _report_epoch(self, loss: float, seconds: float) -> None:
        epochs = None if self._steps_per_epoch is None else -(-self.total // self._steps_per_epoch)
        found = self._validated[1] if self._validated is not None and self._validated[0] == self.step else {}
        self._report(
            {
                "event": "epoch",
                "epoch": self._epoch,
                "epochs": epochs,
                "step": self.step,
                "loss": loss,
                "seconds": seconds,
                "validation": found,
            }
        )

    def _validate(self) -> None:
        """Validate on the first rank; all ranks call it.

        Raises:
            CheckError: the validation loss is not finite.
        """
        with self._kept.averaged():
            with self._shared.gathered():
                found = self._validation(self._source.validation()) if self._ranks.leads else None
            if found is not None:
                self._one_step.check_loss(found["loss"], "validation loss", self.step)
                self._validated = (self.step, found)
                self._report({"event": "validation", "step": self.step, "epoch": self._epoch, **found})
            self._note_best(found)

    def _validation(self, batches: Iterable[Batch]) -> dict[str, Any] | None:
        name, device = self._settings.loss, self._ranks.device
        return validate(self.module, batches, self._loss, name, device, self._one_step.autocast)

    def _try_last_batch(self) -> None:
        """Compute the loss once more if no validation follows the last step; all ranks call it.

        Raises:
            CheckError: it is not finite.
        """
        with self._kept.averaged(), self._shared.gathered():
            if self._last_batch is None or self._validated is not None or not self._ranks.leads:
                return
            found = self._validation([self._last_batch])
            if found is not None:
                self._one_step.check_loss(found["loss"], "loss on the last batch", self.step)

    def _note_best(self, found: Mapping[str, Any] | None) -> None:
        """Keep what did best, and end the run where nothing gets better; all ranks call it."""
        keep, patience = self._settings.keep_best, self._settings.patience
        if not keep and patience is None:
            return
        figures = self._ranks.of_leader(found)
        if figures is None:
            setting = "keep_best" if keep else "patience"
            raise UsageError(f"{setting} needs validation data; the data has none")
        self._kept.note(self.step, figures, self._layers.nnz)
        if patience is not None and self._kept.best.without_gain >= patience and self.step < self.total:
            self._is_over = True
            text = f"no gain in {patience} validation{'s' * (patience > 1)}: the training ends at step {self.step}"
            self._report({"event": "early-stop", "step": self.step, "text": text})

    def final_state(self) -> dict[str, torch.Tensor]:
        """What the run has come to: the best state, or the average, or the weights; with FSDP2 a collective call."""
        return self._kept.final()

    def full_state(self) -> dict[str, torch.Tensor]:
        """The module's state in full tensors on the CPU; with FSDP2 a collective call."""
        state: dict[str, torch.Tensor] = full_state(self.module.state_dict())
        return state

    def full_optimizer_state(self) -> dict[str, Any]:
        """The same of the optimizer."""
        return full_optimizer_state(self.optimizer, self.module)

    def _save(self) -> Path | None:
        """Keep a checkpoint, and say where."""
        # Where tensors are sharded, all ranks take part.
        if self._checkpoints is None or not (self._ranks.leads or self._shared.is_sharded):
            return None
        if self._ranks.leads:
            prepare_folder(self._checkpoints)
        state = {
            "graph": self._identity,
            "settings": self._settings.telling(),
            "data": self._source.fingerprint,
            "ranks": self._ranks.size,
            "epoch": self._epoch,
            "step_in_epoch": self._step_in_epoch,
            "model": self.full_state(),
            "optimizer": self.full_optimizer_state(),
            "sparsity": None if self.sparsity is None else self.sparsity.state_dict(),
            "scaler": self._one_step.scaler.state_dict(),
            "kernels": self.kernels.to_dict(),
            **self._kept.saved(),
        }
        if not self._ranks.leads:
            return None
        path = save_checkpoint(self._checkpoints, self.step, state, self._settings.keep_checkpoints)
        self._report({"event": "checkpoint", "step": self.step, "checkpoint": str(path)})
        return path

    def _warn(self, text: str) -> None:
        self._report({"event": "warning", "text": text})
