"""Sequences of tensors, which are Python lists, and optional values, which may be None."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sift_onnx.training.host import ints, number
from sift_onnx.training.registry import kernel

__all__: list[str] = []


@kernel("SequenceEmpty", since=11)
def sequence_empty(*, dtype: int = 1) -> list[Tensor]:
    return []


@kernel("SequenceConstruct", since=11)
def sequence_construct(*parts: Tensor) -> list[Tensor]:
    return list(parts)


@kernel("SequenceInsert", since=11, host=(2,))
def sequence_insert(sequence: list[Tensor], tensor: Tensor, position: Any = None) -> list[Tensor]:
    at = len(sequence) if position is None else int(number(position))
    return [*sequence[:at], tensor, *sequence[at:]]


@kernel("SequenceErase", since=11, host=(1,))
def sequence_erase(sequence: list[Tensor], position: Any = None) -> list[Tensor]:
    at = (len(sequence) - 1 if position is None else int(number(position))) % len(sequence)
    return [*sequence[:at], *sequence[at + 1 :]]


@kernel("SequenceAt", since=11, host=(1,))
def sequence_at(sequence: list[Tensor], position: Any) -> Tensor:
    return sequence[int(number(position))]


@kernel("SequenceLength", since=11)
def sequence_length(sequence: list[Tensor]) -> Tensor:
    return torch.tensor(len(sequence))


@kernel("ConcatFromSequence", since=11)
def concat_from_sequence(sequence: list[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    return torch.stack(sequence, axis) if new_axis else torch.cat(sequence, axis)


@kernel("SplitToSequence", since=11, host=(1,))
def split_to_sequence(x: Tensor, sizes: Any = None, *, axis: int = 0, keepdims: int = 1) -> list[Tensor]:
    """Pieces of equal size if ``sizes`` is one number, of the given sizes if it is a list, or of size 1.

    Without ``keepdims``, pieces of size 1 have no axis. Beside a list, or another number, it says nothing.
    """
    scalar = sizes is None or isinstance(sizes, int) or getattr(sizes, "ndim", 1) == 0
    size = 1 if sizes is None else ints(sizes)[0] if scalar else ints(sizes)
    return list(x.unbind(axis)) if scalar and size == 1 and not keepdims else list(torch.split(x, size, axis))


@kernel("Optional", since=15)
def optional(value: Any = None, *, type: Any = None) -> Any:
    return value


@kernel("OptionalHasElement", since=15)
def optional_has_element(value: Any = None) -> Tensor:
    return torch.tensor(value is not None)


@kernel("OptionalGetElement", since=15)
def optional_get_element(value: Any) -> Any:
    return value
