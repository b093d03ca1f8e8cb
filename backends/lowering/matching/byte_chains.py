"""Functions of one dequantized value that are quantized again, of which the kernels have no operator on floats.

On bytes any function is a table. Its 256 values are what the reference evaluator of onnx makes of the operand's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op

__all__ = ["ByteFunction", "find_byte_functions", "values_made"]

# Element by element, without kernels of their own.
_WITHOUT_KERNEL = frozenset({
    "Abs", "Asin", "Atan", "Ceil", "Celu", "Cos", "Erf", "Exp", "Floor", "Log", "Max", "Min", "Pow", "Reciprocal",
    "Round", "Shrink", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Swish", "ThresholdedRelu",
})  # fmt: skip
_WITH_KERNEL = frozenset({
    "Add", "Clip", "Div", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mul", "Neg", "Relu", "Selu",
    "Sigmoid", "Sub", "Tanh",
})  # fmt: skip
# Of a function: GELU in nodes has six.
_MOST_NODES = 12


@dataclass(frozen=True)
class ByteFunction:
    """One occurrence.

    Attributes:
        nodes: indices of the function's nodes, and last of the one that quantizes its result.
        dequantizer: the node that makes its operand.
    """

    nodes: tuple[int, ...]
    dequantizer: onnx.NodeProto


def find_byte_functions(graph: GraphView) -> list[ByteFunction]:
    """All occurrences whose floats no other node reads."""
    readers = (i for i, node in enumerate(graph.nodes) if is_standard_op(node, "QuantizeLinear"))
    found = (_match(graph, index) for index in readers)
    return [function for function in found if function is not None]


def _match(graph: GraphView, quantizer: int) -> ByteFunction | None:
    nodes = {quantizer}
    operand: onnx.NodeProto | None = None
    waiting = [graph.nodes[quantizer].input[0]]
    while waiting:
        name = waiting.pop()
        if _is_number(graph, name):
            continue
        maker = graph.producers.get(name)
        if maker is None or maker in nodes or len(nodes) > _MOST_NODES:
            return None
        node = graph.nodes[maker]
        if is_standard_op(node, "DequantizeLinear"):
            if operand is not None and list(node.input) != list(operand.input):
                return None
            operand = node
            continue
        if not is_standard_op(node, *_WITHOUT_KERNEL, *_WITH_KERNEL):
            return None
        nodes.add(maker)
        waiting += dict.fromkeys(filter(None, node.input))
    inner = sorted(nodes - {quantizer})
    if operand is None or not any(graph.nodes[index].op_type in _WITHOUT_KERNEL for index in inner):
        return None
    if max(nodes) != quantizer or not all(graph.is_only_read_by(graph.nodes[i].output[0], nodes) for i in inner):
        return None
    return ByteFunction((*inner, quantizer), operand)


def _is_number(graph: GraphView, name: str) -> bool:
    constant = graph.constants.get(name)
    return constant is not None and all(size == 1 for size in constant.shape)


def values_made(
    graph: GraphView, function: ByteFunction, values: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32] | None:
    """What a function makes of each of ``values``; None where that is not known, or not finite."""
    # Its import takes long, and few models need it.
    from onnx.reference import ReferenceEvaluator

    *inner, quantizer = (graph.nodes[index] for index in function.nodes)
    start, end = function.dequantizer.output[0], quantizer.input[0]
    made_inside = {name for node in inner for name in node.output}
    feeds: dict[str, npt.NDArray[np.generic] | None] = {
        name: graph.values_of(name) for node in inner for name in node.input if name and name not in made_inside
    }
    # Another node may dequantize the same bytes.
    feeds = {name: values if value is None else value.reshape(-1) for name, value in feeds.items()}
    ends = [onnx.ValueInfoProto(name=name) for name in (*feeds, end)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(inner, "function", ends[:-1], ends[-1:]),
        opset_imports=[onnx.helper.make_opsetid("", graph.opset)],
    )
    try:
        with np.errstate(all="ignore"):
            (made,) = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # what the reference cannot compute, onnxruntime can, or says what is wrong with it
        return None
    if start not in feeds or not isinstance(made, np.ndarray) or made.shape != values.shape:
        return None
    return made.astype(np.float32) if np.isfinite(made).all() else None
