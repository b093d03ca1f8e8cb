"""Programs that several callers use at once, by requests counted and not by times."""

import itertools
import threading

import pytest

from sift_onnx.backends import load as load_module
from sift_onnx.backends.load import Load, under_load
from sift_onnx.errors import UsageError


class Clock:
    """A clock that stands still but where something sleeps or runs."""

    def __init__(self):
        self.now = 1_000

    def perf_counter_ns(self):
        return self.now

    def sleep(self, seconds):
        self.now += round(1e9 * seconds)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(load_module, "time", clock)
    return clock


def test_streams_call_at_the_same_time():
    together, calls = threading.Barrier(3, timeout=30), itertools.count()

    def run():
        if next(calls) < 3:
            together.wait()

    (timing,) = under_load([run], Load(streams=3), seconds=0, warmup=0)
    assert len(timing.slices[0]) >= 3
    assert timing.wall_ns > 0


def test_throughput_counts_the_requests_of_all_streams(clock):
    def run():
        clock.now += 10_000_000

    (timing,) = under_load([run], Load(), seconds=0.2, warmup=0)
    assert timing.iterations_per_second == pytest.approx(100)
    assert set(timing.slices[0]) == {10_000_000}


def test_latencies_count_from_the_arrival(clock, monkeypatch):
    monkeypatch.setattr(Load, "arrivals", lambda *_: [0.0, 0.010, 0.011, 1.0])

    def run():
        clock.now += 10_000_000

    (timing,) = under_load([run], Load(rate=5), seconds=0.1, warmup=0)
    # The third one waits for the second, and the last one for nothing.
    assert [round(latency / 1e6) for latency in timing.slices[0]] == [10, 10, 19, 10]


def test_requests_that_have_waited_for_too_long_are_given_up(clock):
    def run():
        clock.now += 10_000_000

    (timing,) = under_load([run], Load(rate=10_000), seconds=0.1, warmup=0)
    served = sum(map(len, timing.slices))
    assert served + timing.unserved == 1000
    # For four slices after the last arrival, one is served every 10 ms.
    assert timing.wall_ns < 0.7e9
    assert max(map(max, timing.slices)) <= 0.41e9
    (timing,) = under_load([run], Load(rate=150), seconds=0.1, warmup=0)
    assert timing.unserved == 0


def test_the_one_request_of_a_low_rate_does_not_arrive_after_days(clock):
    under_load([lambda: None], Load(rate=1e-6), seconds=1.0, warmup=0)
    assert clock.now < 5e9


def test_arrivals_are_as_many_as_the_rate_has_and_the_same_for_all():
    load = Load(rate=100, seed=3)
    times = load.arrivals(2.0, part=1)
    assert len(times) == 200
    assert times == sorted(times) == load.arrivals(2.0, part=1) != load.arrivals(2.0, part=2)
    assert 1.0 < times[-1] < 4.0
    assert len(Load(rate=0.001).arrivals(1.0, part=0)) == 1


def test_each_request_is_served_once_by_several_streams():
    calls = []
    (timing,) = under_load([lambda: calls.append(1)], Load(streams=4, rate=5000), seconds=0.01, warmup=0)
    warm = len(calls) - sum(map(len, timing.slices))
    assert warm == 4
    assert sum(map(len, timing.slices)) == 50


@pytest.mark.parametrize("streams", [1, 2])
def test_an_error_of_a_caller_is_raised(streams):
    def run():
        raise UsageError("this one")

    with pytest.raises(UsageError, match="this one"):
        under_load([run], Load(streams), seconds=0, warmup=0)


@pytest.mark.parametrize(("streams", "rate"), [(0, None), (1, 0.0), (1, float("nan")), (1, float("inf")), (1, 1e9)])
def test_impossible_loads_are_refused(streams, rate):
    with pytest.raises(UsageError, match="must be"):
        Load(streams, rate)
