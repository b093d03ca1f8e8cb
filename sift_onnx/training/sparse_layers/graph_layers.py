"""Layers of an imported graph: which node computes with which masked weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from sift_onnx.training.kernels.data_movement import layout
from sift_onnx.training.kernels.matrix import gemm, matmul
from sift_onnx.training.kernels.spatial.convolution import Convolution, convolve
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.layer import Product
from sift_onnx.training.sparse_layers.weights import MaskedWeight

__all__ = ["GraphLayer", "graph_layers"]


@dataclass(frozen=True)
class GraphLayer:
    """A node that sparse kernels can compute."""

    node: fx.Node
    product: Product


def graph_layers(module: ImportedModule, weights: Iterable[MaskedWeight]) -> dict[str, GraphLayer | str]:
    """The node of each weight, or why sparse kernels do not compute it; by the weight's name."""
    return {weight.name: weight.obstacle or _layer_of(module, weight) for weight in weights}


def _layer_of(module: ImportedModule, weight: MaskedWeight) -> GraphLayer | str:
    reads = [node for node in module.graph.nodes if node.op == "get_attr" and node.target == weight.name]
    users = [user for read in reads for user in user_list(read)]
    if len(users) != 1:
        return f"its weight is used {len(users)} times"
    (node,) = users
    transposed = node.target is layout.transpose and node.kwargs.get("perm") in (None, (1, 0), [1, 0])
    if transposed and weight.values.dim() == 2:
        # As torch's linear layers are exported.
        reads, users = [node], user_list(node)
        if len(users) != 1:
            return f"its weight is used {len(users)} times"
        (node,) = users
    if node.op != "call_function" or node.target not in (convolve, matmul, gemm):
        return "it is not a Conv, Gemm or MatMul that reads the weight as it is stored"
    if len(node.args) < 2 or node.args[1] not in reads:
        return "its weight is not the second operand"
    if node.target is convolve:
        found = "its weight is transposed" if transposed else _convolution(node, weight.values)
    else:
        found = _matrix(module, node, weight.values, transposed)
    return found if isinstance(found, str) else GraphLayer(node, found)


def user_list(node: fx.Node) -> list[fx.Node]:
    """The users of a node, each as often as it reads it."""
    return [user for user in node.users for read in user.all_input_nodes if read is node]


def _convolution(node: fx.Node, weight: Tensor) -> Product | str:
    rank = weight.dim() - 2
    if rank not in (1, 2):
        return f"it is a convolution of {rank} spatial axes"
    attributes: dict[str, Any] = dict(node.kwargs)
    if Convolution(**attributes).group != 1 and weight.shape[1] == 1:
        return "it is a depthwise convolution"
    return Product(convolve, attributes, is_convolution=True, outputs_first=True)


def _matrix(module: ImportedModule, node: fx.Node, weight: Tensor, transposed: bool) -> Product | str:
    if weight.dim() != 2:
        return f"its weight has {weight.dim()} axes"
    kwargs = node.kwargs
    outputs_first = bool(kwargs.get("transB", 0)) != transposed
    if node.target is gemm:
        if kwargs.get("transA"):
            return "it is a Gemm of a transposed activation"
        if kwargs.get("alpha", 1) != 1 or (len(node.args) > 2 and kwargs.get("beta", 1) != 1):
            return "it is a Gemm with alpha or beta"
        bias = node.args[2] if len(node.args) > 2 else None
        if bias is not None and not _is_vector(module, bias, weight.shape[0 if outputs_first else 1]):
            return "its bias is not a vector of the output's features"
    run = gemm if node.target is gemm else matmul
    return Product(run, dict(kwargs), is_convolution=False, outputs_first=outputs_first, transposed=transposed)


def _is_vector(module: ImportedModule, bias: object, features: int) -> bool:
    tensor = stored_tensor(module, bias)
    return tensor is not None and tensor.dim() > 0 and tensor.numel() == tensor.shape[-1] == features


def stored_tensor(module: ImportedModule, node: object) -> Tensor | None:
    """The parameter or constant that a node reads; None for anything else."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value: object = module
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, Tensor) else None
