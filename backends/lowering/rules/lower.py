"""Which rule an operator has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sift_onnx.backends.lowering.contradictions import CONTRADICTIONS
from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.rules import (
    convolution,
    decoding,
    einsum,
    elementwise,
    functions,
    grid_sample,
    joining,
    matrix,
    moving,
    normalization,
    pooling,
    quantize,
    recurrent,
    repeating,
    reshaping,
    resize,
    scattering,
    selecting,
    selection,
    slicing,
)
from sift_onnx.backends.lowering.rules.flat_images import (
    cut_channels,
    is_flat,
    joined_channels,
    needs_images,
    steps_on_images,
)
from sift_onnx.backends.lowering.rules.quantized_layers import (
    convolution_of_bytes,
    dequantized_layer,
    dequantized_operand,
)
from sift_onnx.backends.lowering.rules.step import QUANTIZED, NodeView, NotLowered, Step, View
from sift_onnx.backends.lowering.rules.stored_integers import fold_dequantized
from sift_onnx.backends.lowering.rules.transposed_convolution import transposed_convolution
from sift_onnx.backends.lowering.specs import LinearResize
from sift_onnx.operators.domains import MICROSOFT, is_standard
from sift_onnx.operators.registry import Registry

__all__ = ["lower_node"]

_RULES: Registry[Callable[[NodeView], Step | tuple[Step, ...]]] = Registry("a lowering rule")
_RULES.add_table({
    "Conv": convolution.convolution,
    "ConvTranspose": transposed_convolution,
    "BatchNormalization": convolution.batch_normalization,
    "LayerNormalization": normalization.layer_normalization,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), normalization.rms_normalization),
    "InstanceNormalization": normalization.instance_normalization,
    "GroupNormalization": normalization.group_normalization,
    **dict.fromkeys(("Softmax", "LogSoftmax"), normalization.softmax),
    "CumSum": normalization.cumulative_sum,
    "MatMul": matrix.matmul,
    "Einsum": einsum.einsum,
    "Gemm": matrix.gemm,
    **dict.fromkeys(("Relu", "Clip", "LeakyRelu", "HardSigmoid", "HardSwish"), functions.activation),
    **dict.fromkeys(("Sigmoid", "Tanh", "Gelu", "Mish", "Elu", "Selu", "Abs"), functions.activation),
    **dict.fromkeys(("Max", "Min"), functions.bounded),
    "PRelu": elementwise.parametric_relu,
    "Pow": functions.power,
    **dict.fromkeys(("Sqrt", "Reciprocal", "Exp", "Log", "Sin", "Cos", "Softplus"), functions.unary_function),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), elementwise.arithmetic),
    "MaxPool": pooling.pool,
    "AveragePool": pooling.pool,
    "GlobalAveragePool": pooling.global_average_pool,
    "GlobalMaxPool": pooling.global_max_pool,
    "ReduceMean": pooling.reduce_mean,
    "ReduceSum": pooling.reduce_sum,
    **dict.fromkeys(("ReduceL2", "ReduceSumSquare"), pooling.reduce_square_sum),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), pooling.reduce_extreme),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent.recurrent_layer),
    "Transpose": moving.transpose,
    "Concat": joining.concat,
    "Split": slicing.split,
    "Slice": slicing.slice_,
    **dict.fromkeys(("Gather", "GatherND"), slicing.gather),
    **dict.fromkeys(("ArgMax", "ArgMin"), selection.arg_extreme),
    "TopK": selection.top_k,
    "GatherElements": selection.gather_elements,
    **dict.fromkeys(("ScatterElements", "Scatter"), scattering.scatter_elements),
    "ScatterND": scattering.scatter_nd,
    "Resize": resize.resize,
    "Upsample": resize.upsample,
    "Pad": resize.pad,
    "DepthToSpace": resize.depth_to_space,
    "GridSample": grid_sample.grid_sample,
    "Sign": functions.sign,
    "Flatten": reshaping.flatten,
    "Reshape": reshaping.reshape,
    "Squeeze": reshaping.squeeze,
    "Unsqueeze": reshaping.unsqueeze,
    "Expand": repeating.expand,
    "Tile": repeating.tile,
    "Neg": elementwise.negate,
    "Where": selecting.selection,
    "Cast": reshaping.cast,
    "Identity": reshaping.identity,
    "Dropout": reshaping.identity,
    "QuantizeLinear": quantize.quantize,
    "DequantizeLinear": quantize.dequantize,
    "QLinearConv": quantize.quantized_convolution,
    "QLinearMatMul": quantize.quantized_matmul,
    "RotaryEmbedding": decoding.rotary_embedding,
    "Attention": decoding.attention,
})  # fmt: skip
_RULES.add_table({
    "Gelu": functions.activation,
    **dict.fromkeys(("BiasGelu", "FastGelu"), elementwise.biased_gelu),
    "QGemm": quantize.quantized_gemm,
    "QLinearAdd": quantize.quantized_add,
    "QLinearMul": quantize.quantized_product,
    "QLinearGlobalAveragePool": quantize.quantized_mean,
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu"), quantize.quantized_activation),
    "QLinearAveragePool": quantize.quantized_average,
    "QLinearConcat": quantize.quantized_concat,
    "RotaryEmbedding": decoding.rotary_embedding,
    "GroupQueryAttention": decoding.group_query_attention,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), decoding.skip_normalization),
}, MICROSOFT)  # fmt: skip
# What takes bytes as it takes floats: it moves them, takes the largest, or cuts them off. Two of them have numbers.
_OF_BYTES = frozenset({
    "Cast", "Clip", "Concat", "Flatten", "Identity", "MaxPool", "Pad", "Reshape", "Resize", "Slice", "Split", "Squeeze",
    "Transpose", "Unsqueeze",
})  # fmt: skip
_WITH_BYTES: Mapping[str, Callable[[NodeView], Step | tuple[Step, ...]]] = {
    "Clip": quantize.clipped_bytes, "Pad": quantize.padded_bytes,
}  # fmt: skip

# What only changes the axes of the integers that kernels make.
_OF_INTEGERS = frozenset({"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Unsqueeze"})


def lower_node(graph: GraphView, index: int, views: Mapping[str, View], dims: Mapping[str, Dims]) -> tuple[Step, ...]:
    """The steps for a node of ``graph``, one for each of its outputs that is read.

    Args:
        graph: the model.
        index: of the node.
        views: of the values that steps before it make.
        dims: sizes of these values.

    Raises:
        NotLowered: the kernels do not have it; the message says why.
    """
    node = NodeView(graph, index, views, dims)
    rule = _RULES.find(node.op, node.proto.domain)
    if rule is None:
        raise NotLowered("no kernel for this operator")
    try:
        fold_dequantized(node)
        if is_flat(node):
            try:
                return _on_images(node, rule)
            except NotLowered:
                if needs_images(node):
                    raise
        made = _of_bytes(node, rule) or _of_integers(node, rule) or dequantized_layer(node) or rule(node)
        steps = made if isinstance(made, tuple) else (made,)
        if node.op in ("Slice", "Split"):
            steps = cut_channels(node, steps)
    except NotLowered:
        raise
    except CONTRADICTIONS as error:
        # In numpy's own words.
        operands = ", ".join(_in_words(graph, name) for name in node.proto.input if name)
        raise NotLowered(f"its operands and attributes do not fit each other: {operands}") from error
    return steps


def _in_words(graph: GraphView, name: str) -> str:
    """A value by its name and sizes; of those that are open, ``?``."""
    dims = graph.dims(name)
    if dims is None:
        return f"{name!r} of unknown shape"
    return f"{name!r} of shape [{', '.join(str(size) if isinstance(size, int) else '?' for size in dims)}]"


def _on_images(node: NodeView, rule: Callable[[NodeView], Step | tuple[Step, ...]]) -> tuple[Step, ...]:
    """The steps of a node on images of one axis."""
    found = dequantized_operand(node)
    if found is not None:
        operand, x = found
        return steps_on_images(node, lambda seen: convolution_of_bytes(seen, seen.input(0), x), operand)
    rule = joined_channels if node.op == "Concat" else rule
    if _moves_bytes(node):
        return steps_on_images(replace(node, types=QUANTIZED), lambda seen: _of_bytes(seen, rule))
    return steps_on_images(node, rule)


def _of_bytes(node: NodeView, rule: Callable[[NodeView], Step | tuple[Step, ...]]) -> tuple[Step, ...]:
    """The steps of a node that moves quantized values; none for another node."""
    if not _moves_bytes(node):
        return ()
    of_bytes = _WITH_BYTES.get(node.op)
    made = rule(replace(node, types=QUANTIZED)) if of_bytes is None else of_bytes(node)
    steps = made if isinstance(made, tuple) else (made,)
    if any(isinstance(step.spec, LinearResize) for step in steps):
        raise NotLowered("no kernel interpolates bytes")
    return tuple(replace(step, dtype=DType.UINT8, result_dtype=DType.UINT8) for step in steps)


def _moves_bytes(node: NodeView) -> bool:
    if node.op not in _OF_BYTES or not is_standard(node.proto.domain) or not node.proto.input:
        return False
    kind = node.graph.elem_type(node.proto.input[0])
    return any(kind == dtype.onnx_type for dtype in QUANTIZED)


def _of_integers(node: NodeView, rule: Callable[[NodeView], Step | tuple[Step, ...]]) -> tuple[Step, ...]:
    """The steps of a node that changes the axes of integers; none for another node."""
    if node.op not in _OF_INTEGERS or not is_standard(node.proto.domain) or not selection.makes_integers(node, 0):
        return ()
    made = rule(replace(node, types=(DType.INT64,)))
    steps = made if isinstance(made, tuple) else (made,)
    return tuple(replace(step, dtype=DType.INT64, result_dtype=DType.INT64) for step in steps)
