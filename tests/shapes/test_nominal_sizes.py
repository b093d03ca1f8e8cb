"""Sizes that are assumed for open axes: which axes get one, and that a size the model does not take gives way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nets import Net

from sift_onnx.analysis.cost import inspect
from sift_onnx.analysis.graph_analysis import analyze, fitting_inputs
from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.passes import Wide
from sift_onnx.shapes.input_binding import bind
from sift_onnx.shapes.tensor_specs import TensorSpec

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)


@pytest.fixture
def net() -> Net:
    """An empty graph."""
    return Net()


def assumed(**declared: tuple[Any, tuple[Any, ...]]) -> dict[str, tuple[int, ...]]:
    return bind([TensorSpec(name, np.dtype(dtype), shape) for name, (dtype, shape) in declared.items()]).shapes


@pytest.mark.parametrize(
    ("dtype", "declared", "expected"),
    [
        (FLOAT, ("N", 3, "H", "W"), (1, 3, 224, 224)),
        (FLOAT, ("?", 3, "?", "?"), (1, 3, 224, 224)),
        (np.uint8, ("N", "H", "W", 3), (1, 224, 224, 3)),
        (FLOAT, (1, 3, 32, "W"), (1, 3, 32, 224)),
        (FLOAT, (3, "H", "W"), (3, 224, 224)),
        (FLOAT, ("N", 3, "T", "H", "W"), (1, 3, 16, 112, 112)),
        (FLOAT, ("N", "T", 3, "H", "W"), (1, 16, 3, 112, 112)),
        (FLOAT, ("N", "T", "H", "W", 3), (1, 16, 112, 112, 3)),
        (INT, ("N", "S"), (1, 128)),
        (np.int32, (-1, -1), (1, 128)),
        (np.bool_, ("N", 1, "S"), (1, 1, 128)),
        (FLOAT, ("N", "S", 80), (1, 128, 80)),
        (FLOAT, ("N", 80, "T"), (1, 80, 128)),
        (FLOAT, ("T", "batch", 80), (128, 1, 80)),
    ],
)
def test_an_axis_that_no_weight_depends_on_gets_a_usual_size(dtype: Any, declared: Any, expected: Any) -> None:
    assert assumed(x=(dtype, declared)) == {"x": expected}


@pytest.mark.parametrize(
    ("declared", "axis"),
    [
        (("N", "F"), 1),
        (("N", "C", "H", "W"), 1),
        (("N", "C", 32, 32), 1),
        (("N", "S", "F"), 1),
        (("N", "C", "T", "H", "W"), 1),
        ((1, 2, 3, 4, 5, "X"), 5),
    ],
)
def test_an_axis_that_may_be_the_width_of_a_layer_has_to_be_given(declared: Any, axis: int) -> None:
    with pytest.raises(UsageError, match=rf"axis {axis} of input 'x' is dynamic .* `input_shapes=\{{'x': \(1, "):
        assumed(x=(FLOAT, declared))


def test_beside_token_ids_open_axes_are_lengths() -> None:
    shapes = assumed(
        cache=(FLOAT, ("batch", 12, "past", 64)),
        bias=(FLOAT, ("batch", 1, "seq", "seq")),
        pixels=(FLOAT, ("batch", 3, "H", "W")),
        ids=(INT, ("batch", "seq")),
        mask=(INT, ("batch", "past + seq")),
    )
    assert shapes == {
        "cache": (1, 12, 128, 64), "bias": (1, 1, 128, 128), "pixels": (1, 3, 224, 224), "ids": (1, 128),
        "mask": (1, 256),
    }  # fmt: skip


def test_a_mask_beside_a_cache_is_as_long_as_cache_and_new_tokens() -> None:
    found = assumed(
        input_ids=(INT, ("b", "s")), attention_mask=(INT, ("b", "t")), past=(FLOAT, ("b", 2, "p", 8)),
        positions=(INT, ("b", "s")),
    )  # fmt: skip
    assert found == {
        "input_ids": (1, 128), "attention_mask": (1, 256), "past": (1, 2, 128, 8), "positions": (1, 128)
    }  # fmt: skip


def test_one_line_says_what_was_assumed_and_how_to_say_otherwise() -> None:
    specs = [TensorSpec("x", FLOAT, ("N", 3, "height", "?")), TensorSpec("y", FLOAT, ("N", 1, "height", 8))]
    assert bind(specs).said == (
        "axes 2 and 3 of input 'x' are open ('height', without a name): 224 x 224 is assumed; "
        "`input_shapes={'x': (1, 3, N, N)}` says otherwise",
    )
    assert bind(specs, {"x": (1, 3, 5, 6)}).said == ()
    (line,) = bind(specs, {"y": (1, 1, 5, 8)}).said
    assert line.startswith(
        "axis 3 of input 'x' is open (without a name): 224 is assumed; `input_shapes={'x': (1, 3, 5, N)}` "
    )


def test_many_inputs_are_not_listed_one_by_one() -> None:
    specs = [TensorSpec("ids", INT, ("N", "S")), *(TensorSpec(f"c{i}", FLOAT, ("N", 4, "?", 8)) for i in range(24))]
    said = bind(specs).said
    assert len(said) == 4
    assert said[-1] == "so are axes of 22 more inputs"


def images(net: Net, flat: int = 0) -> Model:
    """Convolutions over an image of open size, and behind them a layer that takes ``flat`` features."""
    x = net.input("x", 1, 3, 32, 32, declared=["N", 3, "H", "W"])
    h = net.conv(x, 3, 8, 3, name="stem", strides=[2, 2])
    h = net.conv(net.op("Relu", h), 8, 8, 3, name="body")
    h = net.conv(net.op("Relu", h), 8, 8, 3, name="body2")
    if flat:
        h = net.dense(net.op("Reshape", h, net.constant([-1, flat])), flat, 4, name="head")
    else:
        h = net.conv(net.op("Relu", h), 8, 2, name="head")
    net.output(h)
    model = net.model()
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for symbol in ["N", 4] if flat else ["N", 2, "h", "w"]:
        dim = model.graph.output[0].type.tensor_type.shape.dim.add()
        if isinstance(symbol, int):
            dim.dim_value = symbol
        else:
            dim.dim_param = symbol
    return Model.load(model)


def test_the_report_names_the_size_that_it_holds_for(net: Net) -> None:
    model = images(net)
    report = inspect(model)
    document = report.to_dict()
    assert document["nominal"] == {"x": [1, 3, 224, 224]}
    assert document["totals"]["macs"] == inspect(model, {"x": (1, 3, 224, 224)}).to_dict()["totals"]["macs"]
    assert "nominal" not in inspect(model, {"x": (1, 3, 224, 224)}).to_dict()


def test_a_size_that_the_layers_do_not_take_gives_way_to_the_next(net: Net) -> None:
    """224 pixels fill 49 rows of the last layer, 256 no whole number of them: only its own size gives one."""
    model = images(net, flat=8 * 16 * 16)
    assert fitting_inputs(model).shapes == {"x": (1, 3, 32, 32)}
    assert analyze(model).inputs.shapes == {"x": (1, 3, 32, 32)}
    result = Wide(0.75)(model)
    assert result.report["nominal"] == {"x": [1, 3, 32, 32]}


def test_where_no_usual_size_fits_the_option_is_named(net: Net) -> None:
    with pytest.raises(
        UsageError, match=r"reshape.* with all 8 sizes .* 224 x 224 .* `input_shapes=\{'x': \(1, 3, N, N\)\}` "
    ):
        analyze(images(net, flat=8 * 11 * 11))
    assert analyze(images(Net(), flat=8 * 11 * 11), {"x": (1, 3, 22, 22)}).inputs.assumed == {}


def test_a_model_that_contradicts_itself_at_any_size_says_so(net: Net) -> None:
    h = net.op("MatMul", net.input("ids", 1, 5, 3, declared=["N", "S", 3]), net.weight(4, 2), name="misfit")
    net.output(net.op("Relu", h), 1, 5, 2)
    with pytest.raises(UsageError, match=r"misfit.* `input_shapes=\{'ids': \(1, N, 3\)\}` "):
        analyze(Model.load(net.model()))


def test_a_transform_of_an_image_of_open_size_keeps_it_open(net: Net) -> None:
    result = Wide(0.75)(images(net))
    assert result.report["nominal"] == {"x": [1, 3, 224, 224]}
    assert result.report["totals"]["weight_macs_ratio"] == pytest.approx(1, abs=1e-3)
    written = result.model.to_proto().graph
    assert [d.dim_param or d.dim_value for d in written.input[0].type.tensor_type.shape.dim] == ["N", 3, "H", "W"]
    assert not Wide(0.75)(result.model).changed
