"""Normalization of pixels: what is subtracted and divided by, channel by channel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.errors import UsageError

__all__ = ["Normalization"]

# The figures that torchvision's and timm's classifiers were trained with.
_NAMED = {"imagenet": "0.485,0.456,0.406/0.229,0.224,0.225"}


@dataclass(frozen=True)
class Normalization:
    """``(pixels - mean) / std`` of pixels from 0 to 1.

    Attributes:
        mean: for each channel, or one for all.
        std: likewise.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def parse(cls, text: str | None) -> Normalization | None:
        """What ``text`` spells: ``imagenet``, or ``MEAN/STD`` such as ``0.5/0.5`` or ``0.4,0.5,0.6/0.2,0.2,0.2``.

        None and ``none`` mean no normalization.

        Raises:
            UsageError: it is none of these.
        """
        if text is None or text == "none":
            return None
        parts = [part.split(",") for part in _NAMED.get(text, text).split("/")]
        try:
            mean, std = (tuple(map(float, part)) for part in parts)
        except ValueError:
            mean, std = (), ()
        if not mean or len(mean) != len(std) or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
            raise UsageError(
                f"`normalize` is {text!r}; write imagenet, none, or MEAN/STD with a number for each channel, as in "
                "0.485,0.456,0.406/0.229,0.224,0.225"
            )
        return cls(mean, std)

    def check(self, channels: int) -> None:
        """Check that there is a number for each channel.

        Raises:
            UsageError: there is not.
        """
        if len(self.mean) not in (1, channels):
            raise UsageError(f"`normalize` is for {len(self.mean)} channels, and the model takes {channels}")

    def apply(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Normalized pixels ``[images, channels, height, width]``, of the same type."""
        mean, std = (np.array(values, pixels.dtype).reshape(-1, 1, 1) for values in (self.mean, self.std))
        result: npt.NDArray[Any] = (pixels - mean) / std
        return result
