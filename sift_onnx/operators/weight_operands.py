"""Which inputs of an operator are parameters of a layer, and which axes of its weight are features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BIAS",
    "CHANNEL_NORMALIZATIONS",
    "CONVOLUTIONS",
    "FOLDABLE",
    "INTEGER_LAYERS",
    "MATRIX_PRODUCTS",
    "NORMALIZATIONS",
    "PARAMETERS",
    "STATISTICS",
    "WEIGHT",
    "Parameters",
    "feature_axes",
]


@dataclass(frozen=True)
class Parameters:
    """Positions of the inputs of an operator that are parameters.

    Attributes:
        weights: that may be the weight, by which activations are multiplied or in which they are looked up.
        scales: factors of single features.
        shifts: that are added to features.
        statistics: running mean and variance.
        feature_axes: of output and input features in the weight, where neither its position nor attributes change them.
    """

    weights: tuple[int, ...] = ()
    scales: tuple[int, ...] = ()
    shifts: tuple[int, ...] = ()
    statistics: tuple[int, ...] = ()
    feature_axes: tuple[int, int] | None = None

    @property
    def trained(self) -> tuple[int, ...]:
        """All that training changes."""
        return (*self.weights, *self.scales, *self.shifts)


# Of Conv, ConvTranspose and Gemm.
WEIGHT, BIAS = 1, 2
STATISTICS = (3, 4)

_CONVOLUTION = Parameters(weights=(WEIGHT,), shifts=(BIAS,), feature_axes=(0, 1))
_PRODUCT = Parameters(weights=(0, 1))
_GEMM = Parameters(weights=(0, 1), shifts=(BIAS,))
_RECURRENT = Parameters(weights=(1, 2), shifts=(3,), feature_axes=(1, 2))
_NORMALIZATION = Parameters(scales=(1,), shifts=(2,))

# By operator type; fused ones are of com.microsoft.
PARAMETERS: dict[str, Parameters] = {
    "BatchNormalization": Parameters(scales=(1,), shifts=(2,), statistics=STATISTICS),
    "CausalConvWithState": _CONVOLUTION,
    "Conv": _CONVOLUTION,
    "ConvTranspose": Parameters(weights=(WEIGHT,), shifts=(BIAS,), feature_axes=(1, 0)),
    "DeformConv": Parameters(weights=(WEIGHT,), shifts=(3,), feature_axes=(0, 1)),
    "Einsum": Parameters(weights=(0, 1, 2, 3)),
    "FusedConv": _CONVOLUTION,
    "FusedGemm": _GEMM,
    "FusedMatMul": _PRODUCT,
    "GRU": _RECURRENT,
    "Gather": Parameters(weights=(0,)),
    "Gemm": _GEMM,
    "GroupNormalization": _NORMALIZATION,
    "InstanceNormalization": _NORMALIZATION,
    # Peepholes are factors of single features.
    "LSTM": Parameters(weights=(1, 2), scales=(7,), shifts=(3,), feature_axes=(1, 2)),
    "LayerNormalization": _NORMALIZATION,
    "MatMul": _PRODUCT,
    "PRelu": Parameters(scales=(1,)),
    "RMSNormalization": Parameters(scales=(1,)),
    "RNN": _RECURRENT,
    "SimplifiedLayerNormalization": Parameters(scales=(1,)),
    "TransposeMatMul": _PRODUCT,
}
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "FusedConv"})
MATRIX_PRODUCTS = frozenset({"FusedGemm", "FusedMatMul", "Gemm", "MatMul", "TransposeMatMul"})
# A BatchNormalization that follows can be folded into these.
FOLDABLE = frozenset({"Conv", "ConvTranspose", "Gemm"})
NORMALIZATIONS = frozenset(op for op in PARAMETERS if op.endswith("Normalization"))

# Their parameters are one for each channel (axis 1); those of the others run along the last axes.
CHANNEL_NORMALIZATIONS = frozenset({"BatchNormalization", "GroupNormalization", "InstanceNormalization"})

# Operators whose weights are integers: the inputs that are the weight and its zero point.
INTEGER_LAYERS = {
    "ConvInteger": (1, 3),
    "DynamicQuantizeMatMul": (1, 3),
    "MatMulInteger": (1, 3),
    "MatMulIntegerToFloat": (1, 5),
    "QGemm": (3, 5),
    "QLinearConv": (3, 5),
    "QLinearMatMul": (3, 5),
}


def feature_axes(op: str, attributes: Mapping[str, Any], position: int, rank: int) -> tuple[int, int] | None:
    """The axes of output and input features of a weight, or None where there is no single one of each.

    Args:
        op: the operator that multiplies by the weight.
        attributes: of the node.
        position: of the input that is the weight.
        rank: number of its axes.
    """
    if op in MATRIX_PRODUCTS:
        return _of_product(attributes, position, rank)
    if op == "Einsum":
        return _of_einsum(str(attributes["equation"]), position, rank)
    parameters = PARAMETERS.get(op)
    return parameters.feature_axes if parameters is not None and position in parameters.weights else None


def _of_product(attributes: Mapping[str, Any], position: int, rank: int) -> tuple[int, int] | None:
    """Of ``[..., rows, columns]``: rows are outputs on the left side, columns on the right, unless transposed."""
    if position > 1 or rank < 2:
        return None
    transposed = bool(attributes.get("transB" if position else "transA", 0))
    return (rank - 1, rank - 2) if bool(position) != transposed else (rank - 2, rank - 1)


def _of_einsum(equation: str, position: int, rank: int) -> tuple[int, int] | None:
    """A product of two: what only the weight has and the result keeps is output, what the result drops is input."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    terms = operands.split(",")
    if not arrow or len(terms) != 2 or "." in operands or len(terms[position]) != rank:
        return None
    own, other = terms[position], terms[1 - position]
    out = [i for i, label in enumerate(own) if label in result and label not in other]
    summed = [i for i, label in enumerate(own) if label in other and label not in result]
    return (out[0], summed[0]) if out and summed else None
