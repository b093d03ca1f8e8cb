"""Which stored tensors of a model are parameters of the network.

ONNX does not say. A parameter is a floating-point tensor that is read, directly or through operators that only move or
cast elements, where a layer has its weight, bias, scale, shift or table. A sum or a product with a stored tensor is how
exporters write biases, position embeddings and scales; such a tensor counts if the model names it (an initializer, not
the value of a Constant node), has more than one element, and holds no number that only a mask would.

A weight that is a fixed function (:mod:`sift_onnx.analysis.fixed_weights`) stands where parameters do, and is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.analysis.fixed_weights import fixed_weights
from sift_onnx.errors import UsageError
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of, named, shape_of
from sift_onnx.operators.traits import MOVING
from sift_onnx.operators.weight_operands import CONVOLUTIONS, MATRIX_PRODUCTS, PARAMETERS

__all__ = ["Role", "roles_of"]

Role = Literal["parameter", "statistic", "fixed"]

# Weights of these may be fixed functions.
_LAYERS = CONVOLUTIONS | MATRIX_PRODUCTS
# A stored tensor joins data here as a bias, a scale, an embedding or a class token; or as a constant of the formula.
_JOINS = frozenset({"Add", "Concat", "Div", "Mul", "Sub", "Sum", "Where"})
# Not Gather: where it reads a stored tensor, that is a table of parameters.
_MOVES = (MOVING - {"Gather"}) | {"Cast"}
_FLOATS = frozenset({"float16", "float32", "float64", "bfloat16"})
# Attention masks are written as 0 and a number below this.
_MASK_BELOW = -1e4


def roles_of(graph: gs.Graph, trainable: Sequence[str] = ()) -> dict[str, Role]:
    """The parameters, statistics and fixed weights of a graph.

    Args:
        graph: the main graph.
        trainable: globs of names that are parameters in any case.

    Returns:
        Roles by name: the initializer's, or the output's of a Constant node.

    Raises:
        UsageError: a glob matches no floating-point tensor.
    """
    stored = {name: c for name, t in graph.tensors().items() if (c := _floating(t)) is not None}
    roles: dict[str, Role] = {}
    for name, constant in stored.items():
        role = _role(graph.tensors()[name], constant)
        if role is not None:
            roles[name] = role
    weights = [
        (node, named(constant, name))
        for name, constant in stored.items()
        if roles.get(name) == "parameter"
        for node, position, _ in _uses(graph.tensors()[name])
        if node.op in _LAYERS and position in PARAMETERS[node.op].weights
    ]
    roles.update((name, "fixed") for name in fixed_weights(weights))
    for glob in trainable:
        matching = [name for name in stored if fnmatchcase(name, glob)]
        if not matching:
            raise UsageError(f"trainable={glob!r} matches no floating-point initializer of the model")
        roles.update((name, "parameter") for name in matching)
    return roles


def _floating(tensor: gs.Tensor) -> gs.Constant | None:
    constant = constant_values(tensor)
    return constant if constant is not None and dtype_of(constant).name in _FLOATS else None


def _role(tensor: gs.Tensor, constant: gs.Constant) -> Role | None:
    uses = list(_uses(tensor))
    known = [(position, PARAMETERS[node.op]) for node, position, _ in uses if node.op in PARAMETERS]
    if any(position in inputs.trained for position, inputs in known) and max(shape_of(constant), default=0):
        return "parameter"
    if any(position in inputs.statistics for position, inputs in known):
        return "statistic"
    joined = any(node.op in _JOINS for node, _, _ in uses)
    named = isinstance(tensor, gs.Constant) and max(shape_of(constant), default=1) > 1
    return "parameter" if joined and named and not _is_mask(constant) else None


def _uses(tensor: gs.Tensor) -> Iterator[tuple[gs.Node, int, gs.Tensor]]:
    """Nodes that read the tensor, and at which input, through those that move its elements."""
    pending, seen = [tensor], set()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for node in current.outputs:
            for position, read in enumerate(node.inputs):
                if read is not current:
                    continue
                moved = node.op in _MOVES and (position == 0 or node.op == "Concat")
                alone = node.op != "Concat" or all(constant_values(t) is not None for t in node.inputs)
                if moved and alone:
                    pending.extend(node.outputs)
                else:
                    yield node, position, current


def _is_mask(constant: gs.Constant) -> bool:
    values = array_of(constant)
    return not bool(np.all(np.isfinite(values))) or bool(np.any(values <= _MASK_BELOW))
