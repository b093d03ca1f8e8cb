"""Examples as onnxruntime's calibration reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnxruntime.quantization import CalibrationDataReader

from sift_onnx.datasets.batches import ArrayBatch
from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["CalibrationBatches"]


class CalibrationBatches(CalibrationDataReader):  # type: ignore[misc]
    """Batches of one size, one after another.

    Attributes:
        examples: that were read so far.
    """

    def __init__(self, batches: Iterator[ArrayBatch], specs: Sequence[TensorSpec], size: int, where: str) -> None:
        """Wrap an iterator.

        Args:
            batches: of at most ``size`` examples.
            specs: the model's inputs.
            size: of every batch: the last one repeats its examples, since a histogram takes arrays of one shape.
            where: what error messages call the data.

        Raises:
            UsageError: there is no batch.
        """
        first = next(batches, None)
        if first is None:
            raise UsageError(f"{where} has no examples")
        self._batches, self._specs, self._size = itertools.chain([first], batches), specs, size
        self.examples = 0

    def get_next(self) -> Mapping[str, npt.NDArray[Any]] | None:
        """The next batch by the names of the inputs; None at the end."""
        batch = next(self._batches, None)
        if batch is None:
            return None
        self.examples += batch.size
        rows = np.arange(self._size) % batch.size
        return {spec.name: array[rows] for spec, array in zip(self._specs, batch.inputs, strict=True)}
