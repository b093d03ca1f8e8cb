"""Which weights of a tensor compete with each other: all of them, or those of one group of features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from sift_onnx.errors import UsageError

__all__ = ["InputGroupScoreShaper", "OutputGroupScoreShaper", "ScoreFlattener", "ScoreShaper", "Unshape"]

Unshape = Callable[[torch.Tensor], torch.Tensor]


class ScoreShaper(ABC):
    """Lays a tensor out so that the weights along its last dimension compete.

    Names are those of ``cstorch.sparse.utils``.
    """

    @abstractmethod
    def __call__(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Unshape]:
        """The tensor as ``[..., competitors]``, and the function that turns such a tensor back."""

    def check(self, name: str, shape: torch.Size) -> None:  # noqa: B027
        """Refuse a parameter that cannot be laid out so.

        Raises:
            UsageError: it cannot.
        """


class ScoreFlattener(ScoreShaper):
    """All weights of a tensor compete: ``[numel]``."""

    def __call__(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Unshape]:
        shape = tensor.shape
        return tensor.reshape(-1), lambda flat: flat.reshape(shape)


class OutputGroupScoreShaper(ScoreShaper):
    """Weights of a group of output features compete, so that all groups keep the same number: ``[groups, -1]``.

    Output features are the first dimension; a group is so many consecutive ones, the rows of an attention head, say.
    """

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups

    def __call__(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Unshape]:
        shape = tensor.shape
        return tensor.reshape(self.num_groups, -1), lambda rows: rows.reshape(shape)

    def check(self, name: str, shape: torch.Size) -> None:
        _check_groups(name, shape, 0, self.num_groups)


class InputGroupScoreShaper(ScoreShaper):
    """Weights of a group of input features compete: ``[outputs, inputs]`` becomes ``[groups, -1]``."""

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups

    def __call__(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Unshape]:
        outputs, inputs = tensor.shape
        return tensor.t().reshape(self.num_groups, -1), lambda rows: rows.reshape(inputs, outputs).t().contiguous()

    def check(self, name: str, shape: torch.Size) -> None:
        if len(shape) != 2:
            raise UsageError(f"balance_in_groups is for matrices, and {name!r} has shape {list(shape)}")
        _check_groups(name, shape, 1, self.num_groups)


def _check_groups(name: str, shape: torch.Size, dim: int, groups: int) -> None:
    # cstorch lets any dimension of the first parameter decide; a group that crosses features would balance nothing.
    if len(shape) <= dim or shape[dim] % groups:
        raise UsageError(f"{groups} balanced groups do not divide dimension {dim} of {name!r}, of shape {list(shape)}")
