"""The faster of two ways is kept, by times that the tests give."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from sift_onnx.backends.base import Placement
from sift_onnx.backends.cpu.lower.costs import Estimate
from sift_onnx.backends.cpu.lower.profitability import is_certain
from sift_onnx.backends.cpu.run import trials
from sift_onnx.backends.cpu.run.shape_classes import shape_class
from sift_onnx.backends.cpu.run.trials import Trials, Verdict, clock_of, placed
from sift_onnx.errors import BackendError

UNCLEAR, CLEAR = Estimate(1e-9, 1e-9), Estimate(1.0, 9.0)


@pytest.fixture(autouse=True)
def unclear_estimates_are_timed(monkeypatch, nothing_is_timed):
    monkeypatch.setattr(trials, "is_certain", is_certain)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Way:
    """Takes the given seconds per run, the last of them for ever; its output is its name."""

    def __init__(self, name, clock, *seconds):
        self.name, self.clock, self.seconds, self.runs = name, clock, list(seconds), 0
        self.written = []
        self.planning = 0.0

    def run(self, feeds, into=None):
        self.written.append(into)
        self.clock.now += self.seconds[min(self.runs, len(self.seconds) - 1)]
        self.runs += 1
        return {"y": self.name}

    def run_shaped(self, feeds, into):
        self.clock.now += self.planning
        return self.run(feeds, into), [{name: array.shape for name, array in feeds.items()}], self.planning


class Pair:
    """Trials of two ways, and how often a session of the whole model was opened."""

    def __init__(self, kernels, whole, estimate=UNCLEAR, alone=None):
        clock = Clock()
        self.opened = 0
        self.kernels, self.whole = Way("kernels", clock, *kernels), Way("onnxruntime", clock, *whole)
        self.alone = None if alone is None else Way("one thread", clock, *alone)
        self.asked = []

        def open_whole():
            self.opened += 1
            if not whole:
                raise BackendError("no such operator")
            return self.whole

        def estimated(shapes):
            self.asked.append(shapes)
            return estimate(shapes) if callable(estimate) else estimate

        self.trials = Trials(self.kernels, open_whole, ["x"], estimated, clock, self.alone)

    def run(self, *shape):
        feeds = {"x": np.empty(shape)}
        route, outputs = self.trials.decide(feeds)
        self.latest = route.verdict
        return (route.way.run(feeds) if outputs is None else outputs)["y"]


def test_empty_requests_are_neither_timed_nor_remembered():
    pair = Pair([5.0], [1.0])
    assert pair.run(0, 3) == "kernels"
    assert (pair.opened, pair.asked) == (0, [])


def test_clear_estimates_are_not_timed():
    pair = Pair([5.0], [1.0], CLEAR)
    assert [pair.run(4), pair.run(4)] == ["kernels", "kernels"]
    assert (pair.kernels.runs, pair.opened) == (2, 0)
    assert pair.latest == Verdict("kernels")
    assert pair.asked == [[{"x": (4,)}]]


def test_what_only_the_first_run_takes_does_not_count_where_estimates_are_clear():
    pair = Pair([3 * CLEAR.onnxruntime, CLEAR.onnxruntime / 4], [1.0], CLEAR)
    assert pair.run(4) == "kernels"
    assert (pair.kernels.runs, pair.opened) == (2, 0)
    assert pair.latest == Verdict("kernels")


@pytest.mark.parametrize("share", [3.0, 0.7])
def test_runs_that_stay_long_are_timed_whatever_the_estimates(share):
    """An estimate for onnxruntime may be half of its time too high, where others leave it a cache."""
    pair = Pair([share * CLEAR.onnxruntime], [share / 2 * CLEAR.onnxruntime], CLEAR)
    assert pair.run(4) == "onnxruntime"


def test_a_run_shorter_than_onnxruntime_for_smaller_sizes_needs_no_estimate():
    pair = Pair([5.0], [1.0], CLEAR)
    assert [pair.run(*sizes) for sizes in ((4, 4), (6, 4), (24, 8), (3, 24))] == ["kernels"] * 4
    assert [shapes[0]["x"] for shapes in pair.asked] == [(4, 4), (3, 24)]


@pytest.mark.parametrize(
    ("third", "is_estimated"),
    [
        (160, False),  # 4 + 80 / 20 seconds, over a margin of 1.5, are more than 3.5 with one
        (100, True),  # no less than 4 seconds, as for 80 values
        (800, True),  # too far beyond
    ],
)
def test_two_estimates_tell_what_larger_requests_take_at_least(third, is_estimated):
    pair = Pair([0.1, 1.0, 3.5], [9.0], lambda shapes: Estimate(0.1, shapes[0]["x"][0] / 20))
    for size in (20, 80, third):
        assert pair.run(size) == "kernels"
    assert [shapes[0]["x"] for shapes in pair.asked] == [(20,), (80,), (third,)][: 2 + is_estimated]


def test_a_run_that_is_not_much_shorter_is_estimated():
    pair = Pair([5.0, 6.0], [1.0], CLEAR)
    assert [pair.run(4), pair.run(6)] == ["kernels", "kernels"]
    assert [shapes[0]["x"] for shapes in pair.asked] == [(4,), (6,)]


@pytest.mark.parametrize(
    ("kernels", "whole", "wanted"),
    [
        ([3.0], [2.0], "onnxruntime"),
        ([2.0], [3.0], "kernels"),
        ([2.0], [2.02], "onnxruntime"),  # a hundredth is noise
        ([2.0], [2.2], "kernels"),
        ([9.0, 2.0], [3.0, 2.5], "kernels"),  # the first run of each warms up
        ([2.0, 9.0], [3.0], "kernels"),  # a disturbed one does not count
        ([9.0, 3.0], [9.0, 2.0], "onnxruntime"),
    ],
)
def test_unclear_estimates_are_timed_once_and_the_faster_way_is_kept(kernels, whole, wanted):
    pair = Pair(kernels, whole)
    assert [pair.run(4) for _ in range(3)] == [wanted] * 3
    assert pair.latest.placement == wanted
    assert len(pair.asked) == 1


def test_a_clear_estimate_that_the_first_run_does_not_bear_out_is_timed():
    """A channels-last network: copies between its layers, which no estimate saw, take longer than the layers."""
    pair = Pair((14.0,), (16.0, 16.0, 11.0), CLEAR)
    assert pair.run(1) == "onnxruntime"
    assert pair.latest.reason == "timed: 1.4e+04 ms in the kernels against 1.1e+04 ms in onnxruntime"


def test_kernels_are_timed_as_they_run_with_arrays_for_caches():
    pair = Pair([2.0], [3.0])
    into = {"present": np.empty(3)}
    pair.trials.decide({"x": np.empty(4)}, into)
    assert len(pair.kernels.written) == 2
    assert all(given is into for given in pair.kernels.written)
    assert not any(pair.whole.written)


def test_the_first_run_takes_three_runs_more():
    pair = Pair([3.0], [2.0])
    assert pair.run(4) == "onnxruntime"
    assert (pair.kernels.runs, pair.whole.runs) == (2, 2)


def test_ways_that_are_close_are_timed_once_more():
    pair = Pair([3.0, 3.0, 2.0], [2.9])
    assert pair.run(4) == "kernels"
    assert (pair.kernels.runs, pair.whole.runs) == (3, 3)


def test_short_runs_are_repeated_until_a_turn_is_over():
    pair = Pair([1e-4], [1e-3])
    pair.run(4)
    assert 60 <= pair.kernels.runs <= 70


def test_ways_with_short_runs_take_turns_until_neighbours_had_time_to_become_idle():
    pair = Pair([6e-4], [*[7e-4] * 12, 4e-4])
    assert pair.run(4) == "onnxruntime"
    assert pair.latest.reason == "timed: 0.6 ms in the kernels against 0.4 ms in onnxruntime"
    assert pair.kernels.clock.now < 60e-3


def test_kernels_whose_only_turn_was_disturbed_have_another_one():
    assert Pair([9e-3, 9e-3, 3e-4], [5e-4]).run(4) == "kernels"


@pytest.mark.parametrize(
    ("estimate", "wanted", "turns"),
    [
        (Estimate(2.4e-9, 3e-9), "kernels", 4),  # the fourth turn is not disturbed
        (Estimate(2.9e-9, 3e-9), "onnxruntime", 2),  # as long, by the estimates
    ],
)
def test_kernels_that_are_slower_than_their_estimate_have_more_turns(estimate, wanted, turns):
    pair = Pair([9.0, 9.0, 9.0, 2.0], [3.0], estimate)
    assert pair.run(4) == wanted
    assert pair.kernels.runs == turns


def test_turns_against_an_estimate_come_to_an_end():
    pair = Pair([9.0], [3.0], Estimate(2.4e-9, 3e-9))
    assert pair.run(4) == "onnxruntime"
    assert (pair.kernels.runs, pair.whole.runs) == (5, 5)


def test_a_run_that_was_interrupted_does_not_stand_for_a_turn():
    assert Pair([9.0, 2e-3, 1e-4, 1e-4, 1e-4], [5e-4]).run(4) == "kernels"


def test_time_without_the_processor_counts_only_where_threads_wait_for_each_other():
    assert clock_of(1) is time.thread_time
    assert clock_of(2) is time.perf_counter


def test_reasons_have_both_times():
    pair = Pair([3.1e-3], [2.8e-3])
    pair.run(4)
    assert pair.latest.reason == "timed: 3.1 ms in the kernels against 2.8 ms in onnxruntime"


def test_each_class_of_shapes_has_its_own_verdict():
    pair = Pair([3.0, 3.0, 3.0, 1.0], [2.0])
    assert [pair.run(1), pair.run(16), pair.run(1), pair.run(17)] == [
        "onnxruntime",
        "kernels",
        "onnxruntime",
        "kernels",
    ]
    assert len(pair.asked) == 2


def test_onnxruntimes_time_for_other_sizes_corrects_estimates():
    """They expect it to take as long as the kernels; it took twice as long for one size."""
    pair = Pair([1.0], [2.0])
    assert pair.run(1) == "kernels"
    runs = pair.kernels.runs
    assert pair.run(16) == "kernels"
    assert (pair.opened, pair.kernels.runs) == (1, runs + 1)
    assert pair.latest.reason == (
        "timed: 1e+03 ms in the kernels, less than onnxruntime's time for other sizes lets expect"
    )


def test_sizes_that_are_far_from_those_timed_need_a_clearer_gain():
    for estimate, opened in ((2e-9, 1), (4e-9, 2)):
        pair = Pair([1.0], [2.0])
        pair.run(1)
        pair.trials._estimate = lambda _, estimate=estimate: Estimate(estimate, estimate)
        pair.kernels.seconds = [1.6 * estimate / 1e-9]
        pair.run(16)
        assert pair.opened == opened


def test_runs_after_the_first_one_are_compared_with_corrected_estimates():
    pair = Pair([1.0], [2.0])
    pair.run(1)
    pair.kernels.seconds, pair.kernels.runs = [5.0, 1.0], 0
    assert pair.run(16) == "kernels"
    assert pair.opened == 1


def test_a_time_that_is_close_to_a_corrected_estimate_is_timed():
    pair = Pair([1.0], [2.0])
    assert pair.run(1) == "kernels"
    pair.kernels.seconds = [1.9]
    assert pair.run(16) == "onnxruntime"
    assert pair.opened == 2


def test_plans_do_not_count():
    """Sizes come again, and plans for them are kept."""
    pair = Pair([2.0], [1.0], Estimate(4.0, 4.0))
    pair.kernels.planning = 9.0
    assert pair.run(4) == "kernels"
    assert (pair.kernels.runs, pair.opened) == (1, 0)


def test_nothing_is_repeated_where_the_first_run_beats_the_estimate_for_onnxruntime():
    """Each step of a decoder that begins a class of longer caches is such a run."""
    pair = Pair([2.0], [1.0], Estimate(4.0, 4.0))
    assert [pair.run(4), pair.run(4)] == ["kernels", "kernels"]
    assert (pair.kernels.runs, pair.opened) == (2, 0)
    assert pair.latest.reason == "timed: 2e+03 ms in the kernels against an estimate of 4e+03 ms in onnxruntime"


def test_memory_of_a_session_that_lost_goes_back_to_the_system(monkeypatch):
    trimmed = []
    monkeypatch.setattr(trials._kernels, "trim_memory", lambda: trimmed.append(pair.trials._whole))
    pair = Pair([1.0], [2.0])
    assert [pair.run(4), pair.run(4)] == ["kernels", "kernels"]
    assert (pair.opened, trimmed) == (1, [None])


def test_no_session_is_opened_where_the_kernels_beat_the_estimate_for_onnxruntime():
    pair = Pair([9.0, 2.0], [1.0], Estimate(4.0, 4.0))
    assert [pair.run(4), pair.run(4)] == ["kernels", "kernels"]
    assert (pair.kernels.runs, pair.opened) == (3, 0)
    assert pair.latest.reason == "timed: 2e+03 ms in the kernels against an estimate of 4e+03 ms in onnxruntime"


def test_short_runs_are_timed_whatever_the_estimate():
    assert Pair([9.0, 2e-4], [1e-4], Estimate(4.0, 4.0)).run(4) == "onnxruntime"


def test_the_session_of_the_whole_model_is_dropped_when_the_kernels_win():
    pair = Pair([1.0], [2.0])
    pair.run(1)
    assert (pair.opened, pair.trials._whole) == (1, None)
    kept = Pair([2.0], [1.0])
    kept.run(1)
    kept.run(16)
    assert kept.opened == 1


def test_what_onnxruntime_cannot_run_stays_in_the_kernels():
    def refuse():
        raise BackendError("no such file")

    clock = Clock()
    trials = Trials(Way("kernels", clock, 1.0), refuse, ["x"], lambda _: UNCLEAR, clock)
    route, outputs = trials.decide({"x": np.empty(3)})
    assert outputs == {"y": "kernels"}
    assert route.verdict == Verdict("kernels", "not timed against onnxruntime: no such file")


def test_requests_at_the_same_time_get_one_verdict():
    pair = Pair([2.0], [1.0])
    found = []
    threads = [threading.Thread(target=lambda: found.append(pair.run(4))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["onnxruntime"] * 4
    assert len(pair.asked) == 1


def test_placements_say_what_was_timed():
    layer, other = (
        Placement("conv", "Conv", "kernels", "90% pruned"),
        Placement("elu", "Elu", "onnxruntime", "no kernel"),
    )
    assert placed(layer, Verdict("kernels")) == layer
    assert placed(layer, Verdict("kernels", "timed: a")).reason == "90% pruned; timed: a"
    assert placed(other, Verdict("kernels", "timed: a")) == other
    for one in (layer, other):
        assert placed(one, Verdict("onnxruntime", "timed: b")) == Placement(one.name, one.op, "onnxruntime", "timed: b")


def test_sizes_of_a_class_differ_by_less_than_a_half():
    ends = [n for n in range(1, 200) if shape_class([(n,)]) != shape_class([(n - 1,)])]
    assert ends == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192]
    assert shape_class([(0, 5), ()]) == ((0, 4), ())


def test_short_runs_stay_on_one_thread_where_that_is_faster():
    pair = Pair([1e-3], [1.5e-3], alone=[8e-4])
    pair.run(4)
    assert pair.latest.reason == (
        "timed: 0.8 ms in the kernels on one thread, 1 ms on all, against 1.5 ms in onnxruntime"
    )
    assert pair.run(4) == "one thread"


def test_one_thread_is_taken_for_smaller_requests_as_well():
    pair = Pair([1e-3], [1.5e-3], alone=[8e-4])
    pair.run(40)
    runs = pair.alone.runs
    assert pair.run(3) == "kernels"  # the first run has all threads
    assert pair.alone.runs == runs
    assert pair.run(3) == "one thread"
    assert pair.run(400) == "kernels"
    assert pair.run(400) == "kernels"


@pytest.mark.parametrize(
    ("kernels", "whole", "alone", "wanted"),
    [
        ([1e-3], [1.5e-3], [9.5e-4], "kernels"),  # what disturbs a thread may be gone later
        ([1e-3], [1e-3], [9.4e-4], "one thread"),  # onnxruntime would have been taken
        ([1e-3], [7e-4], [8e-4], "onnxruntime"),
        ([3e-3], [5e-3], [1e-3], "kernels"),  # other requests may need all threads
        ([2e-5, *[1e-4] * 999], [1.5e-4], [8e-5], "one thread"),  # the others slept in the first run
    ],
)
def test_one_thread_has_to_be_clearly_faster(kernels, whole, alone, wanted):
    pair = Pair(kernels, whole, alone=alone)
    pair.run(4)
    assert pair.run(4) == wanted


@pytest.mark.parametrize(
    ("kernels", "alone", "whole", "wanted"),
    [
        (1.2e-4, 1.4e-4, 2e-4, "one thread"),
        (1.2e-4, 1.6e-4, 2e-4, "kernels"),  # a quarter less
        (1.2e-4, 1.4e-4, 1.45e-4, "kernels"),  # one thread gains too little against onnxruntime
        (1.2e-3, 1.4e-3, 2e-3, "kernels"),  # not very short
    ],
)
def test_threads_have_to_save_a_fifth_of_very_short_runs(kernels, alone, whole, wanted):
    pair = Pair([kernels], [whole], alone=[alone])
    pair.run(4)
    assert pair.run(4) == wanted


def test_one_thread_is_timed_where_onnxruntime_cannot_run():
    pair = Pair([1e-3], [], alone=[8e-4])
    pair.run(4)
    assert pair.run(4) == "one thread"
    assert pair.latest.reason == "not timed against onnxruntime: no such operator"
