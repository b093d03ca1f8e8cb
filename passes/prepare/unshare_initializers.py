"""Undo the merging of equal tensors that exporters do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of, dtype_of, named, shape_of, share_values
from sift_onnx.graphs.names import free_name, names_in
from sift_onnx.model import Model
from sift_onnx.operators.labels import node_name
from sift_onnx.operators.weight_operands import STATISTICS
from sift_onnx.passes.base import Pass, PassResult

__all__ = ["UnshareInitializers"]

# A node, and the input at which it reads.
_Read = tuple[gs.Node, int]


@dataclass(frozen=True)
class UnshareInitializers(Pass):
    """Give every parameter of the network its own initializer again.

    Exporters merge initializers of equal value. In a fresh model all BatchNorm gammas are ones and all zero-initialised
    residual branches are zero kernels, so they become one tensor, and would be trained, or widened, as one.

    1. An Identity that renames an initializer is removed; its consumers read a copy under the Identity's own name,
       which in TorchScript exports is the parameter's name in the module. An embedding table stays one tensor: the
       output projection that is tied to it reads the table itself.
    2. A floating-point initializer with one value throughout that several nodes read is copied for each of them, except
       for nodes that share a weight that is *not* of one value: those really are tied, and stay so. Subgraphs go on
       reading the original.

    Requires: nothing. Ensures: the same outputs, bit for bit. A weight of differing values that several nodes read is a
    true tie and is kept.

    Attributes:
        renamed_only: stop after step 1; what several nodes read under one name is one parameter. Running statistics
            that were merged with parameters, or means with variances, are taken apart all the same: one tensor cannot
            be both.
    """

    name: ClassVar[str] = "unshare-initializers"

    _: KW_ONLY
    renamed_only: Annotated[bool, "only undo what a renaming Identity merged"] = False

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the copies by the initializer that they came from."""
        if not _renamed(model.graph) and not self._merged(model.graph):
            return PassResult(model, False, {"copies": {}})
        copy = model.copy()
        copies: dict[str, list[str]] = defaultdict(list)
        taken = names_in(copy.graph)
        for constant in _renamed(copy.graph):
            _remove_identities(constant, copy.graph, copies)
        copy.graph.nodes = [n for n in copy.graph.nodes if not (n.op == "Identity" and not n.outputs)]
        for constant, groups in self._merged(copy.graph):
            for group in groups:
                name = free_name(f"{constant.name}_{node_name(group[0][0])}", taken)
                duplicate = named(constant, name)
                for node, i in group:
                    node.inputs[i] = duplicate
                copies[constant.name].append(name)
        return PassResult(copy, True, {"copies": dict(copies)})

    def _merged(self, graph: gs.Graph) -> list[tuple[gs.Constant, list[list[_Read]]]]:
        """Initializers that were merged, and the reads that get a copy each."""
        if self.renamed_only:
            return _merged_statistics(graph)
        return [(constant, _tied_groups(constant, graph)[1:]) for constant in _shared(graph)]


def _constants(graph: gs.Graph) -> list[gs.Constant]:
    """Initializers that hold parameters: floating-point numbers, and more than one."""
    return [t for t in graph.tensors().values() if _is_parameter(t)]


def _is_parameter(tensor: gs.Tensor) -> bool:
    if not isinstance(tensor, gs.Constant) or dtype_of(tensor).kind in "iubOUS":
        return False
    return max(shape_of(tensor), default=1) > 1


def _is_one_value(constant: gs.Constant) -> bool:
    values = array_of(constant).reshape(-1)
    return bool(values[0] == values[-1]) and bool(np.all(values == values[0]))


def _merged_statistics(graph: gs.Graph) -> list[tuple[gs.Constant, list[list[_Read]]]]:
    """Running statistics that are something else besides, and each input that reads them as statistics.

    What two nodes read as their mean, and nothing reads as anything else, may be that of one module applied twice.
    """
    main = {id(node) for node in graph.nodes}
    merged = []
    for constant in _constants(graph):
        reads = [(node, i) for node in _each(constant.outputs) for i, t in enumerate(node.inputs) if t is constant]
        slots = {i if node.op == "BatchNormalization" else None for node, i in reads}
        if len(slots) > 1 and not slots.isdisjoint(STATISTICS) and _is_one_value(constant):
            readers = [[(n, i)] for n, i in reads if n.op == "BatchNormalization" and i in STATISTICS and id(n) in main]
            merged.append((constant, readers if len(readers) < len(reads) else readers[1:]))
    return [(constant, readers) for constant, readers in merged if readers]


def _each(nodes: Iterable[gs.Node]) -> list[gs.Node]:
    """Every node once."""
    return list({id(node): node for node in nodes}.values())


def _renamed(graph: gs.Graph) -> list[gs.Constant]:
    """Parameters that an Identity renames."""
    return [constant for constant in _constants(graph) if _renaming(constant, graph)]


def _renaming(tensor: gs.Tensor, graph: gs.Graph) -> list[gs.Node]:
    kept = {id(t) for t in graph.outputs}
    main = {id(n) for n in graph.nodes}
    return [n for n in tensor.outputs if n.op == "Identity" and id(n) in main and id(n.outputs[0]) not in kept]


def _remove_identities(constant: gs.Constant, graph: gs.Graph, copies: dict[str, list[str]]) -> None:
    pending = _renaming(constant, graph)
    table = _is_looked_up(constant)
    while pending:
        identity = pending.pop()
        renamed = identity.outputs[0]
        pending.extend(_renaming(renamed, graph))
        # The tensor object itself becomes the constant, so that subgraphs that captured it see it too.
        identity.outputs.clear()
        identity.inputs.clear()
        if table:
            for node in list(renamed.outputs):
                for i, tensor in enumerate(node.inputs):
                    if tensor is renamed:
                        node.inputs[i] = constant
            continue
        share_values(renamed, constant)
        copies[constant.name].append(renamed.name)


def _is_looked_up(tensor: gs.Tensor) -> bool:
    """Whether rows of the tensor are looked up, under this name or another."""
    return any(
        (n.op == "Gather" and n.inputs[0] is tensor) or (n.op == "Identity" and _is_looked_up(n.outputs[0]))
        for n in tensor.outputs
    )


def _shared(graph: gs.Graph) -> list[gs.Constant]:
    """Parameters that nodes share only because they are of one value throughout."""
    return [
        constant
        for constant in _constants(graph)
        if len(constant.outputs) > 1 and _is_one_value(constant) and len(_tied_groups(constant, graph)) > 1
    ]


def _tied_groups(constant: gs.Constant, graph: gs.Graph) -> list[list[_Read]]:
    """The reads of a constant that belong together; the first group goes on reading the constant itself.

    Nodes that share a weight of differing values are one layer. Subgraphs are left as they are.
    """
    main = {id(n) for n in graph.nodes}
    inside: list[_Read] = []
    groups: dict[tuple[int, ...], list[_Read]] = {}
    for node in _each(constant.outputs):
        others = (t for t in node.inputs if t is not constant and _is_parameter(t))
        layer = tuple(id(t) for t in others if not _is_one_value(t)) or (id(node),)
        for i, tensor in enumerate(node.inputs):
            if tensor is constant:
                # One node may read the constant as two parameters.
                (groups.setdefault((*layer, i), []) if id(node) in main else inside).append((node, i))
    return [group for group in (inside, *groups.values()) if group]
