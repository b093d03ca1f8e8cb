"""What a region reads and makes besides the operands of its operators: caches, masks, and rows of tables.

Their sizes change from token to token, and a region's schedule does not: it has one for each number of sequences and of
new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.cpu.lower.region import PreparedRows
from sift_onnx.backends.lowering.dims import bound
from sift_onnx.backends.lowering.specs.decoding import CacheNames, MaskPart, TableRows
from sift_onnx.backends.lowering.weights import Floats
from sift_onnx.errors import UsageError

__all__ = ["CacheArrays", "SharedArrays", "cache_arrays", "fitting_mask", "look_ups", "prepared_rows"]

Array = npt.NDArray[Any]
# Past keys and values, those after the run, the tokens of each sequence's past and those that count, the mask.
CacheArrays = tuple[Array, Array, Array | None, Array | None, Array | None, Array | None, Array | None]
_Lengths = tuple[int, npt.NDArray[np.int64] | None, npt.NDArray[np.int64] | None]


@dataclass(frozen=True)
class _LookUp:
    """Rows at the same places of some tables, by the names of the outputs."""

    inputs: tuple[str, ...]
    spec: TableRows
    tables: tuple[tuple[Floats, str], ...]


def look_ups(rows: Iterable[PreparedRows]) -> tuple[_LookUp, ...]:
    """``rows`` by their places."""
    places: dict[tuple[str, ...], list[PreparedRows]] = {}
    for one in rows:
        places.setdefault((one.spec.kind, *one.inputs), []).append(one)
    return tuple(
        _LookUp(tuple(inputs), alike[0].spec, tuple((one.spec.table, one.output) for one in alike))
        for (_, *inputs), alike in places.items()
    )


def prepared_rows(
    rows: Sequence[_LookUp], values: Mapping[str, Array], sizes: Mapping[str, int], shared: SharedArrays
) -> dict[str, Array]:
    """Rows of tables by the names that the region has for them.

    Args:
        rows: what is looked up.
        values: positions, and lengths of sequences, by name.
        sizes: of axes with a name.
        shared: what the run has made so far.

    Raises:
        UsageError: a position is beyond its table.
    """
    found: dict[str, Array] = {}
    for one in rows:
        index = _places(one, values, sizes, shared)
        lowest, highest = (int(index.min()), int(index.max())) if index.size else (0, 0)
        for table, output in one.tables:
            if lowest < 0 or highest >= len(table):
                beyond = lowest if lowest < 0 else highest
                raise UsageError(f"{one.inputs[0]!r} asks for position {beyond}; the model has {len(table)}")
            found[output] = table.take(index, 0)
    return found


def _places(one: _LookUp, values: Mapping[str, Array], sizes: Mapping[str, int], shared: SharedArrays) -> Array:
    if one.spec.kind == "positions":
        return values[one.inputs[0]]
    tokens = bound(one.spec.tokens, sizes)
    assert isinstance(tokens, int)
    past = shared.past_of(values, one.inputs[0], one.inputs[1], tokens)
    return past[:, None] + np.arange(tokens)


def _past_of(values: Mapping[str, Array], lengths: str, total: str, tokens: int) -> npt.NDArray[np.int64]:
    after = values[lengths].reshape(-1).astype(np.int64) + 1
    if tokens == int(values[total].reshape(-1)[0]):
        # The first run: a shorter prompt is padded behind.
        return np.zeros_like(after)
    past = after - tokens
    if past.size and int(past.min()) < 0:
        raise UsageError(
            f"{lengths!r} says that a sequence has {int(after.min())} tokens after a run on {tokens} new ones"
        )
    return past


def cache_arrays(
    names: CacheNames,
    values: Mapping[str, Array],
    scores: tuple[int, int, int],
    new_array: Callable[[tuple[int, ...]], Array],
    into: Mapping[str, Array],
    shared: SharedArrays,
) -> CacheArrays:
    """The arrays of one step's cache.

    Args:
        names: of the arrays.
        values: what is read, by name.
        scores: sequences, heads and new tokens.
        new_array: makes what the step writes.
        into: arrays of the caller's for it, by name; they may hold the past already, where they begin as it does.
        shared: what other steps of this run have made.

    Raises:
        UsageError: the cache or a mask does not fit the tokens.
    """
    past_keys, past_values = values[names.past_keys], values[names.past_values]
    sequences, _, tokens = scores
    past = past_keys.shape[2]
    if past_keys.shape[:3] != past_values.shape[:3] or past_keys.shape[0] != sequences:
        raise UsageError(
            f"the caches {names.past_keys!r} and {names.past_values!r} are {list(past_keys.shape)} and "
            f"{list(past_values.shape)}, for {sequences} sequences"
        )
    total, past_of, ends_of = shared.lengths(names, values, past, tokens)
    made: list[Array | None] = [
        _target(name, (*array.shape[:2], total, array.shape[3]), into, new_array) if name else None
        for name, array in ((names.keys, past_keys), (names.values, past_values))
    ]
    mask = fitting_mask(names, values, scores, past, total, shared)
    return _rows(past_keys), _rows(past_values), made[0], made[1], past_of, ends_of, mask


def fitting_mask(
    names: CacheNames,
    values: Mapping[str, Array],
    scores: tuple[int, int, int],
    past: int,
    total: int,
    shared: SharedArrays,
) -> Array | None:
    """What is added to the scores of a step; None where that is nothing. Arguments and errors as above."""
    if not names.masks:
        return None
    mask = shared.mask(names.masks, values)
    fits = all(size in (1, full) for size, full in zip(mask.shape[:3], scores, strict=True))
    if not fits or mask.shape[3] != total:
        raise UsageError(
            f"a mask of attention is {list(mask.shape)}, and the scores are {[*scores, total]}: the cache "
            f"{names.past_keys!r} has {past} tokens, and the run {scores[2]} new ones"
        )
    return mask


class SharedArrays:
    """Masks and lengths of one run: layers have them in common."""

    def __init__(self) -> None:
        """Nothing is made yet."""
        self._masks: dict[tuple[MaskPart, ...], Array] = {}
        self._lengths: dict[tuple[object, ...], _Lengths] = {}
        self._past_of: dict[tuple[str, str, int], npt.NDArray[np.int64]] = {}

    def mask(self, parts: tuple[MaskPart, ...], values: Mapping[str, Array]) -> Array:
        """What is added to scores, of four axes."""
        found = self._masks.get(parts)
        if found is None:
            found = self._masks[parts] = _mask(parts, values)
        return found

    def lengths(self, names: CacheNames, values: Mapping[str, Array], past: int, tokens: int) -> _Lengths:
        """Tokens after the run, and those of each sequence's past and end where they differ.

        Raises:
            UsageError: they do not fit a cache of ``past`` tokens and ``tokens`` new ones.
        """
        key = (names.lengths, names.total, names.starts, names.ends, not names.keys, past, tokens)
        found = self._lengths.get(key)
        if found is None:
            found = self._lengths[key] = _lengths(names, values, past, tokens, self)
        return found

    def past_of(self, values: Mapping[str, Array], lengths: str, total: str, tokens: int) -> npt.NDArray[np.int64]:
        """Tokens of each sequence's past, out of those after the run, less one.

        Raises:
            UsageError: a sequence has fewer tokens after the run than it brings.
        """
        found = self._past_of.get((lengths, total, tokens))
        if found is None:
            found = self._past_of[lengths, total, tokens] = _past_of(values, lengths, total, tokens)
        return found


def _lengths(names: CacheNames, values: Mapping[str, Array], past: int, tokens: int, shared: SharedArrays) -> _Lengths:
    if not names.keys:
        if not past:
            raise UsageError(f"the cache {names.past_keys!r} has no tokens, and nothing is added to it")
        return past, None, None
    if names.starts:
        return (past, *_fixed_places(names, values, tokens, past))
    if not names.lengths:
        return past + tokens, None, None
    asked = int(values[names.total].reshape(-1)[0])
    if asked > past and asked != past + tokens:
        raise UsageError(
            f"{names.total!r} is {asked}; with {past} tokens in the cache {names.past_keys!r} and {tokens} new ones it "
            f"is {past + tokens}, or at most {past} where the cache has room for the new ones"
        )
    total = max(past, asked)
    last = values[names.lengths].reshape(-1)
    if last.size and not 0 <= int(last.min()) <= int(last.max()) < total:
        raise UsageError(
            f"{names.lengths!r} is {last.tolist()}; each number is the place of a sequence's last token, and the cache "
            f"{names.past_keys!r} has {total} tokens after the run"
        )
    past_of = shared.past_of(values, names.lengths, names.total, tokens)
    if past_of.size and (int(past_of.max()) > past or int(past_of.max()) + tokens > total):
        raise UsageError(
            f"{names.lengths!r} says that a sequence has {int(past_of.max())} tokens before the run; its cache "
            f"{names.past_keys!r} has {past}"
        )
    return total, past_of, None


def _fixed_places(
    names: CacheNames, values: Mapping[str, Array], tokens: int, room: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Where the new tokens of each sequence are written in a cache that has ``room``, and how many count."""
    starts = values[names.starts].reshape(-1).astype(np.int64)
    if starts.size and (int(starts.min()) < 0 or int(starts.max()) + tokens > room):
        raise UsageError(
            f"{names.starts!r} writes {tokens} tokens at positions {starts.tolist()}; the cache {names.past_keys!r} "
            f"has room for {room}"
        )
    if not names.ends:
        return starts, np.full_like(starts, room)
    ends = values[names.ends].reshape(-1).astype(np.int64)
    if ends.size and (int(ends.min()) < tokens or int(ends.max()) > room):
        raise UsageError(
            f"{names.ends!r} says that {ends.tolist()} tokens count, of {tokens} new ones and a cache "
            f"{names.past_keys!r} of {room}"
        )
    return starts, ends


