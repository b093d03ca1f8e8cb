"""Where each tensor of a schedule lies: in the caller's arrays, in scratch memory, or within another tensor.

Channels of one image are contiguous in planes, and those of up to sixteen images in lanes. There, a slice lies within
what it is cut from, and the operands of a concatenation are written where the result has them: nothing is copied.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.schedules.scratch import Lifetime, pack

__all__ = ["Arrangement", "Call", "Part", "Place", "arranged", "place"]

Place = tuple[str, int]
# Operators that have not read all of their second operand when they begin to write.
_READ_IN_ANY_ORDER = (_kernels.BatchedMatmul, _kernels.ScatterElements, _kernels.ViewArithmetic)
# Operators that have read all of a value's row, or the value, when they write there.
_IN_PLACE = (_kernels.Elementwise, _kernels.GroupNormalization, _kernels.LayerNormalization)


class Part(Struct, frozen=True):
    """What makes a copy of channels superfluous: one of its tensors can lie within the other.

    Attributes:
        of: which is the larger one.
        offset: of the other in it, in bytes.
    """

    of: str
    offset: int


class Call(Struct, frozen=True):
    """An operator with its operands.

    Attributes:
        op: what runs.
        shape: of its input.
        inputs: names of its operands, but for a mask.
        output: name of its result; several copies may write to one.
        step: of the region that it belongs to; None for a change of layout or a copy at the border.
        mask: name of the mask, if there is one.
        part: of copies that may be left out.
        together: of an operator that runs several steps, these, in order, with the shapes of their operands.
    """

    op: _kernels.Op
    shape: tuple[int, int, int, int]
    inputs: tuple[str, ...]
    output: str
    step: int | None
    mask: str = ""
    part: Part | None = None
    together: tuple[tuple[int, tuple[int, int, int, int]], ...] = ()


class Arrangement(Struct, frozen=True):
    """Which calls run, and which tensors share memory; it does not depend on where that is.

    Attributes:
        calls: those that are left.
        roots: for each of their tensors the one that it lies in at last, perhaps itself, and the bytes before it there.
        homes: for each root outside of the caller's arrays the one whose memory it has, perhaps its own.
    """

    calls: list[Call]
    roots: dict[str, Place]
    homes: dict[str, str]


def arranged(calls: Sequence[Call], nbytes: Mapping[str, int], fixed: Mapping[str, tuple[int, int]]) -> Arrangement:
    """How calls are arranged; arguments as :func:`place` has them."""
    parts = _Parts(fixed)
    calls = parts.without_copies(calls)
    roots = {name: parts.root(name) for call in calls for name in (*call.inputs, call.output)}
    return Arrangement(calls, roots, _homes(calls, nbytes, fixed, {name: root for name, (root, _) in roots.items()}))


def place(
    calls: Sequence[Call], nbytes: Mapping[str, int], fixed: Mapping[str, tuple[int, int]]
) -> tuple[list[Call], dict[str, tuple[int, int]], int]:
    """The calls that are left, the place of each tensor, and the bytes of scratch memory.

    Args:
        calls: in order.
        nbytes: size of each tensor that they make.
        fixed: places of those that lie in the caller's arrays: (index of the array, offset in bytes).

    Returns:
        The calls; places as ``fixed`` has them, with the index -1 for scratch memory; bytes of that.
    """
    found = arranged(calls, nbytes, fixed)
    calls, roots, homes = found.calls, found.roots, found.homes
    places = dict(fixed)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, call in enumerate(calls):
        for name in (call.output, *call.inputs):
            owner = homes.get(roots[name][0])
            if owner is not None:
                first.setdefault(owner, i)
                last[owner] = i
    lifetimes = {owner: Lifetime(nbytes[owner], begin, last[owner]) for owner, begin in first.items()}
    offsets, total = pack(lifetimes)
    for name, (root, offset) in roots.items():
        array, start = fixed[root] if root in fixed else (-1, offsets[homes[root]])
        places[name] = (array, start + offset)
    return calls, places, total


class _Parts:
    """Which tensors lie within others."""

    def __init__(self, fixed: Mapping[str, tuple[int, int]]) -> None:
        self._fixed = fixed
        self._within: dict[str, Place] = {}

    def root(self, name: str) -> Place:
        """The tensor that ``name`` lies in at last, and where, in bytes."""
        offset = 0
        while name in self._within:
            name, more = self._within[name]
            offset += more
        return name, offset

    def without_copies(self, calls: Sequence[Call]) -> list[Call]:
        """The calls without the copies that are not needed.

        From the last one to the first: the largest of several concatenations that share operands, which is the last
        one in dense blocks, has them all, and those before it are ranges of it.
        """
        writers: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            writers[call.output].append(call)
        kept: list[Call] = []
        ranges: dict[str, bool] = {}
        for call in reversed(calls):
            name = call.output
            if name not in ranges:
                ranges[name] = self._is_range(writers[name])
            if not ranges[name] and not self._lies_within(call):
                kept.append(call)
        return kept[::-1]

    def _is_free(self, name: str) -> bool:
        return name not in self._fixed and name not in self._within

    def _lies_within(self, copy: Call) -> bool:
        """Whether one tensor of a copy now lies in the other."""
        if copy.part is None:
            return False
        smaller = copy.inputs[0] if copy.part.of == copy.output else copy.output
        if not self._is_free(smaller):
            return False
        self._within[smaller] = (copy.part.of, copy.part.offset)
        return True

    def _is_range(self, copies: Sequence[Call]) -> bool:
        """Whether all operands of a concatenation lie in another tensor as in its result, which is a part of it now."""
        result = copies[0].output
        if not self._is_free(result) or any(copy.part is None or copy.part.of != result for copy in copies):
            return False
        starts = set()
        for copy in copies:
            root, offset = self.root(copy.inputs[0])
            starts.add((root, offset - copy.part.offset if copy.part is not None else 0))
        if len(starts) > 1 or copies[0].inputs[0] not in self._within:
            return False
        ((root, start),) = starts
        self._within[result] = (root, start)
        return True


def _homes(
    calls: Sequence[Call], nbytes: Mapping[str, int], fixed: Mapping[str, object], roots: Mapping[str, str]
) -> dict[str, str]:
    """The tensor of scratch memory that each one which is no part of another has the memory of."""
    last = {roots[name]: i for i, call in enumerate(calls) for name in call.inputs}
    writes = Counter(roots[call.output] for call in calls)
    home: dict[str, str] = {}
    for i, call in enumerate(calls):
        name = roots[call.output]
        if name in fixed or name in home:
            continue
        home[name] = name
        if call.output != name or writes[name] > 1:
            continue
        # A result takes the place of an operand that no later call reads. A second one is read just before the write. A
        # first one that a core wrote for another is its own once it has read it, where elsewhere it may have to ask.
        first, *others = (roots[operand] for operand in call.inputs)
        replaced = []
        if first not in others and len(others) == 1 and not isinstance(call.op, _READ_IN_ANY_ORDER):
            replaced.append(call.inputs[1])
        if first not in others and isinstance(call.op, _IN_PLACE):
            replaced.append(call.inputs[0])
        for operand in replaced:
            if operand in home and last[operand] == i and nbytes[operand] == nbytes[name]:
                home[name] = home[operand]
                break
    return home
