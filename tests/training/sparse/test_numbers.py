"""Numbers of a configuration that are none, in every place that takes one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse import configure
from sift_onnx.training.trainer.settings import TrainingSettings

RIGL: dict[str, Any] = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 10}}
IMP: dict[str, Any] = {"algorithm": "imp", "sparsity": 0.5, "update": {"freq": 10}}
GMP: dict[str, Any] = {"algorithm": "gmp", "update": {"freq": 10}}
# What is taken there, and the configuration with a value there.
PLACES: dict[str, Any] = {
    "number": (0.5, lambda x: x),
    "sparsity": (0.5, lambda x: {"sparsity": x}),
    "seed": (2, lambda x: RIGL | {"seed": x}),
    "densify_at": (2, lambda x: RIGL | {"densify_at": x}),
    "drop_fraction": (0.5, lambda x: RIGL | {"drop_fraction": x}),
    "balance_in_groups": (2, lambda x: RIGL | {"balance_in_groups": x}),
    "balance_out_groups": (2, lambda x: RIGL | {"balance_out_groups": x}),
    "freq": (2, lambda x: RIGL | {"update": {"freq": x}}),
    "start": (2, lambda x: RIGL | {"update": {"freq": 1, "start": x}}),
    "stop": (2, lambda x: RIGL | {"update": {"freq": 1, "stop": x}}),
    "steps": ([1, 2], lambda x: RIGL | {"update": {"steps": x}}),
    "steps, listed": (2, lambda x: RIGL | {"update": {"steps": [1, x]}}),
    "rounds": (2, lambda x: IMP | {"rounds": x}),
    "rewind_to": (2, lambda x: IMP | {"rewind_to": x}),
    "cycling": ([0.5, 0.6], lambda x: GMP | {"sparsity": {"type": "cycling", "values": x}}),
    "cycling, listed": (0.6, lambda x: GMP | {"sparsity": [0.5, x]}),
    "linear": (0.1, lambda x: GMP | {"sparsity": {"type": "linear", "init": 0, "slope": x}}),
    "exp": (-0.5, lambda x: GMP | {"sparsity": {"type": "exp", "init": 0, "gamma": x}}),
    "power": (0.5, lambda x: GMP | {"sparsity": {"type": "power", "init": 0, "beta": x}}),
    "cosine": (2, lambda x: GMP | {"sparsity": {"type": "cosine", "init": 0, "half_period": x}}),
    "cubic, stop": (2, lambda x: GMP | {"sparsity": {"type": "cubic", "final": 0.5, "stop": x}}),
    "cubic, start": (2, lambda x: GMP | {"sparsity": {"type": "cubic", "final": 0.5, "stop": 9, "start": x}}),
    "exponentialk, k": (0.5, lambda x: GMP | {"sparsity": {"type": "exponentialk", "init": 0, "k": x, "period": 9}}),
    "exponentialk, period": (
        2,
        lambda x: GMP | {"sparsity": {"type": "exponentialk", "init": 0, "k": 1, "period": x}},
    ),
}


def configuration(place: str, value: Any) -> Any:
    return PLACES[place][1](value)


@pytest.mark.parametrize("place", PLACES)
def test_a_number_is_taken(place: str) -> None:
    assert configure(configuration(place, PLACES[place][0])) is not None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "many"], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_a_number_that_is_none_is_refused_where_it_is_given(place: str, value: Any) -> None:
    if (place, value) == ("number", "many"):
        return  # a configuration in YAML, which is refused as one
    with pytest.raises(UsageError):
        configure(configuration(place, value))


@pytest.mark.parametrize("period", [0, -1])
def test_a_period_is_above_0(period: float) -> None:
    for place in ("cosine", "exponentialk, period"):
        with pytest.raises(UsageError, match="above 0"):
            configure(configuration(place, period))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["epochs", "steps", "batch_size", "seed", "checkpoint_every", "clip_norm"])
def test_settings_of_a_training_are_finite(name: str, value: float) -> None:
    settings: dict[str, Any] = {"epochs": 1, name: value} | ({"epochs": None} if name == "steps" else {})
    with pytest.raises(UsageError, match=name):
        TrainingSettings(**{**settings, name: value})
