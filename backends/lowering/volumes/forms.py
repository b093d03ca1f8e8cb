"""A volume as tensors of four axes: the forms that it has, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Form", "Place", "Size", "Sizes", "Volume"]


class Form(Enum):
    """How a tensor holds a volume of [n, c, d, h, w]."""

    # As the model has it.
    VOLUME = auto()
    # An image for each frame: [n * d, c, h, w].
    FRAMES = auto()
    # An image for each volume, with a row for each frame: [n, c, d, h * w]. In memory that is the volume.
    STACK = auto()


@dataclass(frozen=True)
class Place:
    """A size that only a run knows: that of an axis of a tensor."""

    tensor: str
    axis: int


Size = int | Place
# Of channels, frames, height and width; the number of volumes is what these leave of a tensor.
Sizes = tuple[int, Size, Size, Size]


@dataclass
class Volume:
    """A value of five axes.

    Attributes:
        name: in the model.
        sizes: of its axes but the first.
        forms: tensors that hold it.
        native: the form that it was made in.
    """

    name: str
    sizes: Sizes
    forms: dict[Form, str]
    native: Form
