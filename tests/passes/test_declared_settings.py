"""Settings of passes: fields of dataclasses, or arguments of constructors that others write by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, FrozenInstanceError, dataclass
from inspect import Parameter, signature
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from msgspec import Meta

from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.passes import (
    Densify,
    Doped,
    FoldBatchNorm,
    InlineFunctions,
    LowRank,
    Pass,
    PassResult,
    Prune,
    Wide,
    get_pass,
)
from sift_onnx.passes.base import pass_names
from sift_onnx.passes.declared_settings import declared_settings, field_hints, make


class Handwritten(Pass):
    """A pass with settings of all kinds."""

    name: ClassVar[str] = "handwritten"

    def __init__(  # type: ignore[no-untyped-def]
        self,
        share: float = 0.5,
        count: int = 1,
        word: str = "",
        choice: Literal["a", "b"] = "a",
        flag: bool = False,
        names: Sequence[str] = (),
        shapes: Mapping[str, Sequence[int]] | None = None,
        anything=None,
    ) -> None:
        """Takes what it is given."""

    def call(self, model: Model) -> PassResult:
        return PassResult(model, False)


@pytest.mark.parametrize(
    "settings",
    [
        {"share": 0.25},
        {"share": 1},
        {"count": 3},
        {"word": "x"},
        {"choice": "b"},
        {"flag": True},
        {"names": ["a"]},
        {"shapes": {"x": [1, 2]}},
        {"anything": object()},
    ],
)
def test_what_the_constructor_takes_is_taken(settings: Mapping[str, Any]) -> None:
    make(Handwritten, settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": True}, "write a number"),
        ({"count": 0.5}, "a whole number"),
        ({"word": 5}, "write a text"),
        ({"choice": 5}, "write a text"),
        ({"flag": 1}, "true or false"),
        ({"names": "a"}, "a list of names"),
        ({"shapes": [1]}, "a mapping from inputs"),
        ({"other": 1}, "has no setting 'other'"),
    ],
)
def test_what_it_would_take_for_something_else_is_refused(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(Handwritten, settings)


@pytest.mark.parametrize(
    ("pass_", "noted"),
    [
        (
            Wide(0.9, keep_dense=["fc"]),
            {"pass": "wide", "sparsity": "0.9", "budget": "model", "seed": 0, "round_to": 1, "attention": "head-dim",
             "resize_output": [], "only": [], "keep_dense": ["fc"]},
        ),
        (
            Wide("2/3", pattern="2:4", distribution="erk", input_shapes={"x": (1, 3)}, strict=True),
            {"pass": "wide", "sparsity": "2/3", "budget": "model", "seed": 0, "round_to": 1, "attention": "head-dim",
             "resize_output": [], "only": [], "keep_dense": [], "pattern": "2:4", "distribution": "erk",
             "input_shapes": {"x": [1, 3]}},
        ),
        (
            Doped(np.float32(0.9), init="svd", seed=np.int64(3)),
            {"pass": "doped", "sparsity": "0.9", "activation": "auto", "init": "svd", "seed": 3, "only": [],
             "keep_dense": []},
        ),
        (
            Prune("0.50", method="random"),
            {"pass": "prune", "sparsity": "0.5", "method": "random", "seed": 0, "only": [], "keep_dense": []},
        ),
        (
            LowRank("1.41"),
            {"pass": "low-rank", "width": "1.41", "activation": "auto", "init": "random", "seed": 0, "only": [],
             "keep_dense": []},
        ),
        (Densify(input_shapes={"x": [1]}), {"pass": "densify"}),
        (FoldBatchNorm(), {"pass": "fold-batch-norm"}),
        (InlineFunctions(), None),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_what_is_noted_in_models_stays_as_older_builds_wrote_it(pass_: Pass, noted: dict[str, Any] | None) -> None:
    """A model tells by these whether it went through a pass."""
    assert pass_.settings() == noted
    assert json.loads(json.dumps(noted)) == noted


def test_two_passes_with_the_same_settings_are_equal() -> None:
    assert Wide(0.9, only=["a"]) == Wide("0.90", only=("a",))
    assert Wide(0.9) != Wide(0.9, seed=1)
    assert hash(Wide(0.9, only=["a"], input_shapes={"x": [1]})) == hash(Wide("0.90", only=("a",)))
    with pytest.raises(FrozenInstanceError):
        Wide(0.9).seed = 1  # type: ignore[misc]


def test_every_setting_has_a_line_of_help() -> None:
    ours = [get_pass(name) for name in pass_names() if get_pass(name).__module__.startswith("sift_onnx.")]
    assert {
        setting.name for pass_ in ours for setting in declared_settings(pass_).values() if not setting.help
    } == set()


def test_choices_and_defaults_are_those_of_the_fields() -> None:
    settings = declared_settings(Doped)
    assert list(settings)[:3] == ["sparsity", "init", "activation"]
    assert settings["init"].choices == ("random", "svd")
    assert settings["init"].default == "random"
    assert settings["sparsity"].default is Parameter.empty


def test_a_pass_of_a_user_s_own_is_a_dataclass_with_the_same_checks() -> None:
    @dataclass(frozen=True)
    class Own(Pass):
        """Has one setting."""

        name: ClassVar[str] = "own"
        is_noted: ClassVar[bool] = True

        below: Annotated[float, Meta(gt=0), "weights are kept from here on"] = 0.1

        def call(self, model: Model) -> PassResult:
            return PassResult(model, False)

    assert make(Own, {"below": "1e-2"}).settings() == {"pass": "own", "below": 0.01}
    with pytest.raises(UsageError, match=r"the setting 'below' of own is 0; write a number, above 0"):
        Own(below=0)


def test_a_constructor_written_by_hand_may_fill_in_the_fields_of_a_base() -> None:
    class Quarter(Wide):
        """Keeps a quarter of the weights."""

        name: ClassVar[str] = "quarter"

        def __init__(self, step: int) -> None:
            super().__init__(0.75, round_to=step)
            self.step = step

    assert list(declared_settings(Quarter)) == ["step"]
    assert make(Quarter, {"step": 8}).identity() == Wide(0.75, round_to=8).identity() | {"pass": "quarter"}
    with pytest.raises(UsageError, match=r"the setting 'step' of quarter is -1; write a whole number, 0 or more"):
        make(Quarter, {"step": -1})


def test_what_need_not_be_given_is_given_by_name() -> None:
    for pass_class in map(get_pass, pass_names()):
        if pass_class.__module__.startswith("sift_onnx."):
            first, *others = signature(pass_class).parameters.values() or [None]
            assert all(other.kind is Parameter.KEYWORD_ONLY for other in others), pass_class
            assert (
                first is None
                or pass_class.name == "low-rank"
                or ((first.kind is Parameter.KEYWORD_ONLY) == (first.default is not Parameter.empty))
            )


@pytest.mark.parametrize("name", pass_names())
def test_annotations_of_fields_are_types(name: str) -> None:
    """Python 3.10 refuses the mark that separates keyword-only fields, and with it the pass."""
    assert KW_ONLY not in field_hints(get_pass(name)).values()
