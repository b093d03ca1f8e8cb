"""The kernels of a run's masked layers, which follow its masks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sift_onnx.plugins import first_line
from sift_onnx.records.train import KernelChange, Kernels
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse import SparsityAlgorithm
from sift_onnx.training.sparse_layers.rows import layer_rows
from sift_onnx.training.trainer.batch import Batch
from sift_onnx.training.trainer.kernels.dense_original import seconds_of_dense_original
from sift_onnx.training.trainer.kernels.layer_kernels import choose_kernels, follow_masks, obstacle_to_sparse_kernels
from sift_onnx.training.trainer.parallelism import SharedModel
from sift_onnx.training.trainer.process_group import Ranks
from sift_onnx.training.trainer.settings import KernelSetting
from sift_onnx.training.trainer.sparsity import active_counts

__all__ = ["MaskedLayers"]


class MaskedLayers:
    """Chooses kernels for the masked layers of a model, and chooses again when masks change.

    Attributes:
        kernels: that the layers have now.
        original_speed: an estimate, in examples per second of all ranks, of a dense model of as many
            multiply-accumulates. Only the first rank has it, and only where sparse kernels can run.
    """

    def __init__(
        self,
        module: ImportedModule,
        optimizer: torch.optim.Optimizer,
        sparsity: SparsityAlgorithm | None,
        setting: KernelSetting,
        ranks: Ranks,
        shared: SharedModel,
        batch: Batch,
        *,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]],
        warn: Callable[[str], None],
        saved: Mapping[str, Any] | None,
    ) -> None:
        """Give layers their kernels, by the first batch.

        Args:
            module: the model; its layers are replaced.
            optimizer: over its parameters.
            sparsity: attached to both; None if nothing is masked.
            setting: of the training.
            ranks: that train together.
            shared: the model as the ranks share it; joined once layers have their kernels.
            batch: the first one.
            autocast: gives the context of a forward pass.
            warn: is called with a line about an estimate that failed.
            saved: the kernels of the run that is resumed, as its checkpoint has them.

        Raises:
            UsageError: sparse kernels are asked for where there are none.
        """
        self._module, self._optimizer, self._sparsity = module, optimizer, sparsity
        self._setting, self._ranks, self._shared = setting, ranks, shared
        # Before layers are replaced: the graph tells them apart.
        self.original_speed = self._speed_of_original(batch, autocast, warn)
        # The first rank's, so that all of them choose alike.
        self._batch_size, self._rows = ranks.of_leader((batch.size, self._rows_of(batch)))
        self.kernels: Kernels = choose_kernels(
            module,
            optimizer,
            sparsity,
            setting,
            ranks,
            batch_size=self._batch_size,
            rows=self._rows,
            is_sharded=shared.is_sharded,
            saved=saved,
        )
        self._counts = active_counts(sparsity)
        shared.join()

    @property
    def nnz(self) -> int:
        """Active weights of all layers, as they were when masks were last followed."""
        return sum(self._counts)

    def follow(self, step: int) -> KernelChange | None:
        """Let kernels and ranks follow masks whose number of active weights is another now.

        Args:
            step: that was made last.

        Returns:
            What changed; None if all layers keep their kernels.
        """
        counts, before = active_counts(self._sparsity), self.kernels
        if counts == self._counts:
            return None
        self._counts = counts
        if before.setting == "auto" and self._may_be_sparse():
            self.kernels = follow_masks(
                self._module, self._optimizer, before, step=step, batch_size=self._batch_size, rows=self._rows
            )
        self._shared.join()
        changes = self.kernels.changes
        return changes[-1] if changes and changes != before.changes else None

    def resume(self, setting: str | None, step: int) -> None:
        """Take in the masks of a checkpoint.

        Args:
            setting: of the interrupted run.
            step: that it made last.
        """
        if setting == self.kernels.setting:
            # Layers have the kernels of the checkpoint, which follow its masks.
            self._counts = active_counts(self._sparsity)
            self._shared.join()
        else:
            self.follow(step)

    def _speed_of_original(
        self,
        batch: Batch,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]],
        warn: Callable[[str], None],
    ) -> float | None:
        masks = {} if self._sparsity is None else self._sparsity.masks()
        if not masks or not self._ranks.leads or not self._may_be_sparse():
            return None
        densities = {name: int(mask.count_nonzero()) / mask.numel() for name, mask in masks.items()}
        try:
            with autocast():
                seconds = seconds_of_dense_original(self._module.train(), densities, batch.inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            warn(f"the speed of the dense original is not estimated: {first_line(error)}")
            return None
        return batch.size * self._ranks.size / seconds

    def _rows_of(self, batch: Batch) -> dict[str, int]:
        """Rows of masked products on the first rank, where the choice of kernels asks for them."""
        asks = self._ranks.leads and self._setting == "auto" and self._may_be_sparse()
        return layer_rows(self._module, *batch.inputs) if asks else {}

    def _may_be_sparse(self) -> bool:
        obstacle = obstacle_to_sparse_kernels(self._ranks, self._shared.is_sharded)
        return self._setting != "dense" and obstacle is None
