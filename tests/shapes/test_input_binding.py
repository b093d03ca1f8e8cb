"""Inputs and their shapes: which sizes open axes get, and what is refused."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from sift_onnx.analysis.graph_analysis import analyze, fitting_inputs
from sift_onnx.cli import main
from sift_onnx.errors import SiftError, UsageError
from sift_onnx.model import Model
from sift_onnx.shapes.input_binding import batch_of, bind
from sift_onnx.shapes.tensor_specs import TensorSpec, graph_inputs, model_inputs


def with_inputs(**shapes: list[Any] | None) -> Model:
    """A model with these inputs, each copied to an output."""
    nodes = [helper.make_node("Relu", [name], [f"{name}.out"]) for name in shapes]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in shapes.items()]
    outputs = [helper.make_tensor_value_info(f"{name}.out", TensorProto.FLOAT, None) for name in shapes]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return Model.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def shapes_of(model: Model, given: Any = None) -> dict[str, tuple[int, ...]]:
    return bind(model_inputs(model), given).shapes


def test_fixed_axes_keep_their_size_and_a_dynamic_batch_is_one() -> None:
    assert shapes_of(with_inputs(x=["N", 3, 8, 8], y=[None, 5], z=[4])) == {"x": (1, 3, 8, 8), "y": (1, 5), "z": (4,)}


def test_a_scalar_has_no_axes() -> None:
    assert shapes_of(with_inputs(x=[])) == {"x": ()}


def test_sizes_given_for_one_input_hold_for_their_symbols_in_the_others() -> None:
    model = with_inputs(ids=["batch", "seq"], mask=["batch", "seq"], other=["seq", "batch"], free=["n", 2])
    expected = {"ids": (3, 7), "mask": (3, 7), "other": (7, 3), "free": (3, 2)}
    assert shapes_of(model, {"mask": [3, 7]}) == expected
    assert shapes_of(model, {"mask": np.asarray([3, 7])}) == expected


def test_the_batch_is_one_wherever_its_symbol_stands() -> None:
    """The state of a recurrent layer has the batch in the middle."""
    assert shapes_of(with_inputs(state=[2, "batch", 64], x=["batch", 5])) == {"state": (2, 1, 64), "x": (1, 5)}


def test_an_input_without_a_shape_takes_the_one_that_is_given() -> None:
    assert shapes_of(with_inputs(x=None), {"x": [2, 3]}) == {"x": (2, 3)}


@pytest.mark.parametrize(
    ("shapes", "given", "message"),
    [
        ({"x": ["N", 4]}, {"z": [1, 4]}, r"^`input_shapes` names 'z', but the inputs are 'x'$"),
        ({"x": ["N", 4]}, {"x": [1, 4, 4]}, r"^`input_shapes` gives 'x' 3 axes, the model has 2$"),
        ({"x": ["N", 4]}, {"x": [0, 4]}, r"^`input_shapes` gives axis 0 of 'x' the size 0; sizes start at 1$"),
        (
            {"x": ["N", 4]},
            {"x": [2**63, 4]},
            r"^`input_shapes` gives axis 0 of 'x' the size 9223372036854775808; no axis ",
        ),
        ({"x": ["N", 4]}, {"x": [2, 5]}, r"^`input_shapes` gives axis 1 of 'x' the size 5, the model fixes 4$"),
        (
            {"x": ["N", 4]},
            {"x": [2.5, 4]},
            r"^`input_shapes` gives 'x' \[2\.5, 4\]; give a whole number for each axis$",
        ),
        ({"x": ["N", 4]}, {"x": 4}, r"^`input_shapes` gives 'x' 4; give a whole number for each axis$"),
        (
            {"x": ["N", 4], "y": [2, "N"]},
            {"x": [2, 4], "y": [2, 3]},
            r"^`input_shapes` gives axis 1 of 'y' the size 3, but axis 'N' the size 2 elsewhere; it has one size$",
        ),
        ({"x": ["N", "N"]}, {"x": [2, 3]}, r"^`input_shapes` gives axis 1 of 'x' the size 3, but axis 'N' the size 2 "),
        (
            {"x": ["N", "C", "H", "W"]},
            None,
            r"^axis 1 of input 'x' is dynamic \('C'\); give its size with "
            r"`input_shapes=\{'x': \(1, N, N, N\)\}`$",
        ),
        (
            {"x": [2, None]},
            None,
            r"^axis 1 of input 'x' is dynamic \(without a name\); give its size with "
            r"`input_shapes=\{'x': \(2, N\)\}`$",
        ),
        (
            {"x": None},
            None,
            r"^input 'x' has no shape; give one with `input_shapes=\{'x': \(1, \.\.\.\)\}`$",
        ),
    ],
)
def test_a_mistake_is_named_with_its_input_axis_and_option(
    shapes: dict[str, Any], given: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        shapes_of(with_inputs(**shapes), given)


def test_the_example_in_a_message_is_accepted_once_it_is_filled_in() -> None:
    model = with_inputs(x=[2, "F"])
    with pytest.raises(UsageError) as caught:
        shapes_of(model)
    example = str(caught.value).partition("`input_shapes=")[2].partition("`")[0]
    assert shapes_of(model, ast.literal_eval(example.replace("N", "9"))) == {"x": (2, 9)}


# Batches.


FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)


def spec(name: str, *shape: Any, dtype: Any = FLOAT) -> TensorSpec:
    return TensorSpec(name, dtype, shape)


IMAGE = spec("x", "batch", 3, 32, 32)
IDS = spec("ids", "batch", "seq", dtype=INT)
MASK = spec("mask", "batch", "seq", dtype=INT)


def bound(inputs: list[TensorSpec], batch: int | None = None, given: Any = None) -> dict[str, tuple[int, ...]]:
    return bind(inputs, given, batch).shapes


def test_dynamic_first_axis_is_the_batch() -> None:
    assert bound([IMAGE], batch=64) == {"x": (64, 3, 32, 32)}


@pytest.mark.parametrize("mark", [None, "?", "None", -1])
def test_unnamed_first_axis_is_the_batch(mark: Any) -> None:
    assert bound([spec("x", mark, 3)], batch=5) == {"x": (5, 3)}


def test_without_a_batch_a_dynamic_first_axis_is_one() -> None:
    assert bound([IMAGE]) == {"x": (1, 3, 32, 32)}


def test_without_a_batch_the_exported_one_holds_for_all_inputs() -> None:
    inputs = [spec("x", 8, 3), spec("y", "n", 3)]
    assert bound(inputs) == {"x": (8, 3), "y": (8, 3)}
    assert batch_of(inputs, bound(inputs)) == 8


def test_batch_other_than_the_exported_one_is_refused() -> None:
    with pytest.raises(UsageError, match=r"exported with batch 8 \(input 'x' is 8,3\)"):
        bound([spec("x", 8, 3)], batch=64)


def test_fixed_inputs_beside_a_dynamic_one_are_left_alone() -> None:
    assert bound([IDS, spec("positions", 1, 16)], 4, {"ids": (4, 16)})["positions"] == (1, 16)


def test_given_shape_fixes_the_same_name_elsewhere() -> None:
    assert bound([IDS, MASK], 2, {"ids": (2, 128)}) == {"ids": (2, 128), "mask": (2, 128)}


def test_given_shape_fixes_the_batch() -> None:
    inputs = [spec("x", "n", 4), spec("y", "n", 2)]
    assert bound(inputs, None, {"y": (7, 2)}) == {"x": (7, 4), "y": (7, 2)}


def test_scalar_input_has_no_axes() -> None:
    assert bound([spec("scale"), IMAGE], 2) == {"scale": (), "x": (2, 3, 32, 32)}


def test_first_axis_named_like_an_inner_one_is_not_taken_for_the_batch() -> None:
    assert bound([spec("positions", "seq", dtype=INT), IDS], 4, {"ids": (4, 16)}) == {
        "positions": (16,),
        "ids": (4, 16),
    }


def test_the_batch_may_stand_behind_the_time() -> None:
    frames = spec("x", "time", "batch", 80)
    assert bound([frames], None, {"x": (9, 2, 80)}) == {"x": (9, 2, 80)}
    assert bound([frames])["x"][1] == 1


def test_a_given_shape_that_makes_another_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="batch 1 was asked for, but it is 2 with the given shapes"):
        bound([IMAGE], 1, {"x": (2, 3, 32, 32)})


def test_two_sizes_under_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="axis 1 of 'mask' the size 17, but axis 'seq' the size 16 elsewhere"):
        bound([IDS, MASK], 1, {"ids": (1, 16), "mask": (1, 17)})


def test_batch_without_an_axis_for_it_is_refused() -> None:
    with pytest.raises(UsageError, match="no input with a batch axis"):
        bound([spec("scale")], batch=2)
    assert batch_of([spec("scale")], bound([spec("scale")], batch=1)) == 1


def test_a_size_that_is_a_sum_of_others_follows_from_these() -> None:
    inputs = [IDS, spec("mask", "batch", "past + seq", dtype=INT), spec("cache", "batch", 4, "past", 8)]
    assert bound(inputs, None, {"ids": (2, 5), "cache": (2, 4, 7, 8)})["mask"] == (2, 12)


# Marks of open axes.


@pytest.mark.parametrize("mark", ["?", "None", "unk__", "-1", -1])
def test_axes_with_the_same_mark_have_sizes_of_their_own(mark: Any) -> None:
    """Paddle's exporter calls every open axis '?'."""
    image = spec("x", mark, 3, mark, mark)
    assert bound([image], None, {"x": (2, 3, 48, 320)}) == {"x": (2, 3, 48, 320)}


