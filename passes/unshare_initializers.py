"""Undo the merging of equal tensors that exporters do."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.constants import array_of, masked_constant, shape_of
from sift_onnx.model import Model
from sift_onnx.passes.base import Pass, PassResult, register_pass

__all__ = ["UnshareInitializers"]


@register_pass
class UnshareInitializers(Pass):
    """Give every parameter of the network its own initializer again.

    Exporters merge initializers of equal value. In a fresh model all BatchNorm gammas are ones and all zero-initialised
    residual branches are zero kernels, so they become one tensor, and would be trained, or widened, as one.

    1. An Identity that renames an initializer is removed; its consumers read a copy under the Identity's own name,
       which in TorchScript exports is the parameter's name in the module. An embedding table stays one tensor: the
       output projection that is tied to it reads the table itself.
    2. A floating-point initializer with one value throughout that several nodes read is copied for each of them, except
       for nodes that share a weight that is *not* of one value: those really are tied, and stay so.

    Requires: nothing. Ensures: the same outputs, bit for bit. A weight of differing values that several nodes read is a
    true tie and is kept.
    """

    name: ClassVar[str] = "unshare-initializers"

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the copies by the initializer that they came from."""
        if not _shared(model.graph):
            return PassResult(model, False, {"copies": {}})
        copy = model.copy()
        copies: dict[str, list[str]] = defaultdict(list)
        taken = set(copy.graph.tensors())
        for subgraph in copy.graph.subgraphs(recursive=True):
            taken |= set(subgraph.tensors())
        _remove_identities(copy.graph, copies)
        for constant in _shared(copy.graph):
            for group in _tied_groups(constant)[1:]:
                name = _free_name(f"{constant.name}_{group[0][0].name or group[0][0].outputs[0].name}", taken)
                duplicate = _duplicate(constant, name)
                for node, i in group:
                    node.inputs[i] = duplicate
                copies[constant.name].append(name)
        return PassResult(copy, True, {"copies": dict(copies)})


def _shared(graph: gs.Graph) -> list[gs.Constant]:
    """Initializers that an Identity renames, or that nodes share only because they are of one value throughout."""
    return [
        tensor
        for tensor in graph.tensors().values()
        if isinstance(tensor, gs.Constant)
        and (_renaming(tensor, graph) or (_is_one_value(tensor) and len(_tied_groups(tensor)) > 1))
    ]


def _renaming(constant: gs.Constant, graph: gs.Graph) -> list[gs.Node]:
    outputs = {id(t) for t in graph.outputs}
    return [n for n in constant.outputs if n.op == "Identity" and id(n.outputs[0]) not in outputs]


def _is_one_value(constant: gs.Constant) -> bool:
    shape = shape_of(constant)
    if not shape or max(shape) < 2 or np.dtype(constant._values.dtype).kind in "iubOUS":
        return False
    values = array_of(constant).reshape(-1)
    return bool(values[0] == values[-1]) and bool(np.all(values == values[0]))


def _remove_identities(graph: gs.Graph, copies: dict[str, list[str]]) -> None:
    for constant in [t for t in graph.tensors().values() if isinstance(t, gs.Constant)]:
        if np.dtype(constant._values.dtype).kind in "iubOUS":
            continue
        pending = _renaming(constant, graph)
        table = _is_embedding(constant)
        while pending:
            identity = pending.pop()
            renamed = identity.outputs[0]
            pending.extend(n for n in renamed.outputs if n.op == "Identity" and n.outputs[0] not in graph.outputs)
            # The tensor object itself becomes the constant, so that subgraphs that captured it see it too.
            identity.outputs.clear()
            identity.inputs.clear()
            if table:
                for node in list(renamed.outputs):
                    node.inputs[:] = [constant if t is renamed else t for t in node.inputs]
                continue
            duplicate = _duplicate(constant, renamed.name)
            renamed.to_constant(duplicate._values)
            if type(duplicate) is not gs.Constant:
                masked_constant(renamed, duplicate._values)
            copies[constant.name].append(renamed.name)
    graph.nodes = [n for n in graph.nodes if not (n.op == "Identity" and not n.outputs)]


def _is_embedding(constant: gs.Constant) -> bool:
    """Whether rows of the constant are looked up, directly or through an Identity."""
    readers = [(n, constant) for n in constant.outputs]
    readers += [(r, n.outputs[0]) for n in constant.outputs if n.op == "Identity" for r in n.outputs[0].outputs]
    return any(node.op == "Gather" and node.inputs[0] is tensor for node, tensor in readers)


def _tied_groups(constant: gs.Constant) -> list[list[tuple[gs.Node, int]]]:
    """The reads of a constant, grouped by the differing-valued weights that the reading nodes have besides."""
    groups: dict[tuple[int, ...], list[tuple[gs.Node, int]]] = {}
    for node in {id(n): n for n in constant.outputs}.values():
        partners = tuple(
            id(t) for t in node.inputs if isinstance(t, gs.Constant) and t is not constant and not _is_one_value(t)
        )
        for i, tensor in enumerate(node.inputs):
            if tensor is constant:
                # Without a partner a node stands for itself, and so does each place where it reads the constant.
                groups.setdefault(partners or (id(node), i), []).append((node, i))
    return list(groups.values())


def _duplicate(constant: gs.Constant, name: str) -> gs.Constant:
    copy = constant.copy()
    copy.name = name
    return copy


def _free_name(wanted: str, taken: set[str]) -> str:
    name, i = wanted, 1
    while name in taken:
        name, i = f"{wanted}_{i}", i + 1
    taken.add(name)
    return name
