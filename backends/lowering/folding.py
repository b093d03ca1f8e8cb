"""Values that follow from constants and from sizes, such as tables of relative positions and masks of windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.operators.domains import is_standard
from sift_onnx.operators.traits import DRAWING

__all__ = ["Folder", "dequantized"]

Array = npt.NDArray[Any]
# Larger ones are left to onnxruntime, which computes them when it loads the model.
_MOST_ELEMENTS = 1 << 22


def dequantized(node: onnx.NodeProto, stored: Array, scale: Array, zero: Array | None) -> Array | None:
    """What a DequantizeLinear makes of constants, float32; None for scales of blocks, and for types of floats.

    Args:
        node: the DequantizeLinear.
        stored: integers.
        scale: one, or one for each position of an axis.
        zero: zero points, likewise; None is zero.
    """
    if scale.dtype != np.float32 or scale.ndim > 1 or stored.dtype.kind not in "iu":
        return None
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    shape = [-1 if i == axis % max(stored.ndim, 1) else 1 for i in range(stored.ndim)] if scale.size > 1 else []
    centred = stored.astype(np.float32)
    if zero is not None:
        centred = centred - zero.astype(np.float32).reshape(shape)
    return np.asarray(centred * scale.reshape(shape))


class Folder:
    """Computes what nodes make of constants and of sizes that are numbers."""

    def __init__(
        self,
        nodes: list[onnx.NodeProto],
        producers: Mapping[str, int],
        opset: int,
        constant: Callable[[str], Array | None],
        dims: Callable[[str], Dims | None],
    ) -> None:
        """Compute nothing yet.

        Args:
            nodes: of the graph.
            producers: index of the node that makes a value.
            opset: of the standard operators.
            constant: the values of a constant, or of a tensor of sizes.
            dims: sizes of a value.
        """
        self._nodes, self._producers, self._opset = nodes, producers, opset
        self._constant, self._dims = constant, dims
        self._found: dict[str, Array | None] = {}

    def value(self, name: str) -> Array | None:
        """What ``name`` is in every run; None where that is not known, or large."""
        order = self._order(name)
        for index in order or ():
            self._compute(self._nodes[index])
        return self._known(name) if order is not None else None

    def _order(self, name: str) -> list[int] | None:
        """The nodes to compute, in order; None if ``name`` depends on more than constants."""
        needed: set[int] = set()
        waiting = [name]
        while waiting:
            value = waiting.pop()
            if self._known(value) is not None:
                continue
            index = self._producers.get(value)
            if index is None or not self._is_computable(value, self._nodes[index]):
                return None
            if index not in needed:
                needed.add(index)
                waiting += filter(None, self._nodes[index].input)
        return sorted(needed)

    def _is_computable(self, name: str, node: onnx.NodeProto) -> bool:
        if name in self._found or not is_standard(node.domain) or node.op_type in DRAWING or not node.input:
            return False
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            return False
        dims = self._dims(name)
        sizes = [size for size in dims or () if isinstance(size, int)]
        return dims is not None and len(sizes) == len(dims) and math.prod(sizes) <= _MOST_ELEMENTS

    def _known(self, name: str) -> Array | None:
        found = self._found.get(name)
        return found if found is not None else self._constant(name)

    def _compute(self, node: onnx.NodeProto) -> None:
        if node.op_type == "DequantizeLinear":
            # The reference evaluator has it from opset 19 on.
            stored, scale, zero = (self._known(name) if name else None for name in (*node.input, "")[:3])
            assert stored is not None
            assert scale is not None
            self._found[node.output[0]] = dequantized(node, stored, scale, zero)
            return
        # Its import takes long, and few models need it.
        from onnx.reference import ReferenceEvaluator

        feeds = {name: self._known(name) for name in node.input if name}
        graph = onnx.helper.make_graph(
            [node],
            "node",
            [onnx.ValueInfoProto(name=name) for name in feeds],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self._opset)])
        names = [name for name in node.output if name]
        try:
            with np.errstate(all="ignore"):
                made = ReferenceEvaluator(model).run(None, feeds)
        except Exception:  # what the reference cannot compute, onnxruntime can, or says what is wrong with it
            made = [None] * len(names)
        for name, value in zip(names, made, strict=True):
            self._found[name] = value if isinstance(value, np.ndarray) else None
