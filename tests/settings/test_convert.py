"""Plain values as annotated types: what is taken, and how what is not is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from msgspec import Meta

from sift_onnx.errors import UsageError
from sift_onnx.settings import convert
from sift_onnx.settings.convert import expected

Share = Annotated[float, Meta(ge=0, lt=1)]
Globs = Annotated[Sequence[str], Meta(description='a list of names, as ["layer1.*"]')]


@dataclass(frozen=True)
class Optimizer:
    """A nested mapping."""

    type: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if not self.lr:
            raise UsageError("a rate of 0 trains nothing")


@dataclass(frozen=True)
class Training:
    """The outermost mapping."""

    epochs: int
    optimizer: Optimizer = field(default_factory=Optimizer)
    steps: int | None = None
    smoothing: Share = 0.0
    trainable: tuple[str, ...] = ()
    stages: list[Optimizer] = field(default_factory=list)
    by_name: Mapping[str, Optimizer] = field(default_factory=dict)
    anything: Any = None


@pytest.mark.parametrize(
    ("value", "annotation", "wanted"),
    [
        (3, int, 3),
        (3, float, 3.0),
        ("1e-3", float, 0.001),
        ("1e-3", str, "1e-3"),
        ("0.50", float | str | Fraction, "0.50"),
        (Fraction(1, 3), float | str | Fraction, Fraction(1, 3)),
        (np.int64(3), int, 3),
        (np.float32(0.9), float, 0.9),
        (None, int | None, None),
        ("relu", Literal["relu", "gelu"] | None, "relu"),
        (("a", "b"), Sequence[str], ["a", "b"]),
        (["1e-3", 2], tuple[float, float], (0.001, 2.0)),
        ({"x": (1, np.int64(3))}, Mapping[str, Sequence[int]], {"x": [1, 3]}),
        (["a"], Globs, ["a"]),
    ],
)
def test_values_become_what_the_annotation_says(value: Any, annotation: Any, wanted: Any) -> None:
    found = convert(value, annotation, where="x")
    assert found == wanted
    assert type(found) is type(wanted)


def test_a_mapping_becomes_a_dataclass_with_its_defaults() -> None:
    document = {
        "epochs": 3,
        "optimizer": {"lr": "1e-4", "betas": [0.5, 1]},
        "trainable": ["a", "b"],
        "stages": [{}, {"lr": 2}],
        "by_name": {"q": {"lr": "1e-2"}},
        "anything": {"free": [1]},
    }
    found = convert(document, Training, where="r.yaml")
    assert found == Training(
        3, Optimizer(lr=0.0001, betas=(0.5, 1.0)), None, 0.0, ("a", "b"), [Optimizer(), Optimizer(lr=2.0)],
        {"q": Optimizer(lr=0.01)}, {"free": [1]},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        (True, int, "x is True; write a whole number"),
        (1, bool, "x is 1; write true or false"),
        (0.5, int, "x is 0.5; write a whole number"),
        ("three", float, "x is 'three'; write a number"),
        ("\udce9", float | str, r"x is '\udce9', which is not UTF-8 text"),
        (True, float | str, "x is True; write a number or a text, in quotes if need be"),
        (None, int, "x is None; write a whole number"),
        (5, str, "x is 5; write a text, in quotes if need be"),
        ("swish", Literal["relu", "gelu"], "x is 'swish'; choose one of relu, gelu"),
        ("swish", Literal["relu", "gelu"] | None, "x is 'swish'; choose one of relu, gelu"),
        (5, Literal["relu", "gelu"], "x is 5; write a text, one of relu, gelu"),
        ("a", Globs, """x is 'a'; write a list of names, as ["layer1.*"]"""),
        (-1, Annotated[int | None, Meta(ge=0)], "x is -1; write a whole number, 0 or more"),
        (True, Annotated[float | str | Fraction, Meta(description="a number")], "x is True; write a number"),
        ([1], Globs, """x is [1]; write a list of names, as ["layer1.*"]"""),
        ("a", Sequence[str], "x is 'a'; write a list"),
        (["a", 1], Sequence[str], "x: [1] is 1; write a text, in quotes if need be"),
        ([1], tuple[float, float], "x is [1]; write a list of 2"),
        (1.0, Share, "x is 1.0; write a number, 0 or more and below 1"),
        (math.nan, Share, "x is nan; write a number, 0 or more and below 1"),
        ([1], Optimizer, "x is [1]; write a mapping, as {name: value}"),
        ({}, Training, "x needs 'epochs'; write 'epochs: ...'"),
        ({"epochs": 1, "optimiser": {}}, Training,
         "x has no setting 'optimiser'; there are epochs, optimizer, steps, smoothing, trainable, stages, by_name, "
         "anything; did you mean 'optimizer'?"),
        ({"epochs": 1, "optimizer": {"zzz": 1}}, Training,
         "x: optimizer has no setting 'zzz'; there are type, lr, betas"),
        ({"epochs": 1, "optimizer": {"betas": [0.5, "b"]}}, Training, "x: optimizer.betas[1] is 'b'; write a number"),
        ({"epochs": 1, "optimizer": {"lr": 0}}, Training, "x: optimizer: a rate of 0 trains nothing"),
        ({"epochs": 1, "stages": [{}, {"type": "lion"}]}, Training,
         "x: stages[1].type is 'lion'; choose one of sgd, adamw"),
        ({"epochs": 1, "steps": "many"}, Training, "x: steps is 'many'; write a whole number"),
        ({"epochs": 1, "by_name": {"q": {"lr": "fast"}}}, Training, "x: by_name is {'q': {'lr': 'fast'}}; write a "
         "mapping, as {name: value}"),
        ({1: 2}, Mapping[str, int], "x is {1: 2}; write a mapping, as {name: value}"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_with_its_place_and_what_is_expected(
    value: Any, annotation: Any, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        convert(value, annotation, where="x")
    assert str(caught.value) == message


def test_a_document_may_have_more_names_than_its_reader_knows() -> None:
    later = {"epochs": 1, "added": 2, "optimizer": {"added": 3}}
    assert convert(later, Training, where="run.json", ignore_unknown=True) == Training(1)


def test_the_reader_of_a_document_asks_in_other_words() -> None:
    with pytest.raises(UsageError, match=r"run\.json: epochs is 'x'; expected a whole number$"):
        convert({"epochs": "x"}, Training, where="run.json", ask="expected", ignore_unknown=True)


def test_a_type_that_no_plain_value_has_is_taken_as_it_is() -> None:
    class Own:
        pass

    own = Own()
    assert convert(own, Own, where="x") is own
    assert convert(own, str | Own, where="x") is own
    with pytest.raises(UsageError, match="x is 5; write a value of the type Own"):
        convert(5, Own, where="x")


def test_bounds_are_told_in_words() -> None:
    assert expected(Annotated[int, Meta(gt=0, le=8)]) == "a whole number, above 0 and at most 8"
    assert expected(Annotated[float, Meta(ge=0)]) == "a number, 0 or more"
