"""Sizes that are assumed for open axes where no weight depends on them: those of images, sequences and their like.

What an axis is follows from the input's type, its number of axes, and which of these are open:

==========================================  ==================================
integers or booleans, up to 3 axes          lengths of sequences
``[N, T, features]``, ``[N, features, T]``  lengths
``[C, H, W]``, up to 4 channels             an image
``[N, C, H, W]``, ``[N, H, W, C]``          an image
``[N, C, T, H, W]``, ``[N, T, C, H, W]``,   a video
``[N, T, H, W, C]``
==========================================  ==================================

Beside token ids, open axes of other inputs are lengths too (caches, masks), unless it is an image of 3 channels. A mask
with a length of its own beside a cache is of the tokens in it and of new ones.
Nothing is assumed of any other axis, of floats ``[N, features]`` say: it may be the width of a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sift_onnx.shapes.open_axes import Extent
from sift_onnx.shapes.symbol_expressions import names_in

__all__ = ["OpenInput", "Place", "nominal_sizes"]

# What has one size: all axes of a symbol, or an axis of an input that has none.
Place = str | tuple[str, int]

# Per kind of axis the sizes that are tried, the most usual first. Networks that look at an image in windows and patches
# take but multiples of these (224 = 7 * 32, 256, 384, 518 = 37 * 14); those that flatten it a single size.
_IMAGE = (224, 256, 384, 518, 640, 299, 32, 28)
_CLIP = (112, 224, 96)
_FRAMES = (16, 8, 32)
_LENGTH = (128, 77, 64, 512, 3000)
_MOST_GUESSES = 16

_MOST_CHANNELS = 4


@dataclass(frozen=True)
class OpenInput:
    """An input whose shape may not be known yet.

    Attributes:
        name: as the model has it.
        dtype: of the array.
        extents: what is known by now stands as a size, the batch too.
        batch: axes that are the batch.
    """

    name: str
    dtype: np.dtype[Any]
    extents: tuple[Extent, ...]
    batch: tuple[int, ...] = ()

    @property
    def open_axes(self) -> tuple[int, ...]:
        """Axes without a size."""
        return tuple(axis for axis, extent in enumerate(self.extents) if not isinstance(extent, int))

    @property
    def holds_integers(self) -> bool:
        """Whether it may hold ids, positions or a mask; bytes are pixels."""
        return self.dtype.kind in "iub" and self.dtype != np.uint8

    def place(self, axis: int) -> Place:
        """Of an open axis."""
        extent = self.extents[axis]
        return extent if isinstance(extent, str) else (self.name, axis)


def nominal_sizes(inputs: Sequence[OpenInput], known: Collection[str] = ()) -> Iterator[dict[Place, int]]:
    """Sizes to try for all open axes that something can be assumed of, the most usual first; one entry at least.

    Args:
        inputs: those that may have open axes.
        known: symbols whose size is known; one that is computed from these and from others of ``inputs`` gets none.
    """
    places = _places(inputs, known)
    kinds = list(dict.fromkeys(places.values()))
    choices = itertools.product(*(range(len(kind)) for kind in kinds))
    for choice in itertools.islice(sorted(choices, key=lambda places: (sum(places), places)), _MOST_GUESSES):
        size = {kind: kind[index] for kind, index in zip(kinds, choice, strict=True)}
        sizes = {place: size[kind] for place, kind in places.items()}
        yield sizes | {mask: sizes[tokens] + sizes[past] for mask, tokens, past in _masks(inputs) if mask in sizes}


def _masks(inputs: Sequence[OpenInput]) -> Iterator[tuple[Place, Place, Place]]:
    """Lengths of masks, which are those of new tokens and of a cache together; each with the other two."""
    integers = [spec for spec in inputs if spec.holds_integers and len(spec.extents) == 2 and 1 in spec.open_axes]
    masks = [spec for spec in integers if "mask" in spec.name.lower()]
    tokens = next((spec.place(1) for spec in integers if spec not in masks), None)
    caches = (spec for spec in inputs if not spec.holds_integers and len(spec.extents) >= 4)
    past = next((spec.place(spec.open_axes[-1]) for spec in caches if spec.open_axes), None)
    for mask in masks:
        if tokens is not None and past is not None and len({mask.place(1), tokens, past}) == 3:
            yield mask.place(1), tokens, past


def _places(inputs: Sequence[OpenInput], known: Collection[str]) -> dict[Place, tuple[int, ...]]:
    has_tokens = any(spec.holds_integers and len(spec.extents) == 2 and spec.open_axes for spec in inputs)
    places: dict[Place, tuple[int, ...]] = {}
    # Token ids first: a symbol that they share with another input is a length there, too.
    for spec in sorted(inputs, key=lambda spec: not spec.holds_integers):
        for axis in spec.open_axes:
            kind = _kind(spec, axis, has_tokens)
            if kind is not None:
                places.setdefault(spec.place(axis), kind)
    symbols = {place for place in places if isinstance(place, str)}.union(known)
    return {p: kind for p, kind in places.items() if not isinstance(p, str) or not names_in(p) <= symbols - {p}}


def _kind(spec: OpenInput, axis: int, has_tokens: bool) -> tuple[int, ...] | None:
    rank, extents = len(spec.extents), spec.extents
    if spec.holds_integers and rank <= 3:
        return _LENGTH
    fixed = [isinstance(extent, int) for extent in extents]
    if has_tokens and rank > 2 and not (rank == 4 and extents[1] == 3):
        return _LENGTH
    if axis == 0:
        # It is not the batch, so it is what stands before the batch.
        return _LENGTH if rank <= 3 else None
    if rank == 3:
        if fixed[1] or fixed[2]:
            return _LENGTH
        return _IMAGE if 0 not in spec.batch and _is_channels(extents[0]) else None
    if rank == 4:
        channels_last = fixed[3] and (not fixed[2] or _is_channels(extents[3]))
        places = (2, 3) if fixed[1] else (1, 2) if channels_last else ()
        return _IMAGE if axis in places else None
    if rank == 5:
        if fixed[1] and not (_is_channels(extents[2]) and not _is_channels(extents[1])):
            frames, sides = 2, (3, 4)
        elif fixed[2] and _is_channels(extents[2]):
            frames, sides = 1, (3, 4)
        elif fixed[4]:
            frames, sides = 1, (2, 3)
        else:
            return None
        return _FRAMES if axis == frames else _CLIP if axis in sides else None
    return None


def _is_channels(extent: Extent) -> bool:
    return isinstance(extent, int) and extent <= _MOST_CHANNELS
