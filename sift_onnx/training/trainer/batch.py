"""Batches: the inputs of one forward pass, checked against the model's declarations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sift_onnx.datasets.batches import ArrayBatch, check_input, check_sizes, parts_of
from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.shapes.tensor_specs import TensorSpec, model_inputs

__all__ = ["Batch", "input_specs", "make_batch"]


@dataclass(frozen=True)
class Batch:
    """Examples for one forward pass.

    Attributes:
        inputs: one tensor per input of the model, in its order; the first axis counts examples.
        target: what the loss compares with; None if the data has none.
    """

    inputs: tuple[torch.Tensor, ...]
    target: Any = None

    @classmethod
    def of_arrays(cls, batch: ArrayBatch) -> Batch:
        """A batch of tensors that share the memory of arrays."""
        target = batch.target
        return cls(
            tuple(map(torch.from_numpy, batch.inputs)),
            torch.from_numpy(target) if isinstance(target, np.ndarray) else target,
        )

    @property
    def size(self) -> int:
        """The number of examples."""
        return self.inputs[0].shape[0]

    def part(self, index: int, count: int) -> Batch:
        """Part ``index`` of ``count`` parts, of equal size as far as possible."""
        bounds = [self.size * i // count for i in (index, index + 1)]
        target = self.target[slice(*bounds)] if isinstance(self.target, torch.Tensor) else self.target
        return Batch(tuple(tensor[slice(*bounds)] for tensor in self.inputs), target)

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        target = self.target
        if isinstance(target, torch.Tensor):
            target = target.to(device, non_blocking=True)
        return Batch(tuple(tensor.to(device, non_blocking=True) for tensor in self.inputs), target)


def input_specs(model: Model) -> list[TensorSpec]:
    """The inputs that have to be fed.

    Raises:
        UsageError: the model has none.
        UnsupportedError: one of them is not a tensor.
    """
    specs = list(model_inputs(model))
    if not specs:
        raise UsageError("the model has no input; there is nothing to train on")
    return specs


def make_batch(item: Any, specs: Sequence[TensorSpec], where: str = "the data") -> Batch:
    """A batch from what a loader gives.

    Args:
        item: ``(inputs..., target)``, or a mapping of input names and ``target``; a tensor alone for a model of one
            input that needs no target. Inputs may be numpy arrays.
        specs: the model's inputs.
        where: what error messages call the data.

    Raises:
        UsageError: it does not fit the model.
    """
    values, target = parts_of(item, specs, where)
    inputs = tuple(_tensor(value, spec, where) for value, spec in zip(values, specs, strict=True))
    target = torch.from_numpy(target) if isinstance(target, np.ndarray) else target
    counted = [target.shape[0]] if isinstance(target, torch.Tensor) and target.dim() else []
    check_sizes([*(tensor.shape[0] for tensor in inputs), *counted], where)
    return Batch(inputs, target)


def _tensor(value: Any, spec: TensorSpec, where: str) -> torch.Tensor:
    tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{where}: {spec.name!r} is a {type(value).__name__}; give tensors or numpy arrays")
    own = np.dtype(np.float32) if tensor.dtype == torch.bfloat16 else np.dtype(str(tensor.dtype).removeprefix("torch."))
    check_input(spec, tensor.shape, own, where)
    # The model computes in the type of its input: images may come as bytes, tokens as 32-bit numbers.
    return tensor.to(getattr(torch, spec.dtype.name))
