"""Examples that can be picked by number: arrays in memory, or labelled images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sift_onnx.datasets.batches import ArrayBatch
from sift_onnx.datasets.images import Images
from sift_onnx.datasets.normalization import Normalization
from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec, shape_text

__all__ = ["ArrayExamples", "Augment", "Examples", "ImageExamples"]

Rows = npt.NDArray[np.int64]
# Pixels ``[images, channels, height, width]`` to others of the same shape.
Augment = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]]


class Examples(Protocol):
    """Examples of a data set.

    Attributes:
        count: how many.
        fingerprint: what a resumed run must find again, in words.
    """

    count: int
    fingerprint: str

    @property
    def target(self) -> npt.NDArray[Any] | None:
        """``[count]`` or more; None where there is none."""

    def batch(self, rows: Rows) -> ArrayBatch:
        """Examples ``rows``."""


class ArrayExamples:
    """Arrays whose first axis counts examples: one per input of the model, and the target."""

    def __init__(self, inputs: Sequence[npt.NDArray[Any]], target: npt.NDArray[Any] | None) -> None:
        self._inputs, self.target = inputs, target
        self.count = len(inputs[0])
        arrays = [*inputs, *([] if target is None else [target])]
        self.fingerprint = ", ".join(f"{list(array.shape)} {array.dtype}" for array in arrays)

    def batch(self, rows: Rows) -> ArrayBatch:
        """Examples ``rows``."""
        return ArrayBatch(
            tuple(array[rows] for array in self._inputs), None if self.target is None else self.target[rows]
        )


class ImageExamples:
    """Labelled images for a model with one input ``[N, channels, height, width]``.

    Pixels are scaled to 0 to 1 and normalized where the input is floating point, and stay bytes where it takes bytes.

    Args:
        images: and their labels.
        specs: the model's inputs.
        where: what error messages call the data.
        normalization: of pixels from 0 to 1; None leaves them so.
        augment: changes pixels before that; None leaves them.

    Raises:
        UsageError: the model does not take images, or its input leaves a size open that the images do not have.
    """

    def __init__(
        self,
        images: Images,
        specs: Sequence[TensorSpec],
        where: str,
        normalization: Normalization | None = None,
        augment: Augment | None = None,
    ) -> None:
        spec = specs[0]
        if len(specs) > 1 or spec.shape is None or len(spec.shape) != 4:
            inputs = ", ".join(f"{s.name} {shape_text(s.shape)}" for s in specs)
            raise UsageError(
                f"{where} has images, for a model with one input [N, channels, height, width]; "
                f"this one takes {inputs}; write FILE.py:FUNCTION"
            )
        if spec.dtype.kind != "f" and spec.dtype != np.uint8:
            raise UsageError(f"{where} has images, and input {spec.name!r} is {spec.dtype}; write FILE.py:FUNCTION")
        if spec.dtype.kind != "f" and normalization is not None:
            raise UsageError(f"input {spec.name!r} takes bytes, which are not normalized; drop `normalize`")
        own = images.shape or (3, None, None)
        sizes = [e if isinstance(e, int) else size for e, size in zip(spec.extents[1:], own, strict=True)]
        if None in sizes:
            raise UsageError(
                f"{where}: image files are resized to the model's size, which input {spec.name!r} "
                f"{shape_text(spec.shape)} leaves open; export the model for one size"
            )
        channels, height, width = (int(size or 0) for size in sizes)
        if normalization is not None:
            normalization.check(channels)
        self._images, self._dtype, self._shape = images, spec.dtype, (channels, height, width)
        self._normalization, self._augment = normalization, augment
        self.target: npt.NDArray[np.int64] = images.labels
        self.count = len(self.target)
        self.fingerprint = f"{self.count} images of {list(self._shape)}"

    def batch(self, rows: Rows) -> ArrayBatch:
        """Examples ``rows``."""
        pixels = self._images.pixels(rows, self._shape)
        if self._augment is not None:
            pixels = self._augment(pixels)
        if self._dtype.kind != "f":
            return ArrayBatch((np.array(pixels),), self.target[rows])
        scaled = pixels.astype(self._dtype) / self._dtype.type(255)
        if self._normalization is not None:
            scaled = self._normalization.apply(scaled)
        return ArrayBatch((scaled,), self.target[rows])
