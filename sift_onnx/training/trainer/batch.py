"""Batches: the inputs of one forward pass, checked against the model's declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.shapes.tensor_specs import TensorSpec, model_inputs

__all__ = ["Batch", "check_input", "input_specs", "make_batch"]


@dataclass(frozen=True)
class Batch:
    """Examples for one forward pass.

    Attributes:
        inputs: one tensor per input of the model, in its order; the first axis counts examples.
        target: what the loss compares with; None if the data has none.
    """

    inputs: tuple[torch.Tensor, ...]
    target: Any = None

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
        UnsupportedError: one of them is no tensor.
    """
    specs = list(model_inputs(model))
    if not specs:
        raise UsageError("the model has no input; there is nothing to train on")
    return specs


def check_input(spec: TensorSpec, shape: Sequence[int], dtype: np.dtype[Any], where: str) -> None:
    """Check an array against an input; the first axis is left to the model.

    Raises:
        UsageError: number of axes, a fixed size or the kind of number differ.
    """
    if spec.shape is not None:
        wanted = [extent if isinstance(extent, int) else None for extent in spec.extents]
        if len(shape) != len(wanted) or any(
            w is not None and w != got for w, got in zip(wanted[1:], shape[1:], strict=True)
        ):
            sizes = ["examples", *("any" if w is None else str(w) for w in wanted[1:])] if wanted else []
            raise UsageError(
                f"{where}: input {spec.name!r} of the model is [{', '.join(sizes)}], the data has {list(shape)}"
            )
    if not shape:
        raise UsageError(f"{where}: {spec.name!r} is a single number; its first axis has to count examples")
    if spec.dtype.kind != dtype.kind and not (spec.dtype.kind == "f" and dtype.kind in "iu"):
        raise UsageError(f"{where}: input {spec.name!r} of the model is {spec.dtype}, the data is {dtype}")


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
    if isinstance(item, Mapping):
        missing = [spec.name for spec in specs if spec.name not in item]
        if missing:
            raise UsageError(f"{where}: a batch has no {missing[0]!r}; it has {', '.join(map(str, item))}")
        values, target = [item[spec.name] for spec in specs], item.get("target")
    elif isinstance(item, (tuple, list)):
        if len(item) not in (len(specs), len(specs) + 1):
            names = ", ".join(spec.name for spec in specs)
            raise UsageError(f"{where}: a batch has {len(item)} parts; the model wants {names}, and then the target")
        values, target = list(item[: len(specs)]), item[len(specs)] if len(item) > len(specs) else None
    else:
        values, target = [item], None
        if len(specs) > 1:
            raise UsageError(f"{where}: a batch is one {type(item).__name__}; the model has {len(specs)} inputs")
    inputs = tuple(_tensor(value, spec, where) for value, spec in zip(values, specs, strict=True))
    sizes = {tensor.shape[0] for tensor in inputs}
    target = torch.from_numpy(target) if isinstance(target, np.ndarray) else target
    if isinstance(target, torch.Tensor) and target.dim():
        sizes.add(target.shape[0])
    if len(sizes) > 1:
        raise UsageError(f"{where}: a batch has parts of {' and '.join(map(str, sorted(sizes)))} examples")
    return Batch(inputs, target)


def _tensor(value: Any, spec: TensorSpec, where: str) -> torch.Tensor:
    tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{where}: {spec.name!r} is a {type(value).__name__}; give tensors or numpy arrays")
    own = np.dtype(np.float32) if tensor.dtype == torch.bfloat16 else np.dtype(str(tensor.dtype).removeprefix("torch."))
    check_input(spec, tensor.shape, own, where)
    # The model computes in the type of its input: images may come as bytes, tokens as 32-bit numbers.
    return tensor.to(getattr(torch, spec.dtype.name))