def _target(
    name: str, sizes: tuple[int, ...], into: Mapping[str, Array], new_array: Callable[[tuple[int, ...]], Array]
) -> Array:
    given = into.get(name)
    if given is None:
        return new_array(sizes)
    if given.shape != sizes or given.dtype != np.float32 or not given.flags.writeable:
        raise UsageError(f"the array for {name!r} is {given.dtype} of {list(given.shape)}; it has to be {list(sizes)}")
    return given


def _rows(array: Array) -> Array:
    """``array``, or a copy whose rows of one head follow each other."""
    row = array.itemsize
    in_order = array.strides[3] == row and array.strides[2] == row * array.shape[3]
    return array if (in_order or not array.size) and array.flags.aligned else np.ascontiguousarray(array)


def _mask(parts: Sequence[MaskPart], values: Mapping[str, Array]) -> Array:
    total: Array | None = None
    for part in parts:
        array = values[part.name]
        if array.dtype == np.bool_:
            array = np.where(array != part.hides, np.float32(0), np.float32(part.hidden))
        if part.heads and array.ndim == 3 and array.shape[0] != 1:
            array = array.reshape(-1, part.heads, *array.shape[1:])
        total = array if total is None else total + array
    assert total is not None
    return np.ascontiguousarray(total.reshape((*(1,) * (4 - total.ndim), *total.shape)), np.float32)
