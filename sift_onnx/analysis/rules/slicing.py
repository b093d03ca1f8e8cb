"""Split and Slice: axes that are cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sift_onnx.analysis.axes.sizes import Axis, Size, size_of
from sift_onnx.analysis.findings import Element, Elements
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule

# A cut that is not at one of this many equal parts of an axis is taken for one at a fixed place.
FINEST_CUT = 64

# Bounds of a slice from here on mean the end of the axis, however long it gets.
_ENDLESS = 2**31 - 1


@axis_rule("Split")
def split(ctx: RuleContext) -> None:
    """Each part is its fraction of the whole; stated sizes are rewritten."""
    x = ctx.axes(0)
    count = len(ctx.node.outputs)
    if x is None:
        ctx.keep_sizes("it belongs to a tensor of unknown shape")
        return
    position = int(ctx.attr("axis", 0)) % len(x)
    whole = ctx.original(x[position])
    stated: Elements | None = None
    if "split" in ctx.node.attrs:
        sizes = [int(n) for n in ctx.attr("split")]
    elif ctx.has_input(1):
        stated = ctx.elements(1)
        if stated is None:
            ctx.keep_sizes("it is split at computed places")
            return
        sizes = [element.value for element in stated.reshape(-1)]
    else:
        part = -(-whole // count)
        sizes = [min(part, whole - i * part) for i in range(count)]
        if whole % count:
            ctx.pin(x[position], "it is split in unequal parts")
    parts = [_part(ctx, x[position], n, whole) for n in sizes]
    if "split" in ctx.node.attrs:
        ctx.set_attribute("split", [part.size for part in parts])
    for element, axis in zip([] if stated is None else stated.reshape(-1), parts, strict=False):
        ctx.tie(element, axis.size, "a split states this size")
    for i, axis in enumerate(parts):
        ctx.set_axes(i, [axis if j == position else other for j, other in enumerate(x)])


def _part(ctx: RuleContext, axis: Axis, n: int, whole: int) -> Axis:
    """The axis of a part with ``n`` of ``whole`` elements."""
    if not ctx.grows(axis):
        return Axis(size_of(n))
    if n == whole:
        return axis
    if whole // math.gcd(n, whole) > FINEST_CUT:
        ctx.pin(axis, "it is cut at a fixed place")
        return Axis(size_of(n))
    size = axis.size * n / whole
    ctx.system.require_integer(size)
    # A cut between repetitions of the growing part leaves it as it is; a cut through it shortens it.
    period = axis.stride * axis.span
    if n % period == 0 or period % n:
        return Axis(size, axis.stride, axis.span)
    return Axis(size, min(axis.stride, n), max(1, min(axis.span, n // min(axis.stride, n))))


@dataclass(frozen=True)
class _Bound:
    """One start or end of a slice.

    Attributes:
        value: in the original.
        state: says what size it is to state: it is rewritten to that, or is the same.
        fix: keeps it from changing.
    """

    value: int
    state: Callable[[Size], None]
    fix: Callable[[], None]


@dataclass(frozen=True)
class _Cut:
    """What a slice does to one axis of the original: ``range(start, stop, step)`` of ``whole`` elements."""

    axis: Axis
    whole: int
    first: _Bound
    last: _Bound
    step: int

    @property
    def places(self) -> range:
        """The elements that are taken."""
        # A negative step that runs to the front is written with an end below every index.
        end = None if self.step < 0 and self.last.value < -self.whole else self.last.value
        return range(*slice(self.first.value, end, self.step).indices(self.whole))


@axis_rule("Slice")
def slice_rule(ctx: RuleContext) -> None:
    """A part of an axis keeps its fraction; where it starts and ends is rewritten."""
    x = ctx.axes(0)
    if x is None:
        ctx.keep_sizes("it belongs to a tensor of unknown shape")
        return
    arguments = _slice_arguments(ctx, len(x))
    if arguments is None:
        ctx.keep_sizes("it is sliced at computed places")
        return
    out = list(x)
    for first, last, position, step in zip(*arguments, strict=True):
        cut = _Cut(x[position], ctx.original(x[position]), first, last, step)
        out[position] = _sliced(ctx, cut)
    ctx.set_axes(0, out)


def _sliced(ctx: RuleContext, cut: _Cut) -> Axis:
    taken = cut.places
    if not ctx.grows(cut.axis):
        # Bounds at the very ends may move outwards.
        if cut.first.value != 0:
            cut.first.fix()
        if cut.last.value < cut.whole:
            cut.last.fix()
        return cut.axis if len(taken) == cut.whole else Axis(size_of(len(taken)))
    if cut.step == -1 and len(taken) == cut.whole:
        _state(cut.first, cut.axis.size - size_of(1), untouched=cut.first.value == -1)
        _state(cut.last, cut.axis.size * -1 - size_of(1))
        return cut.axis
    at_a_fixed_place = _denominator(taken.start, cut.whole) * _denominator(taken.stop, cut.whole) > FINEST_CUT
    if cut.step != 1 or len(taken) <= 1 or at_a_fixed_place:
        picks = cut.step != 1 or len(taken) <= 1
        ctx.pin(cut.axis, "single elements of it are picked" if picks else "it is cut at a fixed place")
        cut.first.fix()
        cut.last.fix()
        return Axis(size_of(len(taken)))
    for bound, place in ((cut.first, taken.start), (cut.last, taken.stop)):
        # Counted from the back where it was counted from the back.
        distance = place if bound.value >= 0 else cut.whole - place
        size = cut.axis.size * distance / cut.whole
        ctx.system.require_integer(size)
        _state(bound, size * (1 if bound.value >= 0 else -1), untouched=bound.value == 0)
    return _part(ctx, cut.axis, len(taken), cut.whole)


def _state(bound: _Bound, size: Size, *, untouched: bool = False) -> None:
    if untouched or abs(bound.value) >= _ENDLESS:
        bound.fix()
    else:
        bound.state(size)


def _denominator(place: int, whole: int) -> int:
    return whole // math.gcd(place, whole)


def _slice_arguments(ctx: RuleContext, rank: int) -> tuple[list[_Bound], list[_Bound], list[int], list[int]] | None:
    """Starts, ends, axes and steps; None where one is computed."""
    if "starts" in ctx.node.attrs:
        starts, ends = (_attribute_bounds(ctx, name) for name in ("starts", "ends"))
        axes = [int(a) % rank for a in ctx.attr("axes", range(len(starts)))]
        return starts, ends, axes, [1] * len(axes)
    tracked = [ctx.elements(i) if ctx.has_input(i) else None for i in range(1, 5)]
    if tracked[0] is None or tracked[1] is None:
        return None
    if any(elements is None and ctx.has_input(i + 1) for i, elements in enumerate(tracked)):
        return None
    starts, ends = ([_bound(ctx, e) for e in elements.reshape(-1)] for elements in tracked[:2] if elements is not None)
    axes = [e.value % rank for e in tracked[2].reshape(-1)] if tracked[2] is not None else list(range(len(starts)))
    steps = [e.value for e in tracked[3].reshape(-1)] if tracked[3] is not None else [1] * len(starts)
    return starts, ends, axes, steps


def _attribute_bounds(ctx: RuleContext, name: str) -> list[_Bound]:
    values = [int(v) for v in ctx.attr(name)]
    sizes = [size_of(v) for v in values]

    def state(k: int, size: Size) -> None:
        sizes[k] = size
        ctx.set_attribute(name, sizes)

    return [_Bound(value, partial(state, k), lambda: None) for k, value in enumerate(values)]


def _bound(ctx: RuleContext, element: Element) -> _Bound:
    def state(size: Size) -> None:
        if element.leaf is None and element.value != ctx.original(size):
            ctx.pin(size, "it is sliced up to a place beyond its end that is computed")
            fix()
        else:
            ctx.tie(element, size, "a slice states this place")

    def fix() -> None:
        ctx.pin(element.size, "a slice states this place")

    return _Bound(element.value, state, fix)
