"""Examples that can be picked by number: tensors in memory, or labelled images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import torch

from sift_onnx.datasets.images import Images
from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec, shape_text
from sift_onnx.training.trainer.batch import Batch

__all__ = ["Examples", "ImageExamples", "TensorExamples"]


class Examples(Protocol):
    """Examples of a data set.

    Attributes:
        count: how many.
        fingerprint: what a resumed run must find again, in words.
    """

    count: int
    fingerprint: str

    def batch(self, rows: torch.Tensor) -> Batch:
        """Examples ``rows``."""

    def targets(self) -> Iterable[torch.Tensor]:
        """All targets, where there are any."""


class TensorExamples:
    """Tensors whose first axis counts examples: one per input, then the target or None."""

    def __init__(self, tensors: Sequence[torch.Tensor | None]) -> None:
        self._tensors = tensors
        assert tensors[0] is not None
        self.count = tensors[0].shape[0]
        self.fingerprint = ", ".join(f"{list(t.shape)} {t.dtype}" for t in tensors if t is not None)

    def batch(self, rows: torch.Tensor) -> Batch:
        """Examples ``rows``."""
        *inputs, target = (None if tensor is None else tensor[rows] for tensor in self._tensors)
        return Batch(tuple(tensor for tensor in inputs if tensor is not None), target)

    def targets(self) -> Iterable[torch.Tensor]:
        """All targets, where there are any."""
        return [self._tensors[-1]] if self._tensors[-1] is not None else []


class ImageExamples:
    """Labelled images for a model with one input ``[N, channels, height, width]``.

    Pixels are scaled to 0 to 1 where the input is floating point, and stay bytes where it takes bytes.

    Args:
        images: and their labels.
        specs: the model's inputs.
        where: what error messages call the data.

    Raises:
        UsageError: the model does not take images, or its input leaves a size open that the images do not have.
    """

    def __init__(self, images: Images, specs: Sequence[TensorSpec], where: str) -> None:
        spec = specs[0]
        if len(specs) > 1 or spec.shape is None or len(spec.shape) != 4:
            inputs = ", ".join(f"{s.name} {shape_text(s.shape)}" for s in specs)
            raise UsageError(
                f"{where} has images, for a model with one input [N, channels, height, width]; "
                f"this one takes {inputs}; write FILE.py:FUNCTION"
            )
        if spec.dtype.kind != "f" and spec.dtype != np.uint8:
            raise UsageError(f"{where} has images, and input {spec.name!r} is {spec.dtype}; write FILE.py:FUNCTION")
        own = images.shape or (3, None, None)
        sizes = [e if isinstance(e, int) else size for e, size in zip(spec.extents[1:], own, strict=True)]
        if None in sizes:
            raise UsageError(
                f"{where}: image files are resized to the model's size, which input {spec.name!r} "
                f"{shape_text(spec.shape)} leaves open; export the model for one size"
            )
        channels, height, width = (int(size or 0) for size in sizes)
        self._images, self._dtype, self._shape = images, spec.dtype, (channels, height, width)
        self._labels = torch.from_numpy(images.labels)
        self.count = len(self._labels)
        self.fingerprint = f"{self.count} images of {list(self._shape)}"

    def batch(self, rows: torch.Tensor) -> Batch:
        """Examples ``rows``."""
        pixels = self._images.pixels(rows.numpy(), self._shape)
        if self._dtype.kind == "f":
            pixels = pixels.astype(self._dtype) / self._dtype.type(255)
        return Batch((torch.from_numpy(np.array(pixels)),), self._labels[rows])

    def targets(self) -> Iterable[torch.Tensor]:
        """All labels."""
        return [self._labels]
