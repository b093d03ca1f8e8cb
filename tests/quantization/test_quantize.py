"""Quantized models keep masks, patterns and accuracy, whatever the format."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from exact_onnxruntime import exact_onnxruntime
from onnx import TensorProto, helper, numpy_helper

import sift_onnx
from sift_onnx.errors import MaskWarning, SiftError, UnsupportedError, UsageError
from sift_onnx.passes import Prune
from sift_onnx.quantization import quantize
from sift_onnx.quantization.quantize import quantize_model
from sift_onnx.weights.quads import live_quads

RNG = np.random.default_rng(0)
X = RNG.standard_normal((32, 4, 6, 6)).astype(np.float32)


def network() -> onnx.ModelProto:
    """A stem, a normalized convolution, a product with columns as outputs and a classifier."""
    weights: dict[str, Any] = {
        "stem.weight": RNG.standard_normal((16, 4, 3, 3)) / 6,
        "body.weight": RNG.standard_normal((16, 16, 3, 3)) / 12,
        "inner.weight": RNG.standard_normal((16, 24)) / 4,
        "head.weight": RNG.standard_normal((5, 24)) / 5,
        "scale": RNG.uniform(0.5, 2, 16),
        "shift": RNG.standard_normal(16),
        "mean": RNG.standard_normal(16) / 9,
        "var": RNG.uniform(0.5, 2, 16),
    }
    nodes = [
        helper.make_node("Conv", ["x", "stem.weight"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "body.weight"], ["c"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "inner.weight"], ["h"]),
        helper.make_node("Relu", ["h"], ["i"]),
        helper.make_node("Gemm", ["i", "head.weight"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def scores(model: onnx.ModelProto) -> np.ndarray:
    (found,) = exact_onnxruntime(model).run({"x": X}).values()
    return found


NET = network()
TARGET = scores(NET).argmax(1)
DATA = [(X[:20], TARGET[:20]), (X[20:], TARGET[20:])]
FORMS: dict[str, dict[str, Any]] = {
    "qdq": {},
    "qdq per tensor": {"per_channel": False},
    "qoperator, entropy": {"format": "qoperator", "calibration": "entropy"},
    "dynamic": {"dynamic": True},
}
PATTERNS = ("unstructured", "2:4", "block:1x4")


@pytest.fixture(scope="module")
def pruned() -> dict[str, Any]:
    return {pattern: Prune("0.5", pattern=pattern)(sift_onnx.load(NET)).model for pattern in PATTERNS}


@pytest.mark.parametrize(
    ("pattern", "form"),
    # A quantizer that keeps zeros keeps them in any pattern.
    [*(("block:1x4", form) for form in FORMS), ("unstructured", "qdq"), ("2:4", "qdq"), ("2:4", "qoperator, entropy")],
)
def test_masks_survive_bit_for_bit(pruned: dict[str, Any], pattern: str, form: str) -> None:
    source = pruned[pattern]
    found = quantize_model(source, DATA, measure=False, **FORMS[form])
    proto = found.model.to_proto()
    onnx.checker.check_model(proto)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    before, after = sift_onnx.masks(source), sift_onnx.masks(proto)
    assert set(before) == {"body.weight", "inner.weight"}
    assert found.report.masks == 2
    for name, mask in before.items():
        assert np.array_equal(after[f"{name}_quantized"], mask)
        weight = stored[f"{name}_quantized"]
        assert weight.dtype == np.int8
        assert not weight[~mask].any()
        # Input features last: of a convolution its channels, of a product its rows.
        quads = np.moveaxis(mask, 1, -1).reshape(-1, 4) if mask.ndim == 4 else mask.T.reshape(-1, 4)
        if pattern == "2:4":
            assert quads.sum(1).max() <= 2
        if pattern == "block:1x4":
            assert set(quads.sum(1)) == {0, 4}
    bound = 0.1 * np.abs(scores(source.to_proto())).max()
    np.testing.assert_allclose(scores(proto), scores(source.to_proto()), atol=bound)


def test_the_report_counts_live_quads(pruned: dict[str, Any]) -> None:
    report = quantize_model(pruned["block:1x4"], DATA, measure=False).report
    layers = {layer.name: layer for layer in report.layers}
    body, inner = layers["body.weight_quantized"], layers["inner.weight_quantized"]
    assert (body.live_quads, inner.live_quads) == (0.5, 0.5)
    assert 0.5 < report.totals.live_quads < 1  # of the dense ones, all
    assert (report.samples, report.calibration) == (32, "minmax")
    loose = quantize_model(pruned["unstructured"], DATA, measure=False).report.layers
    live = next(layer.live_quads for layer in loose if layer.name == "body.weight_quantized")
    mask = sift_onnx.masks(pruned["unstructured"])["body.weight"].reshape(16, 16, 9)
    # But for those whose weights were all rounded to zero.
    assert 0 <= live_quads(mask) / (16 * 4 * 9) - (live or 0) <= 0.03


def test_accuracy_before_and_after(pruned: dict[str, Any]) -> None:
    report = quantize_model(pruned["2:4"], DATA, backend="onnxruntime", threads=1, label="q").report
    assert report.accuracy is not None
    after, before = report.accuracy.runs
    assert (after.model, before.baseline) == ("q", True)
    expected = (scores(pruned["2:4"].to_proto()).argmax(1) == TARGET).mean()
    assert before.metrics["top1"] == pytest.approx(expected)
    assert abs(after.metrics["top1"] - before.metrics["top1"]) < 0.2
    without = quantize_model(NET, [X], backend="onnxruntime", threads=1).report
    assert without.accuracy is None
    assert without.warnings[0].startswith("accuracy is not measured: the model's first output is [32, 5]")


def test_a_quantized_file_is_read_without_a_warning(pruned: dict[str, Any], tmp_path: Path) -> None:
    quantize_model(pruned["unstructured"], DATA, measure=False).model.save(tmp_path / "q.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error", MaskWarning)
        masks = sift_onnx.masks(tmp_path / "q.onnx")
    assert {name: int(mask.sum()) for name, mask in masks.items()} == {
        f"{name}_quantized": int(mask.sum()) for name, mask in sift_onnx.masks(pruned["unstructured"]).items()
    }


def test_activations_of_signed_bytes_have_no_zero_point() -> None:
    proto = quantize_model(NET, DATA, measure=False, activations="int8").model.to_proto()
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    points = [stored[node.input[2]] for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    assert points
    assert all(point.dtype == np.int8 and not point.any() for point in points)
    np.testing.assert_allclose(scores(proto), scores(NET), atol=0.1 * np.abs(scores(NET)).max())
    with pytest.raises(UsageError, match="`dynamic=True` makes uint8 of activations; `activations='int8'` needs"):
        quantize_model(NET, dynamic=True, activations="int8")
    with pytest.raises(UsageError, match="finds ranges of activations at run time; `calibration='entropy'` needs"):
        quantize_model(NET, dynamic=True, calibration="entropy")
    with pytest.raises(UsageError, match="makes ConvInteger and MatMulInteger; `format='qoperator'` needs"):
        quantize_model(NET, dynamic=True, format="qoperator")


def test_layers_that_stay_in_floating_point() -> None:
    found = quantize_model(NET, DATA, measure=False, keep_float=["stem.*", "head.weight"])
    types = {layer.name.removesuffix("_quantized"): layer.type for layer in found.report.layers}
    assert types == {"stem.weight": "float32", "body.weight": "int8", "inner.weight": "int8", "head.weight": "float32"}
    with pytest.raises(UsageError, match=r"`keep_float='foot\*'` matches no weight"):
        quantize_model(NET, DATA, keep_float=["foot*"])


def test_what_cannot_be_quantized_says_so() -> None:
    with pytest.raises(UsageError, match="static quantization needs `data`"):
        quantize_model(NET)
    with pytest.raises(UsageError, match="has no examples"):
        quantize_model(NET, [])
    with pytest.raises(UnsupportedError, match="quantized already"):
        quantize_model(quantize_model(NET, DATA, measure=False).model, DATA)
    with pytest.raises(UsageError, match="calibration is 'max'; choose minmax, entropy or percentile"):
        quantize_model(NET, DATA, calibration="max")  # type: ignore[arg-type]


def product(*nodes: onnx.NodeProto, dtype: Any = np.float32, opset: int = 17, **weights: Any) -> onnx.ModelProto:
    """Products of ``x``, [4, 4], with 4 x 4 weights."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes or [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", kind, [4, 4])],
        [helper.make_tensor_value_info("y", kind, [4, 4])],
        [numpy_helper.from_array(value, name) for name, value in (weights or {"w": np.eye(4, dtype=dtype)}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("form", ["dynamic", "qdq", "qoperator"])
@pytest.mark.parametrize(
    ("dtype", "name"), [(np.float16, "float16"), (ml_dtypes.bfloat16, "bfloat16"), (np.float64, "double")]
)
def test_weights_of_other_types_are_named(dtype: Any, name: str, form: Any) -> None:
    proto = product(dtype=dtype)
    how: dict[str, Any] = {"dynamic": True} if form == "dynamic" else {"data": DATA, "format": form}
    with pytest.raises(UnsupportedError, match=rf"weights of the model are {name} \('w', ...\).*export .* in float32"):
        quantize_model(proto, measure=False, **how)


def test_half_precision_is_quantized_where_onnx_allows_it() -> None:
    found = quantize_model(product(dtype=np.float16, opset=19), [(np.eye(4, dtype=np.float16),)], measure=False)
    assert [layer.type for layer in found.report.layers] == ["int8"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.full((4, 4), np.nan, np.float32), "'w' holds values that are infinite or NaN"),
        (np.full((4, 4), np.inf, np.float32), "'w' holds values that are infinite or NaN"),
        (np.ones((4, 0), np.float32), r"'w' has no values \(4x0\)"),
    ],
)
@pytest.mark.parametrize("dynamic", [True, False])
def test_weights_without_a_scale_are_named(value: Any, message: str, dynamic: bool) -> None:
    nodes = helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "v"], ["y"])
    proto = product(*nodes, w=value, v=np.eye(value.shape[1], 4, dtype=np.float32))
    with pytest.raises(UnsupportedError, match=message):
        quantize_model(proto, None if dynamic else [(np.eye(4, dtype=np.float32),)], dynamic=dynamic, measure=False)


