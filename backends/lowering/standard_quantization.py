"""The graph with QuantizeLinear and DequantizeLinear of ONNX wherever a model spells them in another way.

All that follows knows one spelling. Replaced are

1. arithmetic that rounds, or makes floats of integers, see ``matching/roundings.py`` and ``dequantizings.py``;
2. the operators of the same names in onnxruntime's domain, for bytes;
3. Cast and Identity that leave bytes, or floats from DequantizeLinear, as they are: torch writes a Cast behind each;
4. zeros in the place of NaN among floats from DequantizeLinear, which are none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.backends.lowering.matching.dequantizings import Dequantizing, find_dequantizings
from sift_onnx.backends.lowering.matching.roundings import Quantizing, find_quantizings
from sift_onnx.operators.domains import MICROSOFT

__all__ = ["with_standard_quantization"]

_BYTES = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)
# Of the standard operators: the first version at all, with a scale for each channel, and with Clip of bytes.
_SINCE, _PER_CHANNEL_SINCE, _CLIP_SINCE = 10, 13, 12


def with_standard_quantization(graph: GraphView) -> GraphView:
    """``graph``, or one that computes the same values but for rounding of floats, in which one spelling is left."""
    if graph.opset < _SINCE:
        return graph
    quantizings = [found for found in find_quantizings(graph) if _is_writable(graph, found)]
    integers = (graph.nodes[found.nodes[-1]].output[0] for found in quantizings if not found.makes_floats)
    dequantizings = [found for found in find_dequantizings(graph, integers) if _is_writable(graph, found)]
    rewriter = _Rewriter(graph, [*quantizings, *dequantizings])
    return rewriter.rewritten() if rewriter.changes else graph


def _is_writable(graph: GraphView, found: Quantizing | Dequantizing) -> bool:
    """Whether the operators of the graph's version have it."""
    if found.axis is not None and graph.opset < _PER_CHANNEL_SINCE:
        return False
    return isinstance(found, Dequantizing) or graph.opset >= _CLIP_SINCE or not _is_clipped(found)


def _is_clipped(found: Quantizing) -> bool:
    limits = np.iinfo(found.dtype)
    return found.low > limits.min or found.high < limits.max


class _Rewriter:
    """Writes the nodes in graph order."""

    def __init__(self, graph: GraphView, chains: Iterable[Quantizing | Dequantizing]) -> None:
        self._graph = graph
        self._writer = GraphWriter(graph)
        self._chains: dict[int, Quantizing | Dequantizing] = {}
        self._dropped: set[int] = set()
        for chain in chains:
            # Of two that share nodes, the first one.
            if not self._dropped.intersection(chain.nodes):
                self._chains[chain.nodes[-1]] = chain
                self._dropped.update(chain.nodes)
        self._microsoft = {i for i in range(len(graph.nodes)) if i not in self._dropped and _is_microsoft(graph, i)}
        self._idle: dict[int, str] = {}  # what nodes leave as it is
        self._conditions: dict[int, list[int]] = {}  # of those that choose, what they choose by
        for index, node in enumerate(graph.nodes):
            if index in self._dropped:
                continue
            if _is_idle(graph, index):
                self._idle[index] = node.input[0]
            elif _is_of_numbers(graph, index):
                self._idle[index] = node.input[2]
                condition = graph.producers[node.input[0]]
                # onnxruntime's optimizer gives each reader floats of its own.
                (floats,) = graph.nodes[condition].input
                own = [graph.producers[floats]] * (graph.only_reader(floats) == condition)
                self._conditions[index] = [condition, *own]
                self._dropped.update(self._conditions[index])

    @property
    def changes(self) -> bool:
        """Whether there is anything to replace."""
        return bool(self._chains or self._microsoft or self._idle)

    def rewritten(self) -> GraphView:
        """The graph with all of them replaced."""
        writer = self._writer
        for index, node in enumerate(self._graph.nodes):
            if index in self._idle:
                operand = self._idle[index]
                writer.rename(node.output[0], writer.current(operand))
                for gone in (index, *self._conditions.get(index, ())):
                    writer.place_with(gone, self._graph.producers[operand])
            elif index in self._chains:
                self._write_chain(self._chains[index])
            elif index not in self._dropped:
                copy = writer.copied(node)
                if index in self._microsoft:
                    copy.domain = ""
                writer.write(index, copy)
        return writer.written()

    def _write_chain(self, chain: Quantizing | Dequantizing) -> None:
        writer = self._writer
        last = self._graph.nodes[chain.nodes[-1]]
        name, operand = last.output[0], writer.current(chain.operand)
        writer.place_next(chain.nodes)
        scale = chain.scale.astype(np.float32)
        if isinstance(chain, Dequantizing):
            point = self._point(name, scale, np.asarray(chain.zero, chain.dtype), chain.axis)
            self._add("DequantizeLinear", [operand, *point], name, last.name, chain.axis)
            return
        point = self._point(name, scale, np.full(scale.shape, chain.zero, chain.dtype), chain.axis)
        makers = ["QuantizeLinear"]
        makers += ["Clip"] * _is_clipped(chain)
        makers += ["DequantizeLinear"] * chain.makes_floats
        for op in makers:
            made = name if op == makers[-1] else writer.unique(f"{name}: {op}")
            ends = [
                writer.constant(np.array(end, chain.dtype), f"{name}: {which} integer")
                for end, which in ((chain.low, "lowest"), (chain.high, "highest"))
                if op == "Clip"
            ]
            self._add(op, [operand, *(ends or point)], made, last.name, None if ends else chain.axis)
            operand = made

    def _point(self, name: str, scale: npt.NDArray[Any], zero: npt.NDArray[Any], axis: int | None) -> tuple[str, str]:
        """Names of the scale and the zero point, of one element where there is no axis."""
        shape = () if axis is None else (-1,)
        return (
            self._writer.constant(scale.reshape(shape), f"{name}: scale"),
            self._writer.constant(zero.reshape(shape), f"{name}: zero point"),
        )

    def _add(self, op: str, inputs: list[str], output: str, name: str, axis: int | None) -> None:
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        self._writer.add(op, inputs, output, name, **attributes)


