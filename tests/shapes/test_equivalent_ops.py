"""Operators that ONNX infers no shapes for, held against what onnxruntime makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from decoder_nets import genai
from nets import MICROSOFT, Array, Net, run
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.model import Model
from sift_onnx.operators.domains import opset_versions
from sift_onnx.shapes.equivalent_ops import _EQUIVALENTS, equivalent_nodes, with_equivalent_nodes
from sift_onnx.shapes.inference import infer_proto, infer_shapes
from sift_onnx.shapes.input_binding import bind
from sift_onnx.shapes.node_inference import infer_node
from sift_onnx.shapes.tensor_specs import model_inputs

ML = "ai.onnx.ml"
# onnxruntime runs these on a GPU only.
NOT_RUN = {"BiasAdd", "BiasSoftmax"}


def single(
    domain: str, kind: str, x: Array, *parameters: Array, outputs: str = "y", standard: int = 21, **attributes: Any
) -> Any:
    """A model of one node whose first axis is dynamic, and what to feed it with; ``standard`` is an opset."""
    stored = [numpy_helper.from_array(np.asarray(value), f"p{i}") for i, value in enumerate(parameters)]
    names = ["x", *(tensor.name for tensor in stored)]
    node = helper.make_node(kind, names, outputs.split(","), name="node", domain=domain, **attributes)
    declared = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["n", *x.shape[1:]])
    made = [helper.make_empty_tensor_value_info(name) for name in outputs.split(",") if name]
    graph = helper.make_graph([node], "single", [declared], made, stored)
    opsets = (
        [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)] if domain else [helper.make_opsetid("", standard)]
    )
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if domain else 10), {"x": x}


TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)
TOKENS = np.ones((2, 5, 8), np.float32)
ONES = np.ones(8, np.float32)
BYTES = np.ones((2, 8), np.int8)
SCALES = np.float32(1), np.int8(0), np.float32(0.1), np.int8(0)
WEIGHT = np.ones((8, 6), np.float32)
IMAGE = np.ones((2, 3, 6, 5), np.int8)
POINT = np.float32(0.5), np.int8(1)


def single_joined() -> Any:
    """QLinearConcat, whose activations are not its first inputs."""
    model, feeds = single(MICROSOFT, "QLinearConcat", BYTES, *POINT, BYTES, *POINT, axis=1)
    scale, zero, other = (tensor.name for tensor in model.graph.initializer[:3])
    model.graph.node[0].input[:] = [scale, zero, "x", scale, zero, "x", scale, zero]
    assert other not in model.graph.node[0].input
    return model, feeds


CASES: dict[str, Any] = {
    "group norm": single("", "GroupNormalization", np.ones((2, 8, 3, 3), np.float32), ONES, ONES, num_groups=4),
    "layer norm of onnxruntime": single("", "LayerNormalization", TOKENS, ONES, ONES, standard=14),
    "rms norm of onnxruntime": single("", "SimplifiedLayerNormalization", TOKENS, ONES, standard=14),
    "rms norm of onnxruntime, opset 21": single("", "SimplifiedLayerNormalization", TOKENS, ONES),
    "scaler": single(ML, "Scaler", TABLE, offset=[0.0, 1.0, 2.0, 3.0], scale=[1.0, 2.0, 3.0, 4.0]),
    "scaler of integers": single(ML, "Scaler", TABLE.astype(np.int64), offset=[1.0], scale=[2.0]),
    "imputer": single(ML, "Imputer", TABLE, imputed_value_floats=[1.0], replaced_value_float=2.0),
    "imputer of integers": single(
        ML, "Imputer", TABLE.astype(np.int64), imputed_value_int64s=[1, 2, 3, 4], replaced_value_int64=2
    ),
    "normalizer": single(ML, "Normalizer", TABLE, norm="L2"),
    "normalizer of integers": single(ML, "Normalizer", TABLE.astype(np.int64), norm="MAX"),
    "binarizer": single(ML, "Binarizer", TABLE, threshold=3.0),
    "gelu": single(MICROSOFT, "Gelu", TOKENS),
    "quick gelu": single(MICROSOFT, "QuickGelu", TOKENS),
    "fast gelu": single(MICROSOFT, "FastGelu", TOKENS, ONES),
    "bias gelu": single(MICROSOFT, "BiasGelu", TOKENS, ONES),
    "skip layer norm": single(MICROSOFT, "SkipLayerNormalization", TOKENS, TOKENS, ONES, ONES, outputs="y,,,sum"),
    "skip rms norm": single(MICROSOFT, "SkipSimplifiedLayerNormalization", TOKENS, TOKENS, ONES, outputs="y,,,sum"),
    "rotary embedding": single(
        MICROSOFT, "RotaryEmbedding", TOKENS, np.zeros((2, 5), np.int64), np.ones((5, 2), np.float32),
        np.zeros((5, 2), np.float32), num_heads=2,
    ),
    "attention": single(MICROSOFT, "Attention", TOKENS, np.ones((8, 18), np.float32), num_heads=2),
    "attention to values of another size": single(
        MICROSOFT, "Attention", TOKENS, np.ones((8, 18), np.float32), num_heads=2, qkv_hidden_sizes=[4, 4, 10]
    ),
    "attention of heads": single(
        MICROSOFT, "MultiHeadAttention", TOKENS, np.ones((2, 3, 8), np.float32), np.ones((2, 3, 6), np.float32),
        num_heads=2,
    ),
    "attention to heads that were divided": single(
        MICROSOFT, "MultiHeadAttention", TOKENS, *np.ones((2, 2, 2, 3, 4), np.float32), num_heads=2
    ),
    "embedding": single(
        MICROSOFT, "EmbedLayerNormalization", np.ones((2, 5), np.int32), np.zeros((2, 5), np.int32),
        np.ones((9, 8), np.float32), np.ones((5, 8), np.float32), np.ones((2, 8), np.float32), ONES, ONES,
        outputs="y,lengths,sum",
    ),
    "fused conv": single(
        MICROSOFT, "FusedConv", np.ones((2, 8, 9, 9), np.float32), np.ones((6, 4, 3, 3), np.float32),
        np.ones(6, np.float32), group=2, strides=[2, 2], activation="Relu",
    ),
    "fused gemm": single(
        MICROSOFT, "FusedGemm", TOKENS[0], WEIGHT.T.copy(), WEIGHT[0], transB=1, activation="Relu"
    ),
    "fused matmul": single(MICROSOFT, "FusedMatMul", TOKENS, WEIGHT, alpha=2.0),
    "leaky relu of bytes": single(MICROSOFT, "QLinearLeakyRelu", BYTES, *SCALES, alpha=0.1),
    "sigmoid of bytes": single(MICROSOFT, "QLinearSigmoid", BYTES, *SCALES),
    "sum of bytes": single(MICROSOFT, "QLinearAdd", BYTES, *POINT, BYTES[0], *POINT, *POINT),
    "product of bytes": single(MICROSOFT, "QLinearMul", BYTES, *POINT, BYTES[:1], *POINT, *POINT),
    "mean of bytes": single(MICROSOFT, "QLinearGlobalAveragePool", IMAGE, *POINT, *POINT),
    "means of windows of bytes": single(
        MICROSOFT, "QLinearAveragePool", IMAGE, *POINT, *POINT, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 0]
    ),
    "matrix product of bytes": single(
        MICROSOFT, "QGemm", BYTES, *POINT, np.ones((6, 8), np.int8), *POINT, np.zeros(6, np.int32), *POINT, transB=1
    ),
    "matrix product of bytes to floats": single(
        MICROSOFT, "QGemm", BYTES, *POINT, np.ones((8, 6), np.int8), *POINT, np.zeros(6, np.int32)
    ),
    "bytes joined": single_joined(),
    "product quantized in the run": single(
        MICROSOFT, "DynamicQuantizeMatMul", TOKENS, np.ones((8, 6), np.int8), *POINT, WEIGHT[0]
    ),
    "product of integers to floats": single(
        MICROSOFT, "MatMulIntegerToFloat", BYTES, np.ones((8, 6), np.int8), *POINT[:1], *POINT[:1], *POINT[1:],
        *POINT[1:], WEIGHT[0],
    ),
    "softmax of bytes": single(MICROSOFT, "QLinearSoftmax", BYTES, *SCALES, opset=13, axis=-1),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_stand_in_makes_what_onnxruntime_makes(case: str) -> None:
    model, feeds = CASES[case]
    made = run(model, feeds)
    inferred = infer_proto(model, check_type=True, strict_mode=True)
    for info in inferred.graph.output:
        kind, array = info.type.tensor_type, made[info.name]
        assert [dim.dim_param or dim.dim_value for dim in kind.shape.dim] == ["n", *array.shape[1:]]
        assert helper.tensor_dtype_to_np_dtype(kind.elem_type) == array.dtype


@pytest.mark.parametrize("case", CASES)
def test_the_stand_in_of_one_node_makes_what_onnxruntime_makes(case: str) -> None:
    """Where inference of the whole graph does not know a size, each node is inferred by itself."""
    model, feeds = CASES[case]
    made = run(model, feeds)
    loaded = Model.load(model)
    (node,) = loaded.graph.nodes
    opsets = opset_versions(model.opset_import)
    given = feeds | {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    shapes = {name: array.shape for name, array in given.items()}
    found = infer_node(node, opsets, shapes, {})
    assert found == {tensor.name: made[tensor.name].shape for tensor in node.outputs if tensor.name}
    assert not any(None not in shape for shape in infer_node(node, opsets, {}, {}).values())


def test_every_stand_in_is_held_against_onnxruntime() -> None:
    assert {model.graph.node[0].op_type for model, _ in CASES.values()} == {
        op for _, op, *_ in _EQUIVALENTS.items()
    } - NOT_RUN - {"GroupQueryAttention"}  # below


def test_a_cache_grows_by_the_new_tokens() -> None:
    net = genai()
    model = net.model()
    # onnxruntime takes several new tokens behind a past of one sequence alone.
    feeds = {name: feed[:1] for name, feed in net.feeds.items()}
    found = infer_shapes(Model.load(model), {name: feed.shape for name, feed in feeds.items()})
    made = run(model, feeds)
    attentions = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    assert attentions
    for node in attentions:
        assert [found[name] for name in node.output] == [made[name].shape for name in node.output]


def test_onnx_alone_infers_nothing_of_most_of_them() -> None:
    """Else there would be no need for equivalents; Binarizer has an inference of its own."""
    inferred = set()
    for model, _ in CASES.values():
        output = onnx.shape_inference.infer_shapes(model).graph.output[0]
        if output.type.tensor_type.HasField("shape"):
            inferred.add(model.graph.node[0].op_type)
    assert inferred <= {"Binarizer"}


@pytest.mark.parametrize(
    ("kind", "outputs", "attributes"),
    [
        ("SkipLayerNormalization", "y,mean", {}),
        ("EmbedLayerNormalization", "y", {}),
        ("MultiHeadAttention", "y", {"num_heads": 2}),
        ("FusedMatMul", "y", {"transB": 1}),
        ("Attention", "y,present", {"num_heads": 2}),
    ],
)
def test_what_no_standard_operator_makes_has_no_equivalent(kind: str, outputs: str, attributes: dict[str, Any]) -> None:
    node = helper.make_node(kind, ["x", "w"], outputs.split(","), domain=MICROSOFT, **attributes)
    assert equivalent_nodes(node, 17) == []


@pytest.mark.parametrize("kind", ["Attention", "MultiHeadAttention"])
def test_sums_have_their_axes_as_an_operand_from_opset_13_on(kind: str) -> None:
    node = helper.make_node(kind, ["x", "w", "v"], ["y"], domain=MICROSOFT, num_heads=2)
    assert equivalent_nodes(node, 12) == []
    assert equivalent_nodes(node, 13)


def test_types_are_named_by_numbers_from_opset_6_on() -> None:
    node = CASES["scaler"][0].graph.node[0]
    assert equivalent_nodes(node, 5) == []
    assert equivalent_nodes(node, 6)


def test_layer_normalization_is_standard_from_opset_17_on() -> None:
    node = CASES["layer norm of onnxruntime"][0].graph.node[0]
    assert equivalent_nodes(node, 16)
    assert equivalent_nodes(node, 17) == []


def test_a_model_without_foreign_operators_is_not_copied() -> None:
    net = Net()
    net.tokens_end(net.tokens(8), 8)
    model = net.model()
    assert with_equivalent_nodes(model) is model


def test_a_model_keeps_its_nodes() -> None:
    model, _ = CASES["scaler"]
    before = model.SerializeToString()
    infer_proto(model)
    assert model.SerializeToString() == before


def test_a_model_of_foreign_operators_alone_imports_no_standard_ones() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(CASES["scaler"][0])
    del model.opset_import[0]
    assert infer_proto(model).graph.output[0].type.tensor_type.shape.dim[1].dim_value == 4


def test_a_function_of_the_model_is_nobodys_operator() -> None:
    """torch exports a Gelu of its own, which may do anything."""
    net = Net()
    body = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
    opset = helper.make_opsetid("", 20)
    net.functions.append(helper.make_function(MICROSOFT, "Gelu", ["x"], ["y"], body, [opset]))
    net.output(net.op("Gelu", net.input("x", 2, 3), name="y", domain=MICROSOFT))
    assert infer_shapes(Model.load(net.model()), {"x": (2, 3)})["y"] == ()


def test_a_subgraph_has_stand_ins_too() -> None:
    net = Net()
    x = net.input("x", 2, 3)
    inner = helper.make_node("Scaler", [x], ["inner"], domain=ML, offset=[0.0], scale=[1.0])
    made = [helper.make_empty_tensor_value_info("inner")]
    branch = helper.make_graph([inner], "branch", [], made)
    flag = net.input("flag", values=np.asarray(True))
    net.op("If", flag, name="y", then_branch=branch, else_branch=branch)
    net.output("y", 2, 3)
    model = net.model()
    model.opset_import.add(domain=ML, version=1)
    loaded = Model.load(model)
    assert infer_shapes(loaded, bind(model_inputs(loaded)).shapes)["y"] == (2, 3)


def test_what_the_file_says_of_an_operator_with_a_stand_in_may_be_stale() -> None:
    net = Net()
    x = net.input("x", 1, 6, declared=["N", 6])
    net.output(net.op("Relu", net.op("Gelu", x, domain=MICROSOFT, name="gelu"), name="y"), 1, 6)
    net.value_infos.append(helper.make_tensor_value_info("gelu", TensorProto.FLOAT, [7, 6]))
    loaded = Model.load(net.model())
    shapes = infer_shapes(loaded, bind(model_inputs(loaded), {"x": [3, 6]}).shapes)
    assert (shapes["gelu"], shapes["y"]) == ((3, 6), (3, 6))