def test_axes_of_one_symbol_have_one_size_in_an_image_too() -> None:
    with pytest.raises(UsageError, match="axis 3 of 'x' the size 5, but axis 'side' the size 4 elsewhere"):
        bound([spec("x", "N", 3, "side", "side")], None, {"x": (1, 3, 4, 5)})


# One rule for all verbs.

_EXTENTS: list[Any] = [1, 3, 0, -1, None, "?", "N", "batch", "S"]
_GRID = [
    {"x": [first, second], "y": [other, 3]}
    for first, second, other in itertools.product(_EXTENTS, _EXTENTS, [2, "N", None])
] + [
    {"x": ["N", 3, "H", "W"]}, {"x": ["?", 3, "?", "?"]}, {"x": ["N", "C", "H", "W"]}, {"x": None}, {"x": []},
    {"x": ["S"], "y": ["N", "S"]}, {"x": ["S", "batch", 4]}, {"x": [2, "batch", 4], "y": ["batch", 3]},
    {"x": [1, 12, 0, 64]},
]  # fmt: skip


def outcome(found: Any) -> Any:
    try:
        return found().shapes
    except SiftError as error:
        return type(error), str(error)


@pytest.mark.parametrize("given", [{}, {"x": [2, 3]}, {"y": [5, 3]}], ids=str)
def test_what_is_analysed_and_what_is_run_have_the_same_shapes_or_the_same_error(given: dict[str, list[int]]) -> None:
    for declared in _GRID:
        model = with_inputs(**declared)
        analysed = outcome(lambda: analyze(model, given).inputs)  # noqa: B023
        fed = outcome(lambda: fitting_inputs(model, given, inputs=graph_inputs(model.origin)))  # noqa: B023
        assert fed == analysed, declared


def test_inspect_and_benchmark_say_the_same_of_a_shape_that_is_missing(tmp_path: Path) -> None:
    for declared in ({"x": ["N", "width"]}, {"x": None}, {"x": ["N", "C", "H", "W"]}):
        path = str(tmp_path / "model.onnx")
        with_inputs(**declared).save(path, force=True)
        said = [CliRunner().invoke(main, [verb, path]).stderr for verb in ("inspect", "benchmark", "check", "profile")]
        assert {text.replace(f"{path}: ", "") for text in said} == {said[0]}
        assert re.match("Error: .* --input-shapes x:", said[0])
