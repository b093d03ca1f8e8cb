"""What a reshape does to axes that grow: where the growing factor goes when axes are merged and split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from sift_onnx.analysis.axes.sizes import Axis, size_of
from sift_onnx.analysis.axes.system import AxisSystem, CauseT

__all__ = ["aligned_groups", "reshape"]


def reshape(
    system: AxisSystem[CauseT],
    axes: Sequence[Axis],
    new_sizes: Sequence[int],
    cause: Callable[[str], CauseT],
    *,
    from_inside: int = 0,
) -> list[Axis]:
    """The axes after a reshape of ``axes`` to the original sizes ``new_sizes``.

    Both lists are cut into the shortest groups of equal product. Within a group all growth sits in one axis on either
    side: on the left the one that varies, on the right the one that its growing part overlaps.

    Args:
        system: where conflicts are pinned.
        axes: the axes before.
        new_sizes: the sizes after, in the original; their product equals that of ``axes``.
        cause: makes a cause from a sentence.
        from_inside: when several new axes overlap the growing part (a width is split in heads and head size), grow the
            innermost (0), or the one that many places outside of it.
    """
    if 0 in new_sizes:
        for axis in axes:
            system.pin(axis.size, cause("a reshape of an empty tensor"))
        return [Axis(size_of(n)) for n in new_sizes]
    result: list[Axis] = []
    for left, right in aligned_groups([system.original(a.size) for a in axes], list(new_sizes)):
        group = [axes[i] for i in left]
        result.extend(_reshape_group(system, group, [new_sizes[j] for j in right], cause, from_inside))
    return result


def aligned_groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[range, range]]:
    """The shortest groups of axes of equal product, from the outside inwards: places in ``old`` and in ``new``."""
    i = j = 0
    while i < len(old) or j < len(new):
        i_end, j_end, product_old, product_new = i, j, 1, 1
        # Take at least one axis of each side, then whatever evens the products out.
        if i_end < len(old):
            product_old *= old[i_end]
            i_end += 1
        if j_end < len(new):
            product_new *= new[j_end]
            j_end += 1
        while product_old != product_new:
            if product_old < product_new and i_end < len(old):
                product_old *= old[i_end]
                i_end += 1
            elif j_end < len(new):
                product_new *= new[j_end]
                j_end += 1
            else:
                product_old *= old[i_end]
                i_end += 1
        yield range(i, i_end), range(j, j_end)
        i, j = i_end, j_end


def _reshape_group(
    system: AxisSystem[CauseT],
    group: list[Axis],
    new_sizes: list[int],
    cause: Callable[[str], CauseT],
    from_inside: int,
) -> list[Axis]:
    if len(group) == 1 and len(new_sizes) == 1:
        return group
    varying = [i for i, axis in enumerate(group) if system.grows(axis.size)]
    for i in varying[:-1]:
        system.pin(group[i].size, cause("a reshape merges it with another axis that grows"))
    if not varying:
        # What fixed the old axes is why the new ones are fixed.
        reasons = (system.why_pinned(axis.size) for axis in group)
        root = next((reason for reason in reasons if reason is not None), None)
        return [Axis(system.fixed(n, root)) for n in new_sizes]
    result = [Axis(size_of(n)) for n in new_sizes]
    source = group[varying[-1]]
    inner = math.prod(system.original(axis.size) for axis in group[varying[-1] + 1 :])
    outer = math.prod(system.original(axis.size) for axis in group[: varying[-1]])
    low, high = source.stride * inner, source.stride * source.span * inner

    candidates: list[tuple[int, int, int]] = []
    stride = 1
    for j in range(len(new_sizes) - 1, -1, -1):
        overlap = max(low, stride), min(high, stride * new_sizes[j])
        if overlap[0] < overlap[1] and overlap[0] % stride == 0 and overlap[1] % overlap[0] == 0:
            candidates.append((j, overlap[0] // stride, overlap[1] // overlap[0]))
        stride *= new_sizes[j]
    if not candidates:
        system.pin(source.size, cause("a reshape splits it in a way that has no place for growth"))
        return result
    j, carrier_stride, carrier_span = candidates[min(from_inside, len(candidates) - 1)]
    others = math.prod(new_sizes[:j] + new_sizes[j + 1 :])
    size = source.size * Fraction(inner * outer, others)
    system.require_integer(size)
    # What grows is not cut: a group of channels has a whole number of channels, not just of pixels.
    system.require_integer(size * Fraction(carrier_span, new_sizes[j]))
    result[j] = Axis(size, carrier_stride, carrier_span)
    return result