def test_a_failure_of_the_quantizer_is_an_unsupported_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise AssertionError("scale issue")

    monkeypatch.setattr(quantize, "quantize_dynamic", failing)
    with pytest.raises(UnsupportedError, match="onnxruntime's quantizer fails: AssertionError: scale issue"):
        quantize_model(NET, dynamic=True)
    proto = product()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    with pytest.raises(UnsupportedError, match="input 'x' is declared as 0,4: give open axes names"):
        quantize_model(proto, [(np.eye(4, dtype=np.float32),)], measure=False)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (helper.make_node("MatMul", ["w", "x"], ["y"]), "stored weights that are the second input"),
        (helper.make_node("Gemm", ["x", "w"], ["y"], alpha=0.5), "a Gemm with alpha 0.5"),
        (helper.make_node("Einsum", ["x", "w"], ["y"], equation="ij,jk->ik"), "does not quantize Einsum here"),
    ],
)
def test_layers_that_are_left_say_why(node: onnx.NodeProto, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"nothing to quantize: 'w': .*{reason}"):
        quantize_model(product(node, w=np.eye(4, dtype=np.float32)), dynamic=True)


def test_the_dynamic_quantizer_leaves_a_gemm_in_floating_point() -> None:
    with pytest.raises(UnsupportedError, match=r"'stem.weight', .* and 1 more: kept in floating point by `keep_float`"):
        quantize_model(NET, dynamic=True, keep_float=["*"])
    found = quantize_model(NET, dynamic=True, keep_float=["head.weight"])
    assert [layer.type for layer in found.report.layers] == ["int8", "int8", "int8", "float32"]


