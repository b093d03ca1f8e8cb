"""Memory of caches that many steps of a decoder go on in.

Past and present are the beginning of one array there. Arrays for each step would be made, checked and taken apart each
time, for every layer, which takes as long as a small decoder's layers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.cached_arrays import CacheArrays, SharedArrays, cache_arrays, fitting_mask
from sift_onnx.backends.cpu.run.input_checks import InputCheck
from sift_onnx.backends.lowering.specs.decoding import CacheNames
from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["CacheInRoom", "CacheRooms", "CacheStep", "caches_of_step", "can_have_rooms"]

Array = npt.NDArray[Any]
# The room, tokens before and after the run, those of each sequence's past and those that count, the mask.
CacheInRoom = tuple[_kernels.CacheRoom, int, int, Array | None, Array | None, Array | None]
# Of [sequences, heads, tokens, depth].
_LENGTH_AXIS = 2


class CacheRooms:
    """Keys and values of all layers, with room for more tokens than there are.

    Attributes:
        presents: for each cache, by the name of its input, the output that it is after a step.
        check: of the inputs that are no cache.
    """

    def __init__(self, arrays: Mapping[str, Array], presents: Mapping[str, str], inputs: Sequence[TensorSpec]) -> None:
        """Take the memory.

        Args:
            arrays: [sequences, heads, room, depth] in float32, by the names of inputs.
            presents: as above.
            inputs: of the model.

        Raises:
            UsageError: an array does not fit the model.
        """
        self.presents = dict(presents)
        self._arrays = dict(arrays)
        self._by_present = {presents[past]: array for past, array in arrays.items()}
        # By the identity of a region's caches.
        self._rooms: dict[int, tuple[tuple[CacheNames, ...], tuple[_kernels.CacheRoom | None, ...]]] = {}
        # What axes of caches are called: those that stay as they are, and those of past tokens.
        self._sizes: dict[str, int] = {}
        self._lengths: set[str] = set()
        for spec in inputs:
            if spec.name in arrays:
                self._take_sizes(spec, arrays[spec.name].shape)
        self.check = InputCheck([spec for spec in inputs if spec.name not in arrays])

    def _take_sizes(self, spec: TensorSpec, shape: tuple[int, ...]) -> None:
        for axis, (extent, size) in enumerate(zip(spec.extents, shape, strict=True)):
            if axis == _LENGTH_AXIS:
                self._lengths.update((extent,) if isinstance(extent, str) else ())
            elif (self._sizes.setdefault(extent, size) if isinstance(extent, str) else extent or size) != size:
                raise UsageError(f"the cache {spec.name!r} has {size} along axis {axis}; the model has {extent}")

    def sizes(self, past: int) -> dict[str, int]:
        """What the names of sizes of caches stand for, with ``past`` tokens."""
        return {**self._sizes, **dict.fromkeys(self._lengths, past)}

    def rooms_of(self, caches: tuple[CacheNames, ...]) -> tuple[_kernels.CacheRoom | None, ...]:
        """The memory of each layer; None where its cache is not among these."""
        found = self._rooms.get(id(caches))
        if found is None:
            # The tuple is kept as well: its identity stays.
            found = self._rooms[id(caches)] = caches, tuple(map(self._room, caches))
        return found[1]

    def _room(self, names: CacheNames) -> _kernels.CacheRoom | None:
        if names.past_keys not in self._arrays:
            return None
        return _kernels.CacheRoom(self._arrays[names.past_keys], self._arrays[names.past_values])

    def past(self, tokens: int, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Caches of the first ``tokens`` tokens, by the names of inputs: of all, or of those among ``names``."""
        chosen = self._arrays if names is None else self._arrays.keys() & names
        return {name: self._arrays[name][:, :, :tokens] for name in chosen}

    def present(self, tokens: int) -> dict[str, Array]:
        """The same by the names of outputs."""
        return {name: array[:, :, :tokens] for name, array in self._by_present.items()}

    def keep(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Take what a step has made elsewhere; the outputs that are no cache."""
        others = dict(outputs)
        for name, array in self._by_present.items():
            made = others.pop(name)
            if not np.may_share_memory(array, made):
                # All of it: a shorter sequence goes on at a place of its own.
                array[:, :, : made.shape[_LENGTH_AXIS]] = made
        return others


@dataclass(frozen=True)
class CacheStep:
    """A run that goes on in rooms, of which the first ``past`` tokens are there."""

    rooms: CacheRooms
    past: int


def caches_of_step(
    caches: tuple[CacheNames, ...],
    values: Mapping[str, Array],
    scores: Sequence[tuple[int, int, int]],
    step: CacheStep,
    shared: SharedArrays,
) -> list[CacheArrays | CacheInRoom]:
    """As :func:`cache_arrays`, of all caches of a step in rooms; what is only read is among ``values``."""
    found: list[CacheArrays | CacheInRoom] = []
    last: tuple[object, ...] = ()
    for names, own, room in zip(caches, scores, step.rooms.rooms_of(caches), strict=True):
        if room is None:
            found.append(cache_arrays(names, values, own, _nothing_new, {}, shared))
            continue
        if (names.places, own) != last:
            last = names.places, own
            total, past_of, ends_of = shared.lengths(names, values, step.past, own[2])
            mask = fitting_mask(names, values, own, step.past, total, shared)
        found.append((room, step.past, total, past_of, ends_of, mask))
    return found


def _nothing_new(sizes: tuple[int, ...]) -> Array:
    raise AssertionError(f"a cache of {sizes} is written, and has no room")


def can_have_rooms(regions: Iterable[Region], presents: Mapping[str, str]) -> bool:
    """Whether kernels append to these caches and no others, ``presents`` by the names of inputs.

    Parts of onnxruntime may read them, and kernels may not but for this.
    """
    appended: dict[str, str] = {}
    for region in regions:
        others = {name for name, _ in region.inputs}.union(*(one.inputs for one in region.prepared))
        for cache in region.caches:
            others.update(part.name for part in cache.masks)
            if cache.starts:
                return False
            if cache.keys:
                appended |= {cache.past_keys: cache.keys, cache.past_values: cache.values}
        if not others.isdisjoint(presents):
            return False
    return appended == dict(presents)
