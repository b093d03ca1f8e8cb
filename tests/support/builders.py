"""Small models for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.files.data_types import data_type_of
from sift_onnx.graphs.constant_tensors import full_tensor
from sift_onnx.graphs.constants import array_of, replace_values
from sift_onnx.model import Model
from sift_onnx.weights.sparse import SparseWeight, sample_positions

Array = np.ndarray[Any, np.dtype[Any]]

HAS_NEW_DATA_TYPES = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16) != np.float32


SPARSE_TENSOR = helper.make_sparse_tensor(
    helper.make_tensor("v", TensorProto.FLOAT, [2], [1.0, 2.0]),
    helper.make_tensor("i", TensorProto.INT64, [2], [0, 5]),
    [3, 4],
)
SUBGRAPH = helper.make_graph(
    [helper.make_node("Identity", ["x"], ["inner"])], "sub", [], [helper.make_tensor_value_info("inner", 1, None)]
)


def random_weight(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Standard normal, none of them zero."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    values[values == 0] = 1
    return values


def tensor_of(values: Array, name: str) -> onnx.TensorProto:
    """A tensor; ``numpy_helper`` knows the newer data types from onnx 1.19 on."""
    return full_tensor(gs.Constant(name, values))


def model_of(graph: onnx.GraphProto, opset: int = 17, ir_version: int = 8, **fields: Any) -> onnx.ModelProto:
    """A model around a graph."""
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version, **fields)


# The first is small, the second is cut out of the file and streamed.
SMALL, LARGE = random_weight(6, 8), random_weight(8, 3000, seed=1)


def small_and_large() -> onnx.ModelProto:
    """The weights ``w``, :data:`SMALL`, and ``v``, :data:`LARGE`; with metadata."""
    model = linear({"w": SMALL, "v": LARGE})
    model.metadata_props.add(key="key", value="value")
    model.producer_name, model.producer_version = "someone", "1.2"
    return model


def linear(weights: Mapping[str, Array], ir_version: int = 8) -> onnx.ModelProto:
    """``y = x @ w0 @ w1 ...`` for matrices by name; the initializers of IR version 3 are inputs too."""
    names, matrices = list(weights), list(weights.values())
    element = data_type_of(matrices[0].dtype)
    values = ["x", *(f"h{i}" for i in range(1, len(names))), "y"]
    nodes = [helper.make_node("MatMul", [values[i], n], [values[i + 1]], f"mm{i}") for i, n in enumerate(names)]
    inputs = [helper.make_tensor_value_info("x", element, ["batch", matrices[0].shape[0]])]
    if ir_version < 4:
        inputs += [helper.make_tensor_value_info(n, element, w.shape) for n, w in weights.items()]
    outputs = [helper.make_tensor_value_info("y", element, ["batch", matrices[-1].shape[1]])]
    initializers = [tensor_of(w, n) for n, w in weights.items()]
    return model_of(helper.make_graph(nodes, "linear", inputs, outputs, initializers), ir_version=ir_version)


def tensors(*initializers: onnx.TensorProto, opset: int = 21, ir_version: int = 10) -> onnx.ModelProto:
    """Each initializer goes through an Identity to an output."""
    nodes = [helper.make_node("Identity", [t.name], [f"{t.name}.out"]) for t in initializers]
    outputs = [helper.make_tensor_value_info(f"{t.name}.out", t.data_type, list(t.dims)) for t in initializers]
    graph = helper.make_graph(nodes, "tensors", [], outputs, initializers)
    return model_of(graph, opset, ir_version)


def convolutions(
    widths: Sequence[tuple[int, int, int]] = ((8, 4, 3), (20, 8, 3), (20, 20, 3), (6, 20, 1)),
) -> onnx.ModelProto:
    """Convolutions in a row, each ``(out, in, kernel)``; named ``conv<i>.weight``."""
    nodes, weights = [], []
    for i, (out, channels, kernel) in enumerate(widths):
        weights.append(numpy_helper.from_array(random_weight(out, channels, kernel, kernel, seed=i), f"conv{i}.weight"))
        source = "x" if i == 0 else f"a{i - 1}"
        nodes.append(
            helper.make_node("Conv", [source, f"conv{i}.weight"], [f"a{i}"], f"conv{i}", pads=[kernel // 2] * 4)
        )
    last = f"a{len(widths) - 1}"
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", widths[0][1], 6, 6])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["n", widths[-1][0], 6, 6])],
        weights,
    )
    return model_of(graph)


def branches(captured: Array, own: Array) -> onnx.ModelProto:
    """``y = x + captured if flag else x * own + unread-in-main``: an If whose branches capture and own initializers.

    ``captured`` is read in the main graph and in a branch, ``only-inside`` belongs to the main graph and is read in a
    branch alone, and both branches own an initializer named ``own``.
    """
    element = TensorProto.FLOAT

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(f"{name}.out", element, ["n", captured.shape[-1]])
        return helper.make_graph(list(nodes), name, [], [output], [numpy_helper.from_array(own, "own")])

    then = branch(
        "then",
        helper.make_node("Add", ["h", "captured"], ["then.sum"], "then.add"),
        helper.make_node("Add", ["then.sum", "own"], ["then.out"], "then.own"),
    )
    otherwise = branch(
        "else",
        helper.make_node("Mul", ["h", "own"], ["else.product"], "else.mul"),
        helper.make_node("Add", ["else.product", "only-inside"], ["else.out"], "else.add"),
    )
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "captured"], ["h"], "add"),
            helper.make_node("If", ["flag"], ["y"], "if", then_branch=then, else_branch=otherwise),
        ],
        "branches",
        [
            helper.make_tensor_value_info("x", element, ["n", captured.shape[-1]]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", element, ["n", captured.shape[-1]])],
        [numpy_helper.from_array(captured, "captured"), numpy_helper.from_array(captured * 3, "only-inside")],
    )
    return model_of(graph)


def mask_weights(model: Model, density: float = 0.25, zeros: int = 3, names: Sequence[str] | None = None) -> Model:
    """A copy of ``model`` with random masks over initializers of two axes and more, some of them over zeros."""
    copy = model.copy()
    for name, constant in copy.initializers().items():
        if len(constant.shape) < 2 or (names is not None and name not in names):
            continue
        dense = np.array(array_of(constant)).reshape(-1)
        indices = sample_positions(dense.size, max(zeros, int(density * dense.size)), np.random.default_rng(dense.size))
        values = dense[indices]
        values[:zeros] = 0
        replace_values(constant, SparseWeight(tuple(constant.shape), indices, values))
    return copy


def round_trip(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, loaded and exported, twice to the same."""
    before = model.SerializeToString(deterministic=True)
    loaded = Model.load(model)
    exported = loaded.copy().to_proto()
    assert loaded.to_proto() == exported
    assert model.SerializeToString(deterministic=True) == before
    return exported


def one_node(
    op: str = "Custom",
    domain: str = "com.example",
    attributes: Sequence[onnx.AttributeProto] = (),
    **fields: Any,
) -> onnx.ModelProto:
    """A model of one node with these attributes."""
    node = helper.make_node(op, ["x"], ["y"], "node", domain=domain, **fields)
    node.attribute.extend(attributes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])]
    model = model_of(helper.make_graph([node], "g", inputs, outputs), 21, 10)
    model.opset_import.add(domain="com.example", version=2)
    return model