def test_layers_of_dynamo_exports_have_no_bias_of_zeros(capfd: pytest.CaptureFixture[str]) -> None:
    # The normalization after such a layer is folded, and onnxruntime's quantizer takes no bias that nodes make.
    proto = onnx.ModelProto()
    proto.CopyFrom(NET)
    made = [
        helper.make_node("Shape", ["body.weight"], ["sizes"], end=1),
        helper.make_node("CastLike", ["zero", "b"], ["typed"]),
        helper.make_node("Expand", ["typed", "sizes"], ["bias"]),
    ]
    nodes = [*proto.graph.node]
    (body,) = (node for node in nodes if "body.weight" in node.input)
    body.input.append("bias")
    place = nodes.index(body)
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes[:place], *made, *nodes[place:]])
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "zero"))
    np.testing.assert_allclose(scores(proto), scores(NET), atol=1e-6)
    for form in ("qdq", "qoperator, entropy"):
        found = quantize_model(proto, DATA, measure=False, **FORMS[form])
        kinds = {node.op_type for node in found.model.to_proto().graph.node}
        assert not kinds & {"BatchNormalization", "CastLike", "Expand", "Shape"}
    assert capfd.readouterr().out == ""


def test_a_model_that_is_given_stays_as_it_is() -> None:
    model = sift_onnx.load(NET)
    before = model.to_proto().SerializeToString()
    quantize_model(model, DATA, measure=False)
    assert model.to_proto().SerializeToString() == before


def test_layers_that_have_no_size_without_the_shape_of_an_input() -> None:
    weights = {"conv.weight": (16, 4, 3, 3), "head.weight": (16 * 11 * 13, 5)}
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["a"], pads=[1] * 4),
        helper.make_node("Reshape", ["a", "target"], ["b"]),
        helper.make_node("MatMul", ["b", "head.weight"], ["y"]),
    ]
    stored = [numpy_helper.from_array(RNG.standard_normal(s).astype(np.float32), name) for name, s in weights.items()]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        [*stored, numpy_helper.from_array(np.array([-1, 16 * 11 * 13]), "target")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = [(RNG.standard_normal((8, 4, 11, 13)).astype(np.float32),)]
    with pytest.raises(SiftError, match="`input_shapes="):
        quantize_model(proto, data, measure=False)
    found = quantize_model(proto, data, measure=False, input_shapes={"x": (1, 4, 11, 13)})
    assert [layer.type for layer in found.report.layers] == ["int8", "int8"]