def _is_microsoft(graph: GraphView, index: int) -> bool:
    """Whether a node is onnxruntime's operator for bytes, with a scale that ONNX's has as well."""
    node = graph.nodes[index]
    if node.domain != MICROSOFT or node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return False
    if len(node.input) < 3:
        return False
    sizes = graph.dims(node.input[1])
    if sizes is None or (sizes and graph.opset < _PER_CHANNEL_SINCE):
        return False
    is_block = any(a.name == "block_size" and a.i for a in node.attribute)
    # Floats have the type of the scale, and integers that of the zero point.
    is_plain = graph.elem_type(node.input[1]) == onnx.TensorProto.FLOAT and graph.elem_type(node.input[2]) in _BYTES
    return is_plain and not is_block and len(sizes) < 2


def _is_idle(graph: GraphView, index: int) -> bool:
    """Whether a node gives the bytes, or the dequantized floats, that another node makes as they are."""
    node = graph.nodes[index]
    if not is_standard_op(node, "Cast", "Identity") or node.input[0] not in graph.producers:
        return False
    kinds = [graph.elem_type(name) for name in (node.input[0], node.output[0])]
    maker = graph.nodes[graph.producers[node.input[0]]]
    is_dequantized = maker.op_type == "DequantizeLinear" and kinds[0] == onnx.TensorProto.FLOAT
    if kinds[0] != kinds[1] or not (kinds[0] in _BYTES or is_dequantized) or node.output[0] in graph.outputs:
        return False
    # A graph within a node names what it reads.
    return all(node.output[0] in graph.nodes[reader].input for reader in graph.readers.get(node.output[0], ()))


def _is_of_numbers(graph: GraphView, index: int) -> bool:
    """Whether a node chooses between a number and dequantized floats, by whether these are NaN, and is the only one."""
    node = graph.nodes[index]
    if not is_standard_op(node, "Where") or node.output[0] in graph.outputs:
        return False
    condition = graph.producers.get(node.input[0], -1)
    if condition < 0 or not is_standard_op(graph.nodes[condition], "IsNaN"):
        return False
    if graph.only_reader(node.input[0]) != index:
        return False
    dims = graph.dims(node.input[2])
    is_alike = dims is not None and dims == graph.dims(node.output[0]) and graph.number(node.input[1]) is not None
    return is_alike and all(_is_dequantized(graph, name) for name in (graph.nodes[condition].input[0], node.input[2]))


def _is_dequantized(graph: GraphView, name: str) -> bool:
    """Whether a value is bytes times finite scales."""
    index = graph.producers.get(name, -1)
    if index < 0 or graph.nodes[index].op_type != "DequantizeLinear":
        return False
    scale = graph.values_of(graph.nodes[index].input[1])
    return scale is not None and bool(np.isfinite(scale).all())
