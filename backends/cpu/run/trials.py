"""Which of two ways is faster: a plan of kernels, or onnxruntime on the whole model. It is timed where that is unclear.

The first run of a shape class takes the kernels. If the estimates for its sizes, which are known then, leave open which
way is faster, or it took too long to be sure beside the estimate for onnxruntime, it runs there once more. If that
takes too long as well, a session of onnxruntime runs too, and the answer is kept for the class. Its time there corrects
the estimates for other classes. All runs of a class therefore take one way; which way that is depends on times.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from msgspec.structs import replace

from sift_onnx.backends.base import Placement
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.costs import Estimate
from sift_onnx.backends.cpu.lower.placements import KERNELS, ONNXRUNTIME
from sift_onnx.backends.cpu.lower.profitability import is_certain
from sift_onnx.backends.cpu.run.parts import Parts, Shapes
from sift_onnx.backends.cpu.run.shape_classes import ShapeClass, shape_class
from sift_onnx.backends.forks import renew_in_children
from sift_onnx.errors import SiftError

__all__ = ["Route", "Trials", "Verdict", "clock_of", "placed"]

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Outputs = dict[str, Array]
_NOTHING: Feeds = {}

# How much less time the kernels have to take: a gain within the noise of the trial may be a loss later, when other
# sessions' workers spin beside parts in onnxruntime, and onnxruntime alone is never slower than itself.
_LEAST_GAIN = 0.05
# Each way has two turns, and a third one where the two are as close as this or runs are short: in its first runs
# onnxruntime's memory grows.
_CLOSE = 0.25
# Runs are short that take less than this. Ways go on to take turns for as long, unless one needs a multiple of the
# other's time: a neighbour that is busy for some milliseconds disturbs both then, and not the one alone whose turn it
# is. Where they are close, it takes longer to tell which is faster.
_PATIENCE = 30e-3
_CLOSE_PATIENCE = 100e-3
_FAR = 3.0
# Where the kernels seem slower against their estimate, they have as many turns more: what ran beside the first ones
# would decide for all requests to come. An encoder at 0.6 of onnxruntime's time lost one of seven trials beside another
# runtime's threads.
_DOUBTFUL_TURNS = 3
# How far an estimate for onnxruntime may be off that is compared with a time of the kernels. Where they take less than
# this, a session and its runs are cheap, and what an operator costs besides its work counts more.
_MEASURED_MARGIN = 1.5
_SHORT_SECONDS = 1e-3
# How far an estimate for onnxruntime may be off that its time for other sizes has corrected: where one is at most three
# times the other, and elsewhere.
_NEAR, _NEAR_MARGIN, _FAR_MARGIN = 3.0, 1.15, 1.5
# How many times as many values a request may have as the largest one whose estimate tells what it takes at least.
_MOST_BEYOND = 8
# Threads wait for each other in each operator, and bring each other what they made: between cores that are far from
# each other, both take microseconds. Kernels whose runs are shorter than this take turns on one thread as well, and
# stay there if they take so much less: what disturbs one of two threads may be gone later.
_ALONE_SECONDS, _LEAST_GAIN_ALONE, _TURNS_ALONE = 2e-3, 0.1, 3
# Of runs as short as this, threads have to save a fifth of the time of one. Cores may be near each other in one minute
# and far in the next: a recurrent network of 0.12 ms takes 0.14 on one thread, and 0.33 on two far ones.
_VERY_SHORT_SECONDS, _LEAST_GAIN_OF_THREADS = 2e-4, 0.2
# A way's turn lasts as long as this: half a millisecond after a run, workers of the other way still spin, and for about
# a millisecond after wide instructions, some processors run more slowly. It has three runs at least, lest one that was
# interrupted stands for all, unless they are long. The first one finds the caches full of the other way's weights: in
# turns of single runs of 5 ms, a model at 0.8 of onnxruntime's time lost 3 of 27 trials, and of three runs none of 24.
_TURN_SECONDS = 3e-3
_LEAST_RUNS, _MANY_RUNS = 3, 8
_LONG_SECONDS = 20e-3


@dataclass(frozen=True)
class Verdict:
    """Where requests of a class run.

    Attributes:
        placement: ``kernels``, which is the plan with all its parts, or ``onnxruntime``, the whole model.
        reason: why there, if it was timed or could not be; empty where the estimates were clear.
        is_alone: whether the kernels run on the calling thread by itself.
    """

    placement: str
    reason: str = ""
    is_alone: bool = False


@dataclass(frozen=True)
class Route:
    """What runs requests of a class, and why.

    Attributes:
        way: what runs them.
        verdict: why.
        difference: sizes that the plan takes for equal and that differ in them, in words, where another one runs them;
            or empty.
    """

    way: Parts
    verdict: Verdict = Verdict(KERNELS)
    difference: str = ""


class Trials:
    """Finds for each class of requests the way that is faster; thread-safe.

    Attributes:
        kernels: one of the two ways.
        alone: the same on the calling thread by itself; None where that is what they do in any case.
    """

    def __init__(
        self,
        kernels: Parts,
        open_whole: Callable[[], Parts],
        inputs: Sequence[str],
        estimate: Callable[[Sequence[Shapes]], Estimate],
        clock: Callable[[], float],
        alone: Parts | None = None,
    ) -> None:
        """Nothing is run yet.

        Args:
            kernels: a plan with regions.
            open_whole: makes a session of onnxruntime on the whole model, or raises an error of the package.
            inputs: names of the model's inputs.
            estimate: of both ways on this machine, for the sizes of what each part of the plan reads.
            clock: in seconds.
            alone: see above.
        """
        self.kernels, self.alone = kernels, alone
        self._open_whole = open_whole
        self._inputs = tuple(inputs)
        self._estimate = estimate
        self._clock = clock
        self._whole: Parts | None = None
        self._verdicts: dict[ShapeClass, Verdict] = {}
        # Values that a request of a class had, and seconds that onnxruntime was estimated to take for them.
        self._estimates: dict[ShapeClass, tuple[int, float]] = {}
        self._measured: list[tuple[float, float]] = []  # estimates for onnxruntime, and its times
        self._deciding = threading.Lock()
        renew_in_children(self)

    def renew(self) -> None:
        """In a forked child: a thread that it does not have may hold the lock. What it guards is whole at any time."""
        self._deciding = threading.Lock()

    def decide(self, feeds: Feeds, into: Feeds = _NOTHING) -> tuple[Route, Outputs | None]:
        """What runs requests like this one, and its outputs if it had to run for that.

        Args:
            feeds: that are known to fit the model.
            into: arrays for caches, which the kernels write to as in any other run: a step of a decoder that had to
                copy its cache would pass for a slow one.
        """
        key = shape_class(feeds[name].shape for name in self._inputs)
        if any(0 in sizes for sizes in key):
            return Route(self.kernels, Verdict(KERNELS)), None  # nothing is computed, and nothing can be timed
        outputs = None
        verdict = self._verdicts.get(key)
        if verdict is None:
            # Requests that come meanwhile wait: they would disturb what is timed.
            with self._deciding:
                verdict = self._verdicts.get(key)
                if verdict is None:
                    verdict, outputs = self._weigh(key, feeds, into)
                    if verdict.placement == KERNELS and any(
                        found.is_alone and _is_within(key, sizes) for sizes, found in self._verdicts.items()
                    ):
                        # Larger requests are faster so.
                        verdict = dataclasses.replace(verdict, is_alone=True)
                    self._verdicts[key] = verdict
                    if self._whole is not None and all(found.placement == KERNELS for found in self._verdicts.values()):
                        self._whole = None
                        # It has held all weights as dense ones.
                        _kernels.trim_memory()
        if verdict.placement == KERNELS:
            way = self.alone if verdict.is_alone else None
            return Route(way or self.kernels, verdict), outputs
        whole = self._whole
        assert whole is not None  # it stays once a class runs in it
        return Route(whole, verdict), outputs

    def _weigh(self, key: ShapeClass, feeds: Feeds, into: Feeds) -> tuple[Verdict, Outputs]:
        start = self._clock()
        outputs, shapes, planning = self.kernels.run_shaped(feeds, into)
        first = self._clock() - start - planning
        values = sum(feeds[name].size for name in self._inputs)
        if first * _MEASURED_MARGIN < self._expected(key, values):
            # An estimate of a transformer takes half as long as a short request.
            return Verdict(KERNELS), outputs
        estimate = self._estimate(shapes)
        self._estimates[key] = values, estimate.onnxruntime
        if is_certain(estimate, first * _MEASURED_MARGIN):
            return Verdict(KERNELS), outputs
        if self._is_less_than_corrected(first, estimate):
            return self._won_by_other_sizes(first), outputs
        own = first
        if is_certain(estimate):
            # A first run plans and packs, which counts much where runs are short: one more tells what is left of it.
            start = self._clock()
            outputs = self.kernels.run(feeds, into)
            own = min(own, self._clock() - start)
            if is_certain(estimate, own * _MEASURED_MARGIN):
                return Verdict(KERNELS), outputs
        if not _is_clear(own, estimate):
            outputs, seconds = self._timed(self.kernels, feeds, into)
            own = seconds if _MANY_RUNS * seconds < _TURN_SECONDS else min(own, seconds)
        if _is_clear(own, estimate):
            said = f"timed: {1e3 * own:.3g} ms in the kernels against an estimate of"
            return Verdict(KERNELS, f"{said} {1e3 * estimate.onnxruntime:.3g} ms in onnxruntime"), outputs
        if self._is_less_than_corrected(own, estimate):
            return self._won_by_other_sizes(own), outputs
        try:
            theirs, own, other = self._in_turn(self._opened(), own, estimate, feeds, into)
        except SiftError as error:
            own, single = self._on_one_thread(own, feeds, into)
            is_alone = single < (1 - _LEAST_GAIN_ALONE) * own
            return Verdict(KERNELS, f"not timed against onnxruntime: {error}", is_alone), outputs
        if estimate.onnxruntime > 0:
            self._measured.append((estimate.onnxruntime, other))
        own, single = self._on_one_thread(own, feeds, into)
        against = f"against {1e3 * other:.3g} ms in onnxruntime"
        if single < (1 - _LEAST_GAIN_ALONE) * own or (
            _gains(single, other) and (not _gains(own, other) or _is_hardly_faster(own, single))
        ):
            said = f"timed: {1e3 * single:.3g} ms in the kernels on one thread, {1e3 * own:.3g} ms on all, {against}"
            verdict, taken = Verdict(KERNELS, said, is_alone=True), single
        else:
            verdict, taken = Verdict(KERNELS, f"timed: {1e3 * own:.3g} ms in the kernels {against}"), own
        if _gains(taken, other):
            return verdict, outputs
        return Verdict(ONNXRUNTIME, verdict.reason), theirs

    def _expected(self, key: ShapeClass, values: int) -> float:
        """A lower bound of onnxruntime's seconds for a request with this many values, from estimates for smaller ones.

        It is the estimate for the largest smaller request. Two estimates also give seconds per value, which are added
        for the values that this request has more. Time may grow more slowly than values, as it does with a mask for
        each pair of tokens: so the sum has a margin, and serves requests that are not much larger.
        """
        smaller = sorted(one for sizes, one in self._estimates.items() if _is_within(sizes, key))
        if not smaller:
            return 0.0
        last, expected = smaller[-1]
        if len(smaller) > 1 and values <= _MOST_BEYOND * last:
            before, less = smaller[-2]
            grown = max(expected - less, 0.0) * (values - last) / (last - before) if last > before else 0.0
            expected = max(expected, (expected + grown) / _FAR_MARGIN)
        return expected

    def _is_less_than_corrected(self, own: float, estimate: Estimate) -> bool:
        """Whether the kernels take less than onnxruntime would, by its time where the estimate was nearest to this."""
        if not self._measured or estimate.onnxruntime <= 0:
            return False
        estimated, took = min(self._measured, key=lambda one: abs(math.log(one[0] / estimate.onnxruntime)))
        factor = estimate.onnxruntime / estimated
        margin = _NEAR_MARGIN if 1 / _NEAR <= factor <= _NEAR else _FAR_MARGIN
        return own * margin < factor * took

    @staticmethod
    def _won_by_other_sizes(own: float) -> Verdict:
        said = f"timed: {1e3 * own:.3g} ms in the kernels"
        return Verdict(KERNELS, f"{said}, less than onnxruntime's time for other sizes lets expect")

    def _in_turn(
        self, whole: Parts, own: float, estimate: Estimate, feeds: Feeds, into: Feeds
    ) -> tuple[Outputs, float, float]:
        """Outputs of the whole model, and the least times of the kernels, which took ``own`` so far, and of it."""
        outputs, other = self._timed(whole, feeds)
        other = min(other, self._timed(whole, feeds)[1])
        begin = self._clock()
        is_due = _are_close(own, other) or max(own, other) < _PATIENCE
        while is_due or max(own, other) < min(_FAR * min(own, other), begin + _patience(own, other) - self._clock()):
            own = min(own, self._timed(self.kernels, feeds, into)[1])
            other = min(other, self._timed(whole, feeds)[1])
            is_due = False
        expects_gain = _gains(_NEAR_MARGIN * estimate.kernels, estimate.onnxruntime)
        for _ in range(_DOUBTFUL_TURNS if expects_gain else 0):
            if _gains(own, other):
                break
            own = min(own, self._timed(self.kernels, feeds, into)[1])
            other = min(other, self._timed(whole, feeds)[1])
        return outputs, own, other

    def _on_one_thread(self, own: float, feeds: Feeds, into: Feeds) -> tuple[float, float]:
        """The least times of the kernels on all threads, which took ``own`` so far, and on one, if runs are short."""
        single = float("inf")
        if self.alone is None or own > _ALONE_SECONDS:
            return own, single
        for _ in range(_TURNS_ALONE):
            single = min(single, self._timed(self.alone, feeds, into)[1])
            own = min(own, self._timed(self.kernels, feeds, into)[1])
        return own, single

    def _opened(self) -> Parts:
        if self._whole is None:
            self._whole = self._open_whole()
        return self._whole

    def _timed(self, way: Parts, feeds: Feeds, into: Feeds = _NOTHING) -> tuple[Outputs, float]:
        """Outputs, and the least time of the runs of a turn; the median of short ones.

        The least one of these may be that of a run whose other threads were still asleep.
        """
        begin, took = self._clock(), []
        while True:
            start = self._clock()
            outputs = way.run(feeds, into)
            end = self._clock()
            took.append(end - start)
            if end - begin >= (_TURN_SECONDS if len(took) >= _LEAST_RUNS else _LONG_SECONDS):
                return outputs, statistics.median_low(took) if len(took) >= _MANY_RUNS else min(took)


def _gains(own: float, other: float) -> bool:
    return own <= (1 - _LEAST_GAIN) * other


def _is_hardly_faster(own: float, single: float) -> bool:
    """Whether all threads, of very short runs, save too little of the time of one."""
    return own < _VERY_SHORT_SECONDS and own > (1 - _LEAST_GAIN_OF_THREADS) * single


def _are_close(own: float, other: float) -> bool:
    return min(own, other) > (1 - _CLOSE) * max(own, other)


def _patience(own: float, other: float) -> float:
    return _CLOSE_PATIENCE if _are_close(own, other) else _PATIENCE


def _is_clear(own: float, estimate: Estimate) -> bool:
    """Whether the kernels, which took ``own`` seconds, need not be timed against onnxruntime."""
    return own > _SHORT_SECONDS and own * _MEASURED_MARGIN < estimate.onnxruntime


def _is_within(known: ShapeClass, other: ShapeClass) -> bool:
    """Whether no size of a known class is larger than that of another one."""
    return [*map(len, known)] == [*map(len, other)] and all(
        size <= own for sizes, others in zip(known, other, strict=True) for size, own in zip(sizes, others, strict=True)
    )


def clock_of(threads: int) -> Callable[[], float]:
    """Seconds of runs on ``threads`` threads: of a single one, without those in which others had its processor."""
    return time.perf_counter if threads > 1 else time.thread_time


def placed(placement: Placement, verdict: Verdict) -> Placement:
    """Where a node of a plan runs after a verdict on it, and why."""
    if verdict.placement == ONNXRUNTIME:
        return replace(placement, placement=ONNXRUNTIME, reason=verdict.reason)
    if placement.placement != KERNELS or not verdict.reason:
        return placement
    return replace(placement, reason=f"{placement.reason}; {verdict.reason}")
