"""Settings of passes that others write: annotations of any kind, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pytest

from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.passes import Pass, PassResult
from sift_onnx.passes.declared_settings import make


class Annotated(Pass):
    """A pass with settings of all kinds."""

    name: ClassVar[str] = "annotated"

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
    make(Annotated, settings)


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
        make(Annotated, settings)
