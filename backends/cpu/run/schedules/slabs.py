"""How a batch is cut into slabs: sixteen images fill the lanes, and a remainder runs with pixels in the lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, LANES_PAY, Layout

__all__ = ["NEAR_BYTES", "Slab", "cut", "layout_of_rows"]

# The operands of a slab should stay in the last-level cache from one operator to the next. If even one group of 16
# images is too large, the slab is one group.
_SLAB_BYTES = 8 << 20
# Those of a group of images that has a thread by itself should stay in a core's cache, but for what is read or written
# last.
NEAR_BYTES = 2 * _kernels.cache_bytes()[1]


@dataclass(frozen=True)
class Slab:
    """Consecutive images or rows of a batch, which run together.

    Attributes:
        first: index of the first one in the batch.
        count: how many there are.
        of: how many the batch has.
        layout: that kernels read them in.
    """

    first: int
    count: int
    of: int
    layout: Layout

    @property
    def is_all(self) -> bool:
        """Whether it is the whole batch."""
        return self.count == self.of


def layout_of_rows(count: int) -> Layout:
    """The layout of ``count`` images or rows that stay together."""
    return "images16" if count >= LANES_PAY else "planes"


def cut(
    count: int,
    bytes_per_group: Callable[[], int],
    *,
    only_rows: bool = False,
    single: bool = False,
    whole: bool = False,
    apart: bool = False,
    in_groups: bool = False,
) -> tuple[Slab, ...]:
    """Slabs for ``count`` images or rows, in the order of the batch; none for an empty batch.

    Args:
        count: how many there are.
        bytes_per_group: what 16 of them take while the largest operator runs; asked for where lanes are filled.
        only_rows: they are rows of matrices. All full groups are then one slab, since a slab reads the weights once,
            and these are larger than the rows.
        single: each slab is one image, with pixels in the lanes, whatever their number.
        whole: rows depend on each other and stay together.
        apart: a slab is one image, or one group of images in lanes. Its channels are contiguous then, and need not be
            copied to be concatenated or cut.
        in_groups: a slab in lanes is one group of images, so that slabs may have a thread each.
    """
    if whole:
        return (Slab(0, count, count, layout_of_rows(count)),)
    if single:
        return tuple(Slab(first, 1, count, "planes") for first in range(count))
    full, rest = divmod(count, LANES)
    if rest >= LANES_PAY:
        full, rest = full + 1, 0
    in_lanes = count - rest
    groups = max(1, full)
    if apart or in_groups:
        groups = 1
    elif in_lanes and not only_rows:
        groups = max(1, min(groups, _SLAB_BYTES // max(bytes_per_group(), 1)))
    size = groups * LANES
    slabs = [Slab(first, min(size, in_lanes - first), count, "images16") for first in range(0, in_lanes, size)]
    if rest:
        size = 1 if apart else rest
        slabs += [Slab(first, size, count, "planes") for first in range(in_lanes, count, size)]
    return tuple(slabs)
