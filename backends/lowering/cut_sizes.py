"""How many positions a slice leaves of an axis whose size may not be known before a run."""

from __future__ import annotations

from sift_onnx.backends.lowering.dims import Dim, are_counts, cut, difference, terms, window

__all__ = ["OPEN_END", "counted_from_end", "sliced"]

# Exporters write the end of an open slice as the largest integer of 32 or 64 bits.
OPEN_END = 1 << 30


def sliced(size: Dim, start: int, stop: int | None, step: int = 1) -> Dim | None:
    """Positions of ``range(size)[start:stop:step]``, forwards; None where there is no expression for them."""
    stop = None if stop is not None and stop >= OPEN_END else stop
    if isinstance(size, int):
        return len(range(size)[start:stop:step])
    if step > 1:
        count = sliced(size, start, stop)
        return None if count is None else window(count, 1, step, 1, (0, 0))
    if start < 0:
        if stop is not None and stop >= 0:
            return None
        # As many from the end on as there are, or all.
        return _without(cut(size, -start), -(stop or 0))
    if stop is None or stop < 0:
        return _without(size, start - (stop or 0))
    return _without(cut(size, stop), start)


def _without(size: Dim, less: int) -> Dim:
    """``size`` with ``less`` positions left out, at least none."""
    return window(size, less + 1, 1, 1, (0, 0)) if less else size


def counted_from_end(size: Dim, bound: Dim) -> Dim:
    """A bound of a slice as a number, if an axis of ``size`` has a known number of positions behind it.

    Where tokens of two kinds are joined, those of the first kind end before a bound that is their own number. A
    ``bound`` that is no such size, or a number, is returned as it is.
    """
    if isinstance(bound, int) or isinstance(size, int):
        return bound
    if bound == size:
        return OPEN_END
    behind = difference(size, bound)
    # Less than no positions would be counted from the end themselves.
    number = bound[1] if isinstance(bound, tuple) and bound[0] == "sum" else 0
    is_count = isinstance(number, int) and number >= 0 and are_counts(terms(bound))
    return -behind if is_count and isinstance(behind, int) and behind > 0 else bound
