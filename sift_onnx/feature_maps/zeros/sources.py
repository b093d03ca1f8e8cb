"""Which inputs of a node have to be zero where features are added, so that its output is.

A rule gives alternatives, best first; each is a list of inputs that all have to be zero. No alternative means that the
added features are something else whatever is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.findings import Extent
from sift_onnx.graphs.constants import array_of, constant_values
from sift_onnx.operators.einsum_terms import einsum_terms
from sift_onnx.operators.traits import REARRANGING
from sift_onnx.operators.weight_operands import CONVOLUTIONS, MATRIX_PRODUCTS

__all__ = ["zero_sources"]

Alternatives = list[list[int]]
Rule = Callable[[FeatureMapContext, Sequence[Extent]], Alternatives]

# Weight layers with a rule of their own.
_WEIGHTED = {"Einsum", "GRU", "Gather", "LSTM", "RNN"}
# Functions that are zero at zero.
_ZERO_AT_ZERO = frozenset(
    """
    Abs Asin Asinh Atan Ceil Celu Elu Erf Floor Gelu HardSwish LeakyRelu Mish Neg QuickGelu Relu Round Selu Shrink Sign
    Sin Sinh Softsign Sqrt Swish Tan Tanh ThresholdedRelu
    """.split()
)
# The output of a SkipSimplifiedLayerNormalization that is the sum.
_SUM_OUTPUT = 3
# Whose added elements come from the added elements of the first input alone.
_MOVED = REARRANGING | {
    *("Cast", "CastLike", "CenterCropPad", "Col2Im", "CumSum", "DepthToSpace", "Dropout", "Gather", "GatherND"),
    *("GridSample", "MaxRoiPool", "RoiAlign", "RotaryEmbedding", "Slice", "SpaceToDepth", "Split", "Tile", "Trilu"),
}
_POOLED = frozenset(
    "AveragePool MaxPool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool Resize Upsample".split()
) | {f"Reduce{name}" for name in "L1 L2 Max Mean Min Sum SumSquare".split()}


def zero_sources(ctx: FeatureMapContext, output: int = 0) -> Alternatives:
    """Alternatives of inputs that make what is added to ``output`` zero, if all of one are zero there."""
    if ctx.has_weight and ctx.node.op not in _WEIGHTED:
        return _weight_layer(ctx, ctx.output(output))
    if ctx.node.op == "SkipSimplifiedLayerNormalization" and output == _SUM_OUTPUT:
        return [[i for i in (0, 1, 3) if ctx.has_input(i)]]
    rule = _RULES.get(ctx.node.op)
    return rule(ctx, ctx.output(output)) if rule is not None else []


def _spans(operand: Sequence[Extent], out: Sequence[Extent]) -> bool:
    """Whether an operand that is broadcast to ``out`` has features of its own along every axis that grows there."""
    missing = len(out) - len(operand)
    return all(not axis.grows or (i >= missing and operand[i - missing].grows) for i, axis in enumerate(out))


def _first(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    return [[0]]


def _expanded(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    repeated = constant_values(ctx.node.inputs[0])
    if repeated is not None and not array_of(repeated).any():
        return [[]]
    return [[0]] if _spans(ctx.input(0), out) else []


def _filled(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    value = ctx.attr("value")
    return [[]] if value is None or not value.values.any() else []


def _all_operands(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    operands = [i for i in range(len(ctx.node.inputs)) if ctx.has_input(i)]
    return [operands] if all(_spans(ctx.input(i), out) for i in operands) else []


def _difference(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    # What is added minus the mean is what is added, where the mean is zero.
    return [[0]] if ctx.subtracts_mean else _all_operands(ctx, out)


def _any_factor(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    # A stored factor last: were it zero, no gradient would come to what it is multiplied with.
    factors = sorted((0, 1), key=ctx.is_parameter)
    return [[i] for i in factors if _spans(ctx.input(i), out)]


def _numerator(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    return [[0]] if _spans(ctx.input(0), out) else []


def _chosen(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    return [[1, 2]] if _spans(ctx.input(1), out) and _spans(ctx.input(2), out) else []


def _power(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    exponent = constant_values(ctx.node.inputs[1])
    return [[0]] if exponent is not None and bool((array_of(exponent) > 0).all()) else []


def _clipped(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    low, high = ctx.attr("min", -1.0), ctx.attr("max", 1.0)
    for i in (1, 2):
        bound = constant_values(ctx.node.inputs[i]) if ctx.has_input(i) else None
        if ctx.has_input(i) and bound is None:
            return []
        if bound is not None:
            value = float(array_of(bound).reshape(-1)[0])
            low, high = (value, high) if i == 1 else (low, value)
    return [[0]] if low <= 0 <= high else []


def _normalized_channels(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    channels_only = all(i == 1 or not axis.grows for i, axis in enumerate(out))
    return [[0, 2]] if channels_only and ctx.input(2)[0].grows else []


def _normalized_groups(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    shift = constant_values(ctx.node.inputs[2])
    if shift is not None and not any(axis.grows for axis in ctx.input(2)) and not array_of(shift).any():
        # The features of the only group share a shift of zero.
        return [[0]]
    return _normalized_channels(ctx, out)


def _normalized_features(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    first = int(ctx.attr("axis", -1)) % len(out)
    if any(axis.grows for axis in out[:first]):
        return []
    return [[0, 2]] if ctx.has_input(2) else [[0]]


def _joined(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    return [[i for i in range(len(ctx.node.inputs)) if any(axis.grows for axis in ctx.input(i))]]


def _written(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    return [[0, 2]]


def _padded(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    filled = constant_values(ctx.node.inputs[2]) if ctx.has_input(2) else None
    value = ctx.attr("value", 0.0) if filled is None else float(array_of(filled).reshape(-1)[0])
    return [[0]] if value == 0 else []


def _product(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    """Of activations: an added row needs zeros on the left, an added column on the right."""
    if len(out) < 2:
        return []
    sides = [i for i, axis in ((0, out[-2]), (1, out[-1])) if axis.grows]
    if any(axis.grows for axis in out[:-2]):
        sides = [i for i in (0, 1) if _spans(ctx.input(i)[:-2], out[:-2])][:1]
    bias = [2] if ctx.node.op == "Gemm" and ctx.has_input(2) else []
    return [[*sides, *bias]] if sides else []


def _attention(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    return [[2]]


def _recurrent(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    """A state that starts at zero stays there without a bias, under activations that are zero at zero."""
    if "activations" in ctx.node.attrs:
        return []
    return [[i for i in (3, 5, 6) if ctx.has_input(i)]]


def _einsum(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    operands = [ctx.input(i) for i in range(len(ctx.node.inputs))]
    terms, result = einsum_terms(str(ctx.attr("equation")), [len(axes) for axes in operands])
    growing = {label for label, axis in zip(result, out, strict=True) if axis.grows}
    if terms is None:
        return []
    pruned = any(growing <= set(term) and ctx.is_weight(i) for i, term in enumerate(terms))
    return [[]] if pruned else [[i] for i, term in enumerate(terms) if growing <= set(term)]


def _weight_layer(ctx: FeatureMapContext, out: Sequence[Extent]) -> Alternatives:
    """Added features are sums of pruned weights; whatever else grows is a row of the input."""
    if ctx.node.op not in CONVOLUTIONS | MATRIX_PRODUCTS:
        return []
    convolves = ctx.node.op in CONVOLUTIONS
    feature = 1 if convolves else len(out) + ctx.feature_axis
    others = any(axis.grows for i, axis in enumerate(out) if i != feature)
    needed = [i for i in range(2, len(ctx.node.inputs)) if ctx.has_input(i)]
    if others and (convolves or not all(_spans(ctx.input(i), out) for i in needed)):
        return []
    if others or ctx.has_fixed_weight:
        needed.append(0 if convolves or ctx.feature_axis == -1 else 1)
    return [needed]


_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ZERO_AT_ZERO | _MOVED | _POOLED | {"PRelu"}, _first),
    **dict.fromkeys(("Add", "BiasAdd", "BiasGelu", "FastGelu", "Max", "Mean", "Min", "Sum"), _all_operands),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), _normalized_groups),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _normalized_features),
    **dict.fromkeys(("FusedMatMul", "Gemm", "MatMul", "TransposeMatMul"), _product),
    "Attention": _attention,
    "BatchNormalization": _normalized_channels,
    "Clip": _clipped,
    "Concat": _joined,
    "ConstantOfShape": _filled,
    "Div": _numerator,
    "Einsum": _einsum,
    "Expand": _expanded,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "Mul": _any_factor,
    "Pad": _padded,
    "Pow": _power,
    "RNN": _recurrent,
    "ScatterND": _written,
    "Sub": _difference,
    "Where": _chosen,
}
