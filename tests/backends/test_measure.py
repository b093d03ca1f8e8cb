import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.backends.measure import Timing, host, interleave, paired_ratio, summarize
from sift_onnx.errors import UsageError

MS = 1_000_000


class Machine:
    """A clock that only programs advance, and a log of who ran."""

    def __init__(self):
        self.now = 0
        self.log = []

    def clock(self):
        return self.now

    def program(self, name, nanoseconds, drift=lambda now: 1.0):
        def run():
            self.log.append(name)
            self.now += int(nanoseconds * drift(self.now))

        return run

    def time(self, *durations_ms, seconds=1.0, warmup=0.0, **options):
        runs = [self.program(number, duration * MS) for number, duration in enumerate(durations_ms)]
        return interleave(runs, seconds=seconds, warmup=warmup, clock=self.clock, **options)


def test_every_program_is_measured_for_the_seconds_asked_for():
    for timing in Machine().time(1, 7, 20):
        assert sum(map(sum, timing.slices)) >= 1000 * MS


def test_programs_take_turns():
    machine = Machine()
    machine.time(10, 10)
    turns = [name for name, before in zip(machine.log, [None, *machine.log], strict=False) if name != before]
    assert turns == [0, 1] * (len(turns) // 2)
    assert len(turns) >= 20


def test_there_are_as_many_slices_of_each():
    timings = Machine().time(1, 30, 3)
    assert len({len(timing.slices) for timing in timings}) == 1


def test_warm_up_is_not_measured():
    machine = Machine()
    (timing,) = machine.time(10, seconds=1, warmup=2)
    assert len(machine.log) >= 200 + len(timing.slices[0])
    assert summarize(timing).iterations < 110


def test_first_iteration_of_a_slice_is_not_timed_where_iterations_are_short():
    machine = Machine()
    (timing,) = machine.time(1)
    timed = summarize(timing).iterations
    assert len(machine.log) == 1 + timed + len(timing.slices)


def test_slow_programs_get_ten_iterations():
    (timing,) = Machine().time(300, seconds=1)
    assert summarize(timing).iterations == 10


def test_far_too_slow_programs_get_three():
    (timing,) = Machine().time(60_000, seconds=1)
    assert summarize(timing).iterations == 3


def test_short_measurement_still_has_ten_slices():
    (timing,) = Machine().time(0.1, seconds=0.02)
    assert len(timing.slices) >= 10


def test_rounds_are_reported():
    reports = []
    (timing,) = Machine().time(10, on_round=lambda done, expected: reports.append((done, expected)))
    assert [done for done, _ in reports] == list(range(1, len(timing.slices) + 1))
    assert all(done <= expected for done, expected in reports)


def test_nothing_to_time():
    assert interleave([]) == []


def test_ratio_is_steady_on_a_machine_that_drifts():
    machine = Machine()

    def drift(now):
        return 1.0 + now / (2000 * MS)  # at the end, all takes twice as long

    runs = [machine.program("slow", 6 * MS, drift), machine.program("fast", 2 * MS, drift)]
    slow, fast = interleave(runs, seconds=1, warmup=0, clock=machine.clock)
    assert summarize(slow).p90_ms > 1.3 * summarize(slow).min_ms
    ratio = paired_ratio(slow, fast)
    assert ratio.median == pytest.approx(3, rel=0.05)
    assert ratio.spread == (pytest.approx(3, rel=0.05), pytest.approx(3, rel=0.05))


def test_summary_of_known_times():
    timing = Timing((tuple(n * MS for n in range(1, 51)), tuple(n * MS for n in range(51, 102))))
    summary = summarize(timing)
    assert (summary.median_ms, summary.min_ms, summary.p90_ms, summary.p99_ms) == (51, 1, 91, 100)
    assert summary.iterations == 101


def test_ratio_of_known_slices():
    a = Timing(((4,), (6, 6, 90), (8,), (20,)))
    b = Timing(((2,), (2,), (2,), (2, 2, 70)))
    ratio = paired_ratio(a, b)
    assert ratio.median == 3.5  # of 2, 3, 4 and 10
    assert ratio.spread == (2.75, 5.5)
    assert ratio.slices == 4


SLICES = st.lists(st.lists(st.integers(1, 10**10), min_size=1, max_size=5), min_size=1, max_size=8)


@settings(deadline=None)
@given(SLICES)
def test_statistics_are_in_order(slices):
    summary = summarize(Timing(tuple(map(tuple, slices))))
    longest = max(max(part) for part in slices) / 1e6
    assert 0 < summary.min_ms <= summary.median_ms <= summary.p90_ms <= summary.p99_ms <= longest
    assert summary.iterations == sum(map(len, slices))


@settings(deadline=None)
@given(SLICES)
def test_ratio_with_itself_is_one(slices):
    timing = Timing(tuple(map(tuple, slices)))
    ratio = paired_ratio(timing, timing)
    assert (ratio.median, ratio.spread) == (1, (1, 1))


@settings(deadline=None)
@given(SLICES, st.integers(2, 50))
def test_ratio_scales_with_the_times_whatever_the_slices_are(slices, factor):
    timing = Timing(tuple(map(tuple, slices)))
    slower = Timing(tuple(tuple(factor * time for time in part) for part in slices))
    ratio = paired_ratio(slower, timing)
    low, high = ratio.spread
    np.testing.assert_allclose((low, ratio.median, high), factor)
    np.testing.assert_allclose(paired_ratio(timing, slower).median, 1 / factor)


def test_host_names_the_machine():
    described = host()
    assert described["cpu"]
    assert described["affinity"] >= 1
    assert described["logical_cores"] >= 1
    assert {"python", "platform", "onnxruntime"} <= described.keys()


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300])
@pytest.mark.parametrize("name", ["seconds", "warmup"])
def test_a_duration_is_finite(name, value):
    with pytest.raises(UsageError, match=name):
        interleave([lambda: None], **{name: value})
