"""GELU as exporters spell it, ``x * (1 + erf(x / sqrt(2))) / 2`` in five nodes, as one function of lanes.

Each of the five reads and writes all activations, and keeps what its gradient needs of them.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, fx
from torch.nn import functional

from sift_onnx.training.kernels.elementwise import arithmetic
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.graph_layers import stored_tensor
from sift_onnx.training.sparse_layers.lane_operators import combine, elementwise, kernel_of, with_vector
from sift_onnx.training.sparse_layers.lanes import Lanes

__all__ = ["fuse_gelu", "gelu", "spell_gelu"]


def gelu(x: Lanes, scale: Tensor, one: Tensor, half: Tensor, *, scaled_by: str, halves_first: bool) -> Lanes:
    """``x * (1 + erf(x * scale)) * half``.

    Args:
        x: activations.
        scale: sqrt(1/2), or sqrt(2) if ``scaled_by`` is ``div``.
        one: 1.
        half: 1/2.
        scaled_by: ``mul`` or ``div``.
        halves_first: whether ``x`` was halved, and not the product. These are for :func:`spell_gelu` alone.
    """
    return x.map(functional.gelu)


def fuse_gelu(module: ImportedModule, node: fx.Node) -> None:
    """Replace a GELU in lanes that ends at ``node``, if there is one."""
    found = _match(module, node)
    if found is None:
        return
    args, kwargs, inner = found
    with module.graph.inserting_before(node):
        fused = module.graph.call_function(gelu, args, kwargs)
    fused.meta.update(node.meta)
    node.replace_all_uses_with(fused)
    for old in (node, *inner):
        module.graph.erase_node(old)


def spell_gelu(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The five nodes of torch's kernels that a :func:`gelu` stands for."""
    x, scale, one, half = node.args
    scaled = graph.call_function(kernel_of(str(node.kwargs["scaled_by"])), (x, scale))
    factor = graph.call_function(arithmetic.add, (graph.call_function(kernel_of("erf"), (scaled,)), one))
    if node.kwargs["halves_first"]:
        return graph.call_function(arithmetic.mul, (graph.call_function(arithmetic.mul, (x, half)), factor))
    return graph.call_function(arithmetic.mul, (graph.call_function(arithmetic.mul, (x, factor)), half))


def _match(module: ImportedModule, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any], list[fx.Node]] | None:
    outer = _with_number(module, node, "mul", 0.5)
    product = node if outer is None else outer[0]
    if product.target is not combine or product.args[0] != "mul":
        return None
    for x, factor in (product.args[1:], product.args[:0:-1]):
        if not (isinstance(x, fx.Node) and isinstance(factor, fx.Node)):
            continue
        halved = None if outer is not None else _with_number(module, x, "mul", 0.5)
        added = _with_number(module, factor, "add", 1.0)
        if added is None or (outer is None) == (halved is None):
            continue
        erf, one = added
        if erf.target is not elementwise or erf.args[0] != "erf":
            continue
        scaled = erf.args[1]
        assert isinstance(scaled, fx.Node)
        for kernel, number in (("div", math.sqrt(2.0)), ("mul", math.sqrt(0.5))):
            found = _with_number(module, scaled, kernel, number)
            source = x if halved is None else halved[0]
            inner = [product] * (outer is not None) + [factor, erf, scaled] + ([x] if halved is not None else [])
            if found is None or found[0] is not source or any(len(part.users) > 1 for part in inner):
                continue
            half = outer[1] if outer is not None else halved[1]  # type: ignore[index]
            kwargs = {"scaled_by": kernel, "halves_first": halved is not None}
            return (source, found[1], one, half), kwargs, inner
    return None


def _with_number(module: ImportedModule, node: fx.Node, kernel: str, number: float) -> tuple[fx.Node, fx.Node] | None:
    """What ``number`` is applied to by a kernel, and the node that has the number; None if it is not so."""
    if node.target is not with_vector or node.args[0] != kernel or (kernel == "div" and node.kwargs["is_first"]):
        return None
    _, x, stored = node.args
    value = stored_tensor(module, stored)
    if value is None or value.numel() != 1 or not math.isclose(float(value), number, rel_tol=1e-6):
        return None
    assert isinstance(x, fx.Node) and isinstance(stored, fx.Node)
    return x, stored
