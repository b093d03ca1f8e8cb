"""What the functional fidelity returns: outputs, and how far they are from onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sift_onnx.records.simulate import Execution, OutputDifference
from sift_onnx.verify.checks import max_abs_error

__all__ = ["Arithmetic", "Executed", "difference"]

Arithmetic = Literal["float32", "float16"]


@dataclass(frozen=True)
class Executed:
    """A run of the functional model on random inputs, compared with onnxruntime's on the same.

    Attributes:
        arithmetic: ``float32``, or ``float16`` in the order of arrival.
        seed: of the inputs.
        inputs: shapes by name.
        nodes: how many run as ``csr``, and how many in ``onnxruntime``.
        outputs: against onnxruntime's, which are of the model's own precision.
        arrays: the outputs by name.
    """

    arithmetic: Arithmetic
    seed: int
    inputs: Mapping[str, tuple[int, ...]]
    nodes: Mapping[str, int]
    outputs: tuple[OutputDifference, ...]
    arrays: Mapping[str, npt.NDArray[Any]] = field(repr=False)

    def report(self) -> Execution:
        """``functional`` of what ``simulate`` reports."""
        return Execution(
            arithmetic=self.arithmetic,
            seed=self.seed,
            inputs=dict(self.inputs),
            nodes=dict(self.nodes),
            outputs=self.outputs,
        )


def difference(name: str, array: npt.NDArray[Any], expected: npt.NDArray[Any]) -> OutputDifference:
    """How far an output is from the reference, which has the same shape."""
    return OutputDifference(
        name,
        array.shape,
        max_abs_error({name: array}, {name: expected}),
        max_abs_error({name: expected}, {name: np.zeros_like(expected)}),
    )
