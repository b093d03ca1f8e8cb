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

    def along(self, out_axis: int, in_axis: int) -> ScoreShaper:
        """The same for a tensor whose output and input features are these dimensions, not 0 and 1."""
        return self

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

    A group is a number of consecutive output features: the rows of an attention head, say.
    """

    def __init__(self, num_groups: int, axis: int = 0) -> None:
        """Groups.

        Args:
            num_groups: how many.
            axis: dimension of the output features.
        """
        self.num_groups, self.axis = num_groups, axis

    def __call__(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Unshape]:
        moved = tensor.movedim(self.axis, 0)
        shape = moved.shape
        return (
            moved.reshape(self.num_groups, -1),
            lambda rows: rows.reshape(shape).movedim(0, self.axis).contiguous(),
        )

    def along(self, out_axis: int, in_axis: int) -> OutputGroupScoreShaper:
        return OutputGroupScoreShaper(self.num_groups, out_axis)

    def check(self, name: str, shape: torch.Size) -> None:
        _check_groups(name, shape, self.axis, self.num_groups)


class InputGroupScoreShaper(OutputGroupScoreShaper):
    """The same of input features, of matrices only: ``[outputs, inputs]`` becomes ``[groups, -1]``."""

    def __init__(self, num_groups: int, axis: int = 1) -> None:
        """Groups.

        Args:
            num_groups: how many.
            axis: dimension of the input features.
        """
        super().__init__(num_groups, axis)

    def along(self, out_axis: int, in_axis: int) -> InputGroupScoreShaper:
        return InputGroupScoreShaper(self.num_groups, in_axis)

    def check(self, name: str, shape: torch.Size) -> None:
        if len(shape) != 2:
            raise UsageError(f"balance_in_groups is for matrices, and {name!r} has shape {list(shape)}")
        super().check(name, shape)


def _check_groups(name: str, shape: torch.Size, dim: int, groups: int) -> None:
    # cstorch lets any dimension of the first parameter decide; a group that crosses features would balance nothing.
    if len(shape) <= dim or shape[dim] % groups:
        raise UsageError(f"{groups} balanced groups do not divide dimension {dim} of {name!r}, of shape {list(shape)}")
