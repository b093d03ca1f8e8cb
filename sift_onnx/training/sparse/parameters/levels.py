"""The sparsity of each parameter at a step: its schedule's, or its share under a common one."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from sift_onnx.errors import UsageError
from sift_onnx.sparsity.budget import check_distribution
from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection.erk import erk_counts

__all__ = ["Levels"]


class Levels:
    """Sparsities under a distribution.

    Attributes:
        distribution: ``uniform``: every parameter has the sparsity of its schedule; ``erk``: all parameters of a
            schedule have it together.
    """

    def __init__(self, distribution: str = "uniform") -> None:
        self.distribution = check_distribution(distribution)
        self._counts: dict[tuple[int, Share], dict[str, int]] = {}

    def of(self, sparse: SparseParameter, params: Mapping[str, SparseParameter], step: int, pattern: Pattern) -> Share:
        """The sparsity of one parameter, within [0, 1].

        Args:
            sparse: the parameter.
            params: all parameters of its algorithm.
            step: number of optimizer steps so far.
            pattern: of the masks.

        Raises:
            UsageError: not a number; the message names the parameter.
            BudgetError: ``erk`` leaves a parameter without a weight.
        """
        try:
            level = sparse.schedule(step).clamped()
        except UsageError as error:
            raise UsageError(f"sparsity of {sparse.name!r} at step {step}: {error}") from error
        if self.distribution == "uniform":
            return level
        key = (id(sparse.schedule), level)
        if key not in self._counts:
            together = {name: other for name, other in params.items() if other.schedule is sparse.schedule}
            structured = pattern.kind != "unstructured"
            counts = erk_counts(
                {name: tuple(other.param.shape) for name, other in together.items()},
                level,
                {name: pattern.capacity(other.matrix) for name, other in together.items()} if structured else None,
                {name: pattern.unit for name in together} if structured else None,
            )
            self._counts = {key: counts}
        return Share(1 - Fraction(self._counts[key][sparse.name], sparse.param.numel()))
