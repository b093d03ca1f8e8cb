"""The training loop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sift_onnx.errors import UsageError
from sift_onnx.plugins import first_line
from sift_onnx.records.train import KernelChange, Validation
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.rows import layer_rows
from sift_onnx.training.trainer.batch import Batch
from sift_onnx.training.trainer.checkpoint import (
    check_same_recipe,
    check_same_run,
    model_identity,
    prepare_folder,
    save_checkpoint,
)
from sift_onnx.training.trainer.data import DataSource
from sift_onnx.training.trainer.dense_original import seconds_of_dense_original
from sift_onnx.training.trainer.distillation import Teacher
from sift_onnx.training.trainer.first_batch import try_first_batch
from sift_onnx.training.trainer.full_state import full_optimizer_state, full_state, load_full_model, load_full_optimizer
from sift_onnx.training.trainer.kept_weights import KeptWeights
from sift_onnx.training.trainer.layer_kernels import (
    change_summary,
    choose_kernels,
    follow_masks,
    kernels_summary,
    obstacle_to_sparse_kernels,
)
from sift_onnx.training.trainer.losses import make_loss
from sift_onnx.training.trainer.optimization import make_optimizer
from sift_onnx.training.trainer.optimizer_step import OptimizerStep
from sift_onnx.training.trainer.parallelism import SharedModel
from sift_onnx.training.trainer.process_group import Ranks
from sift_onnx.training.trainer.settings import TrainingSettings
from sift_onnx.training.trainer.sparsity import active_counts, attach_sparsity, sparsity_figures
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
        kernels: of masked layers.
        original_speed: an estimate, in examples per second, of a dense model of as many multiply-accumulates; None
            where none was made.
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
        masks = {} if self.sparsity is None else self.sparsity.masks()
        # Before layers are replaced: the graph tells them apart.
        self.original_speed = self._speed_of_original(batch, masks)
        # The first rank's, so that all of them choose alike.
        self._batch_size, self._rows = ranks.of_leader((batch.size, self._rows_of(batch)))
        self.kernels = choose_kernels(
            module,
            self.optimizer,
            self.sparsity,
            settings.kernels,
            ranks,
            batch_size=self._batch_size,
            rows=self._rows,
            is_sharded=self._shared.is_sharded,
            saved=saved_kernels,
        )
        self._counts = active_counts(self.sparsity)
        self._shared.join()
        self._kept = KeptWeights(module, self.sparsity, decay=settings.ema, keeps_best=settings.keep_best)

    def _speed_of_original(self, batch: Batch, masks: Mapping[str, torch.Tensor]) -> float | None:
        """Examples per second of all ranks, on the first one; None where sparse kernels are out of the question."""
        if not masks or not self._ranks.leads or not self._may_be_sparse():
            return None
        densities = {name: int(mask.count_nonzero()) / mask.numel() for name, mask in masks.items()}
        try:
            with self._one_step.autocast():
                seconds = seconds_of_dense_original(self.module.train(), densities, batch.inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            self._warn(f"the speed of the dense original is not estimated: {first_line(error)}")
            return None
        return batch.size * self._ranks.size / seconds

    def _rows_of(self, batch: Batch) -> dict[str, int]:
        """Rows of masked products on the first rank, where the choice of kernels asks for them."""
        asks = self._ranks.leads and self._settings.kernels == "auto" and self._may_be_sparse()
        return layer_rows(self.module, *batch.inputs) if asks else {}

    def _may_be_sparse(self) -> bool:
        obstacle = obstacle_to_sparse_kernels(self._ranks, self._shared.is_sharded)
        return self._settings.kernels != "dense" and obstacle is None

    def resume(self, path: Path, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, with what the interrupted run would have done next.

        Args:
            path: where it is from, for messages.
            state: what :func:`~sift_onnx.training.trainer.checkpoint.load_checkpoint` read there.

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
        if state.get("kernels", {}).get("setting") == self.kernels.setting:
            # Layers have the kernels of the checkpoint, which follow its masks.
            self._counts = active_counts(self.sparsity)
            self._shared.join()
        else:
            self._follow_masks()
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
        start, sizes, losses, since = self._step_in_epoch, 0, list[float](), time.perf_counter()
        epoch_losses, epoch_start = list[float](), since
        batches = self._source.epoch(self._epoch, start)
        speed = self.original_speed
        original = {} if speed is None else {"original_examples_per_second_estimate": speed}
        while self.step < self.total:
            began = time.perf_counter()
            parts = next(batches, None)
            if not self._ranks.all_have(parts is not None):
                break
            assert parts is not None
            self.last_loss = self._step(parts)
            losses.append(self.last_loss)
            epoch_losses.append(self.last_loss)
            sizes += sum(part.size for part in parts)
            self._examples += sum(part.size for part in parts)
            self.step += 1
            change = self._follow_masks()
            self._kept.follow_step()
            self._seconds += time.perf_counter() - began
            if change is not None:
                text = change_summary(change)
                self._report({"event": "kernels", "step": self.step, "text": text, **self.kernels.to_dict()})
            self._step_in_epoch += 1
            self._progress(self.step, self.total, self.last_loss)
            if self.step % self._settings.log_every == 0 or self.step == self.total:
                now = time.perf_counter()
                self._report(
                    {
                        "event": "step",
                        "step": self.step,
                        "epoch": self._epoch,
                        "loss": sum(losses) / len(losses),
                        "lr": self.optimizer.param_groups[0]["lr"],
                        "examples_per_second": sizes * self._ranks.size / max(now - since, 1e-9),
                        **original,
                        **sparsity_figures(self.sparsity),
                    }
                )
                losses, sizes, since = [], 0, now
            if self._settings.checkpoint_every and self.step % self._settings.checkpoint_every == 0:
                self._save()
            if self._stopping() and self.step < self.total:
                raise InterruptedRun(self.step, self._save())
        if self._step_in_epoch == 0:
            raise UsageError(f"the data gives no batch in epoch {self._epoch}; an iterator is read once only")
        if self.step < self.total or self._step_in_epoch == self._steps_per_epoch:
            self._epoch, self._step_in_epoch = self._epoch + 1, 0
            self._validate()
            self._report_epoch(epoch_losses, time.perf_counter() - epoch_start)
            self._ranks.wait()

    def _report_epoch(self, losses: Sequence[float], seconds: float) -> None:
        if not losses:  # it was all but over when the run was resumed
            return
        epochs = None if self._steps_per_epoch is None else -(-self.total // self._steps_per_epoch)
        found = self._validated[1] if self._validated is not None and self._validated[0] == self.step else {}
        self._report(
            {
                "event": "epoch",
                "epoch": self._epoch,
                "epochs": epochs,
                "step": self.step,
                "loss": sum(losses) / len(losses),
                "seconds": seconds,
                "validation": found,
            }
        )

    def _step(self, parts: list[Batch]) -> float:
        return self._one_step.run(parts, self.step, self.total, self.sparsity)

    def _follow_masks(self) -> KernelChange | None:
        """Let kernels and ranks follow masks whose number of active weights is another now."""
        counts, before = active_counts(self.sparsity), self.kernels
        if counts == self._counts:
            return None
        self._counts = counts
        if before.setting == "auto" and self._may_be_sparse():
            self.kernels = follow_masks(
                self.module, self.optimizer, before, step=self.step, batch_size=self._batch_size, rows=self._rows
            )
        self._shared.join()
        changes = self.kernels.changes
        return changes[-1] if changes and changes != before.changes else None

    def _validate(self) -> None:
        """Validate on the first rank; all ranks call it."""
        with self._kept.averaged():
            with self._shared.gathered():
                found = self._validation() if self._ranks.leads else None
            if found is not None:
                self._validated = (self.step, found)
                self._report({"event": "validation", "step": self.step, "epoch": self._epoch, **found})
            self._note_best(found)

    def _validation(self) -> dict[str, Any] | None:
        batches, name, device = self._source.validation(), self._settings.loss, self._ranks.device
        return validate(self.module, batches, self._loss, name, device, self._one_step.autocast)

    def _note_best(self, found: Mapping[str, Any] | None) -> None:
        """Keep what did best, and end the run where nothing gets better; all ranks call it."""
        keep, patience = self._settings.keep_best, self._settings.patience
        if not keep and patience is None:
            return
        figures = self._ranks.of_leader(found)
        if figures is None:
            setting = "keep_best" if keep else "patience"
            raise UsageError(f"{setting} needs validation data; the data has none")
        self._kept.note(self.step, figures, sum(self._counts))
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
