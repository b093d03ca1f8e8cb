"""What operators without weights cost, in steps of one SIMD lane per element.

The counts are assumed: they are what a straightforward vector implementation needs, with divisions, square roots and
exponentials by a few Newton or polynomial steps. They matter little next to the weights; the report lists them apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sift_onnx.backends.dataflow.workloads.workload import WeightlessOp
from sift_onnx.operators.traits import MOVING, REARRANGING, SHAPE_READING

__all__ = ["VIEWS", "cost_of"]

# Rename, reshape or compute shapes: nothing moves. A Transpose does move what it reads.
VIEWS = (
    (REARRANGING - {"Transpose"})
    | SHAPE_READING
    | set("Cast Constant ConstantOfShape DequantizeLinear Dropout QuantizeLinear Range StopGradient".split())
)

_COPIES = (MOVING - VIEWS) | frozenset(
    "GatherND GatherElements Pad Resize Upsample DepthToSpace SpaceToDepth ScatterND ScatterElements Scatter Trilu "
    "Compress OneHot EyeLike Unique NonZero ReverseSequence".split()
)

# Steps per input element, and reductions along a row of cores.
_REDUCTIONS = {
    "Softmax": (8, 2),
    "LogSoftmax": (9, 2),
    "LayerNormalization": (8, 2),
    "SkipLayerNormalization": (9, 2),
    "EmbedLayerNormalization": (9, 2),
    "SimplifiedLayerNormalization": (6, 1),
    "SkipSimplifiedLayerNormalization": (7, 1),
    "RMSNormalization": (6, 1),
    "GroupNormalization": (8, 2),
    "InstanceNormalization": (8, 2),
    "GlobalAveragePool": (1, 1),
    "GlobalMaxPool": (1, 1),
    "ArgMax": (2, 1),
    "ArgMin": (2, 1),
    "TopK": (4, 1),
    "CumSum": (1, 1),
    **{f"Reduce{name}": (1, 1) for name in ("Mean", "Sum", "Max", "Min", "Prod")},
    **{f"Reduce{name}": (2, 1) for name in ("L1", "L2", "SumSquare", "LogSum", "LogSumExp")},
}

# Steps per output element.
_ELEMENTWISE = {
    "Add": 1, "Sub": 1, "Mul": 1, "Neg": 1, "Abs": 1, "Max": 1, "Min": 1, "Relu": 1, "Not": 1, "And": 1, "Or": 1,
    "Equal": 1, "Less": 1, "Greater": 1, "LessOrEqual": 1, "GreaterOrEqual": 1, "Where": 1, "Sign": 1, "Xor": 1,
    "Sum": 1, "Mod": 4, "Floor": 1, "Ceil": 1, "Round": 1, "IsNaN": 1, "IsInf": 1,
    "Clip": 2, "LeakyRelu": 2, "PRelu": 2, "HardSigmoid": 3, "HardSwish": 4, "BatchNormalization": 2,
    "Div": 4, "Reciprocal": 4, "Sqrt": 4, "Exp": 4, "Log": 6, "Pow": 4, "Sin": 6, "Cos": 6,
    "Sigmoid": 8, "Tanh": 8, "Erf": 8, "Softplus": 10, "Softsign": 5, "Elu": 6, "Selu": 7, "Celu": 7, "Mish": 14,
    "Gelu": 10, "FastGelu": 12, "BiasGelu": 11, "QuickGelu": 9, "Swish": 9, "RotaryEmbedding": 3,
}  # fmt: skip
_WINDOWS = ("MaxPool", "AveragePool", "LpPool")
# An operator without an entry does this much per output element.
_UNKNOWN_STEPS = 4


def cost_of(
    op: str, node: str, attributes: Mapping[str, Any], reads: Sequence[int], writes: Sequence[int]
) -> tuple[WeightlessOp, bool]:
    """The cost of a node that multiplies no weights and no two activations.

    Args:
        op: its operator.
        node: its name.
        attributes: as ONNX has them.
        reads: elements of each activation that it reads.
        writes: elements of each tensor that it makes.

    Returns:
        The cost, and whether the operator is one that the tables know.
    """
    elements_in, elements_out = sum(reads), sum(writes)
    if op in _COPIES:
        return WeightlessOp(node, op, "copy", 0, elements_out, elements_out), True
    if op in _REDUCTIONS:
        steps, passes = _REDUCTIONS[op]
        return WeightlessOp(node, op, "reduction", steps * max(elements_in, 1), elements_in, elements_out, passes), True
    if op in _WINDOWS:
        taps = math.prod(attributes.get("kernel_shape", (1,)))
        return WeightlessOp(node, op, "elementwise", taps * elements_out, elements_in, elements_out), True
    steps = _ELEMENTWISE.get(op, _UNKNOWN_STEPS)
    return WeightlessOp(node, op, "elementwise", steps * elements_out, elements_in, elements_out), op in _ELEMENTWISE
