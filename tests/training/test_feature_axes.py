"""Output and input features of imported weights, and masks that are stated on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from training.trainer.cases import language_model

import sift_onnx
from sift_onnx.training import sparse
from sift_onnx.training.sparse import RigL

F = TensorProto.FLOAT


def model(nodes: list[Any], weight: tuple[int, ...], x: tuple[int, ...]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", F, x)],
        [helper.make_tensor_value_info("y", F, None)],
        [numpy_helper.from_array(np.random.default_rng(0).standard_normal(weight).astype(np.float32), "w")],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def node(op: str, *inputs: str, output: str = "y", **attributes: Any) -> Any:
    return helper.make_node(op, list(inputs), [output], **attributes)


@pytest.mark.parametrize(
    ("nodes", "weight", "x", "axes"),
    [
        ([node("MatMul", "x", "w")], (4, 6), (2, 4), (1, 0)),
        ([node("MatMul", "w", "x")], (6, 4), (4, 2), (0, 1)),
        ([node("MatMul", "x", "w")], (3, 4, 6), (3, 2, 4), (2, 1)),
        ([node("Gemm", "x", "w")], (4, 6), (2, 4), (1, 0)),
        ([node("Gemm", "x", "w", transB=1)], (6, 4), (2, 4), (0, 1)),
        ([node("Gemm", "w", "x", transA=1)], (4, 6), (4, 2), (1, 0)),
        ([node("FusedMatMul", "x", "w", transB=1, domain="com.microsoft")], (6, 4), (2, 4), (0, 1)),
        ([node("Transpose", "w", output="t"), node("MatMul", "x", "t")], (6, 4), (2, 4), (0, 1)),
        ([node("Transpose", "w", output="t", perm=[1, 2, 0]), node("MatMul", "x", "t")], (6, 3, 4), (3, 2, 4), (0, 2)),
        ([node("Conv", "x", "w")], (6, 4, 3, 3), (1, 4, 5, 5), (0, 1)),
        ([node("ConvTranspose", "x", "w")], (4, 6, 3, 3), (1, 4, 5, 5), (1, 0)),
        ([node("Einsum", "x", "w", equation="bsh,hd->bsd")], (4, 6), (1, 2, 4), (1, 0)),
        ([node("Einsum", "x", "w", equation="bi,oi->bo")], (6, 4), (2, 4), (0, 1)),
        ([node("Gather", "w", "i")], (4, 6), (2, 4), None),
    ],
    ids=lambda value: "-".join(n.op_type for n in value) if isinstance(value, list) else "",
)
def test_axes_are_those_of_the_layer(nodes: list[Any], weight: Any, x: Any, axes: tuple[int, int] | None) -> None:
    proto = model(nodes, weight, x)
    if nodes[0].op_type == "Gather":
        proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "i"))
    module = sift_onnx.to_torch(proto)
    if axes is not None:
        assert module.feature_axes == {"w": axes}
        # What the axis of outputs says: with one of them at zero, so is one feature of the result.
        assert weight[axes[0]] == 6
        assert weight[axes[1]] == 4
    else:
        assert module.feature_axes == {}


def test_recurrent_layers() -> None:
    proto = model([node("RNN", "x", "w", "r", hidden_size=6)], (1, 6, 4), (2, 1, 4))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((1, 6, 6), np.float32), "r"))
    assert sift_onnx.to_torch(proto).feature_axes == {"w": (1, 2), "r": (1, 2)}


def groups_of_four(mask: torch.Tensor, in_axis: int) -> torch.Tensor:
    return mask.movedim(in_axis, -1).reshape(-1, 4).sum(-1)


def test_rigl_keeps_two_of_four_input_features_of_a_transformed_matmul(tmp_path: Path) -> None:
    source = language_model(tmp_path / "lm.onnx", width=16)
    wide = tmp_path / "wide.onnx"
    sift_onnx.save(
        sift_onnx.transform(str(source), wide=0.75, budget="layer", pattern="2:4", input_shapes={"tokens": (1, 6)}),
        wide,
    )
    module = sift_onnx.to_torch(wide)
    assert module.masks
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    algorithm = RigL(pattern="2:4", update={"freq": 1})
    sparse.Group({tuple(module.masks): algorithm}).attach(module, optimizer)
    first = {name: entry.mask.clone() for name, entry in algorithm.sparse_params.items()}
    tokens = torch.arange(12).reshape(2, 6) % 7
    for _ in range(3):
        optimizer.zero_grad()
        scores = module(tokens)
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    for name, entry in algorithm.sparse_params.items():
        assert module.feature_axes[name] == entry.feature_axes == (1, 0)
        assert not torch.equal(entry.mask, first[name])
        assert entry.mask.sum() == first[name].sum()
        assert int(groups_of_four(entry.mask, 0).max()) <= 2
        assert int(groups_of_four(entry.mask, 1).max()) > 2


@pytest.mark.parametrize(("setting", "axis"), [("balance_out_groups", 1), ("balance_in_groups", 0)])
def test_groups_are_balanced_along_the_features_of_a_matmul(setting: str, axis: int) -> None:
    module = sift_onnx.to_torch(model([node("MatMul", "x", "w")], (8, 12), (4, 8))).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    algorithm = RigL(sparsity=0.5, update={"freq": 1}, **{setting: 4})
    algorithm.attach(module, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        module(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimizer.step()
        mask = module.state_dict()["w_mask"]
        assert mask.sum(1 - axis).reshape(4, -1).sum(1).tolist() == [12] * 4


def test_a_parameters_own_axes_come_first() -> None:
    layer = torch.nn.Linear(8, 8, bias=False)
    layer.weight.feature_axes = (1, 0)  # type: ignore[attr-defined]
    algorithm = RigL(sparsity=0.5, pattern="2:4", update={"freq": 1})
    algorithm.apply(layer)
    assert int(groups_of_four(algorithm.sparse_params["weight"].mask, 0).max()) <= 2
