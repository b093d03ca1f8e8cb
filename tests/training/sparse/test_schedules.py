"""Values and update steps by schedule."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse import (
    Constant,
    Cycling,
    HyperParameterSchedule,
    Lambda,
    make_hyperparam_schedule,
    make_update_schedule,
)


class Halving(HyperParameterSchedule):
    """A user's own schedule, found by its name."""

    def __init__(self, init: float) -> None:
        self.init = init

    def compute(self, step: int) -> float:
        return self.init / 2**step


@pytest.mark.parametrize(
    ("schedule", "step", "value"),
    [
        (0.9, 7, 0.9),
        ({"type": "constant", "value": 0.3}, 7, 0.3),
        ({"type": "linear", "init": 0.1, "slope": 0.02}, 35, 0.8),
        ({"type": "exp", "init": 0.2, "gamma": -0.1}, 0, 0.2),
        ({"type": "exp", "init": 0.2, "gamma": -0.1}, 10, 1 - 0.8 * math.exp(-1)),
        ({"type": "exp", "init": 0.2, "gamma": -0.1, "final": 0.5}, 1000, 0.5),
        ({"type": "power", "init": 0.3, "beta": 0.5}, 3, 0.0375),
        ({"type": "cosine", "init": 0.3, "half_period": 100}, 0, 0.3),
        ({"type": "cosine", "init": 0.3, "half_period": 100}, 50, 0.15),
        ({"type": "cosine", "init": 0.3, "half_period": 100, "minimum": 0.1}, 100, 0.1),
        ({"type": "cosine", "init": 0.3, "half_period": 100}, 200, 0.3),
        ({"type": "Cubic", "final": 0.8, "stop": 10}, 0, 0.0),
        ({"type": "cubic", "final": 0.8, "stop": 10}, 5, 0.7),
        ({"type": "cubic", "final": 0.8, "stop": 10}, 99, 0.8),
        ({"type": "cubic", "final": 0.8, "stop": 14, "init": 0.4, "start": 4}, 3, 0.4),
        ({"type": "exponentialk", "init": 0.3, "k": 3, "period": 100}, 100, 0.3 * math.exp(-3)),
        ({"type": "halving", "init": 0.8}, 2, 0.2),
        (lambda step: 0.01 * step, 35, 0.35),
        ({"type": "lambda", "fn": lambda step: torch.cos(step * 0)}, 3, 1.0),
        ("0.25", 3, 0.25),
    ],
)
def test_values(schedule: Any, step: int, value: float) -> None:
    made = make_hyperparam_schedule(schedule)
    assert made(step) == pytest.approx(value, abs=1e-12)
    assert made(torch.tensor(step)) == made(step)


def test_linear_steps_are_exact_decimals() -> None:
    made = make_hyperparam_schedule({"type": "linear", "init": 0, "slope": 0.02})
    assert made(35).exact == Fraction(7, 10)


def test_a_list_cycles_by_updates_and_not_by_steps() -> None:
    schedule = make_hyperparam_schedule([0.3, 0.4, 0.5])
    seen = []
    for update in (False, True, False, True, True, True):
        seen.append(float(schedule(123)))
        schedule.update(update)

    assert seen == [0.3, 0.3, 0.4, 0.4, 0.5, 0.3]


def test_a_cycle_resumes_where_it_was() -> None:
    first, second = Cycling([0.3, 0.4, 0.5]), Cycling([0.3, 0.4, 0.5])
    first.update(True)
    second.load_state_dict(first.state_dict())
    assert second(0) == 0.4

    second.visit_state(lambda index: index + 1)
    assert second(0) == 0.5
    with pytest.raises(UsageError, match="cannot resume at its number 7"):
        second.load_state_dict({"index": 7})


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 100), st.integers(0, 200))
def test_cubic_rises_from_init_to_final(a: float, b: float, stop: int, step: int) -> None:
    low, high = sorted((a, b))
    schedule = make_hyperparam_schedule({"type": "cubic", "init": low, "final": high, "stop": stop})

    assert low <= schedule(step) <= schedule(step + 1) <= high


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"type": "quadratic"}, "choose one of constant, cosine, cubic, cycling, exp"),
        ({"init": 0.3}, "type None"),
        ({"type": "linear", "init": 0.3, "slop": 1}, "it takes"),
        ({"type": "cosine", "init": 0.3, "half_period": 0}, "half_period above 0"),
        ({"type": "cubic", "final": 0.3, "stop": 0}, "cannot end at step 0"),
        ([], "one value or more"),
        (lambda step, grad: 0.3, "takes the step, and nothing else"),
        ("half", "not a finite number"),
    ],
)
def test_what_is_no_schedule_is_refused(schedule: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_hyperparam_schedule(schedule)


def test_a_schedule_is_taken_as_it_is() -> None:
    schedule = Constant(0.5)
    assert make_hyperparam_schedule(schedule) is schedule
    assert Lambda(lambda step: 0.5).get_min_max_end(0, 9) is None


@pytest.mark.parametrize(
    ("update", "steps"),
    [
        (None, list(range(21))),
        ({"freq": 5}, [0, 5, 10, 15, 20]),
        ({"freq": 5, "start": 3}, [3, 8, 13, 18]),
        ({"freq": 5, "stop": 15}, [0, 5, 10]),
        ({"freq": 5, "start": 5, "stop": 16}, [5, 10, 15]),
        ({"steps": [2, 3, 11]}, [2, 3, 11]),
        (lambda step: step == 4, [4]),
    ],
)
def test_update_steps(update: Any, steps: list[int]) -> None:
    schedule = make_update_schedule(update)
    assert [step for step in range(21) if schedule(step)] == steps
    assert schedule.starts_sparse == (0 in steps)


def test_strict_update_steps_leave_both_bounds_out_and_start_sparse() -> None:
    schedule = make_update_schedule({"freq": 5, "start": 5, "stop": 15}, strict=True)
    assert [step for step in range(21) if schedule(step)] == [10]
    assert schedule.starts_sparse
    assert repr(make_update_schedule({}, strict=True)) == "StrictFreqSchedule(freq=100, start=0, stop=None)"


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"every": 5}, "is unknown; use None"),
        ({"freq": 5, "end": 9}, "unexpected keyword argument 'end'"),
        ({"freq": 0}, "freq of 1 or more"),
        ({"freq": 0.5}, "whole steps"),
        ({"freq": 5, "start": 9, "stop": 9}, "never happen"),
        ({"steps": []}, "one step or more"),
        (7, "is unknown"),
    ],
)
def test_what_is_no_update_schedule_is_refused(update: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_update_schedule(update)
