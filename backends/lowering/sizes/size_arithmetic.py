"""Arithmetic of sizes: what operators make of the sizes of their operands, or of vectors of sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sift_onnx.backends.lowering.dims import (
    Dim,
    Dims,
    added,
    are_counts,
    divided,
    larger,
    modulo,
    product,
    smaller,
    subtracted,
    terms,
    truncated,
)

__all__ = ["broadcast", "computed", "joined"]


def broadcast(operands: Sequence[Dims | None]) -> list[Dim | None] | None:
    """Sizes of what operands of these sizes are repeated to; None for those that are not known."""
    rank = max((len(dims) for dims in operands if dims is not None), default=0)
    if any(dims is None for dims in operands):
        return None
    result: list[Dim | None] = []
    for axis in range(-rank, 0):
        sizes = {dims[axis] for dims in operands if dims is not None and len(dims) >= -axis} - {1}
        # A table that is cut to a length: one that is too short fits nothing of that length.
        sizes -= {size for size in sizes if isinstance(size, tuple) and size[0] == "cut" and size[2] in sizes}
        result.append(sizes.pop() if len(sizes) == 1 else (None if sizes else 1))
    return result


def joined(operands: Sequence[Dims | None], axis: int) -> Sequence[Dim | None] | None:
    """Sizes of operands one after the other along an axis."""
    known = [dims for dims in operands if dims is not None]
    rank = len(known[0]) if known else 0
    if not rank or len(known) < len(operands) or any(len(dims) != rank for dims in known):
        return None
    result: list[Dim | None] = []
    for i, sizes in enumerate(zip(*known, strict=True)):
        numbers = [size for size in sizes if isinstance(size, int)]
        if i == axis % rank:
            result.append(added(sizes))
        else:
            # All are equal; a number says more than a name, and a name of an input more than another one.
            result.append(numbers[0] if numbers else min(sizes, key=repr))
    return result


def computed(op: str, first: tuple[Dim, ...], second: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    """Elements of the result of arithmetic, or of a comparison, of two vectors of sizes."""
    if second is None or (len(first) != len(second) and 1 not in (len(first), len(second))):
        return None
    count = max(len(first), len(second))
    result: list[Dim] = []
    for a, b in zip(first * (count // len(first)), second * (count // len(second)), strict=True):
        value = _RULES[op](a, b)
        if value is None:
            return None
        result.append(value)
    return tuple(result)


def _divided(total: Dim, part: Dim) -> Dim:
    whole = divided(total, part)
    return truncated(total, part) if whole is None else whole


def _is_equal(a: Dim, b: Dim) -> Dim | None:
    """1 or 0; None where that is not known. What only a run knows is no negative number, unless it was negated."""
    if a == b:
        return 1
    numbers = [size for size in (a, b) if isinstance(size, int)]
    if len(numbers) == 2:
        return 0
    return 0 if any(number < 0 for number in numbers) and are_counts(terms(a) + terms(b)) else None


_RULES: Mapping[str, Callable[[Dim, Dim], Dim | None]] = {
    "Add": lambda a, b: added((a, b)), "Div": _divided, "Equal": _is_equal, "Max": larger, "Min": smaller,
    "Mod": modulo, "Mul": lambda a, b: product((a, b)), "Sub": subtracted,
}  # fmt: skip
