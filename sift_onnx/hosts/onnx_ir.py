"""Passes for onnx_ir's pass managers, and so for the models that ``torch.onnx.export`` hands out.

    from sift_onnx.hosts.onnx_ir import SiftPass
    from sift_onnx.passes import Wide

    program = torch.onnx.export(module, args, dynamo=True)
    SiftPass(Wide(0.9))(program.model)
    program.save("wide.onnx")

The adapter is an ``InPlacePass``: it can stand in a ``PassManager`` or ``Sequential`` among others.
"""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from sift_onnx import errors
from sift_onnx.hosts.missing import missing
from sift_onnx.model import Model
from sift_onnx.passes.base import Pass, history

try:
    import onnx_ir as ir
except ImportError as error:
    raise missing("onnx-ir", error) from error

__all__ = ["SiftPass"]


class SiftPass(ir.passes.InPlacePass):
    """A pass of this package on an ``onnx_ir.Model``.

    The model object stays, and so do ``meta`` of nodes and values that keep their names; its graph is a new one. Large
    tensors of the new graph are lazy.

    Requires: what the pass requires, and that the notes of earlier transforms can be read. Ensures: whatever a node of
    the main graph reads is made before.

    Attributes:
        report: of the last call.
    """

    def __init__(self, pass_: Pass, /) -> None:
        """Wrap ``pass_``."""
        self.pass_ = pass_
        self.report: dict[str, Any] = {}

    def requires(self, model: ir.Model) -> None:
        """Read the notes of earlier transforms.

        Raises:
            onnx_ir.passes.PreconditionError: they are damaged.
        """
        try:
            history(Model(gs.Graph(), dict(model.metadata_props)))
        except errors.ModelReadError as error:
            raise ir.passes.PreconditionError(str(error)) from error

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Apply the pass.

        Raises:
            onnx_ir.passes.PreconditionError: the pass must not be applied to this model.
            SiftError: see the pass.
        """
        try:
            result = self.pass_(Model.load(model))
        except errors.PreconditionError as error:
            raise ir.passes.PreconditionError(str(error)) from error
        self.report = dict(result.report)
        if result.changed:
            _become(model, result.model.to_onnx_ir())
        return ir.passes.PassResult(model, result.changed)

    def ensures(self, model: ir.Model) -> None:
        """Look through the main graph for what is read and not there.

        Raises:
            onnx_ir.passes.PostconditionError: there is such a thing.
        """
        graph = model.graph
        there = {*graph.inputs, *graph.initializers.values()}
        for node in graph:
            lacking = [v.name for v in node.inputs if v is not None and v not in there]
            if lacking:
                raise ir.passes.PostconditionError(f"{self}: node {node.name!r} reads {lacking[0]!r} before it is made")
            there.update(node.outputs)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.pass_.name})"


def _become(model: ir.Model, other: ir.Model) -> None:
    """Give ``model`` everything of ``other``, and what its own parts were annotated with."""
    nodes = {node.name: node for node in model.graph if node.name}
    values = {value.name: value for value in _values(model.graph)}
    for node in other.graph:
        if node.name in nodes:
            node.meta.update(nodes[node.name].meta)
    for value in _values(other.graph):
        if value.name in values:
            value.meta.update(values[value.name].meta)
    other.graph.meta.update(model.graph.meta)
    model.graph = other.graph
    model.ir_version = other.ir_version
    model.functions.clear()
    model.functions.update(other.functions)
    model.metadata_props.clear()
    model.metadata_props.update(other.metadata_props)


def _values(graph: ir.Graph) -> list[ir.Value]:
    made = [value for node in graph for value in node.outputs if value.name]
    return [*graph.inputs, *graph.initializers.values(), *made]
