"""Names for nodes that have none."""

from __future__ import annotations

from typing import ClassVar

from sift_onnx.model import Model
from sift_onnx.passes import Pass, PassResult


class NameNodes(Pass):
    """Give every node without a name one: its operator and a number.

    Requires: nothing. Ensures: every node of the main graph has a name of its own; a second run changes nothing.
    """

    name: ClassVar[str] = "name-nodes"

    def __init__(self, *, prefix: str = "") -> None:
        """Settings of the pass.

        Args:
            prefix: of the names.
        """
        self.prefix = prefix

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the names."""
        if all(node.name for node in model.graph.nodes):
            return PassResult(model, False, {"named": []})
        copy = model.copy()
        taken = {node.name for node in copy.graph.nodes}
        named = []
        for i, node in enumerate(copy.graph.nodes):
            if node.name:
                continue
            node.name = f"{self.prefix}{node.op}_{i}"
            while node.name in taken:
                node.name += "_"
            taken.add(node.name)
            named.append(node.name)
        return PassResult(copy, True, {"named": named})
