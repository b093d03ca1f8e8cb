"""What a mean over added zeros does to all that is computed from it, until a stored number takes it back.

The mean of ``D`` features of which ``d`` are old and the others zero is ``d / D`` times what it was. Exporters spell
normalizations in nodes: such a mean gets an epsilon, a root, divides the features, and a stored scale follows. So each
tensor has a factor, that of the old one which it is. An epsilon is multiplied by the factor of what it is added to; a
stored scale takes the factor back. Where there is neither, a multiplication does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_graphsurgeon as gs

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.findings import Scaling
from sift_onnx.feature_maps.maps import FeatureMaps
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of
from sift_onnx.operators.traits import REARRANGING

__all__ = ["corrections"]

# A factor of the input is one of the output.
_LINEAR = REARRANGING | {"Abs", "Cast", "CastLike", "Dropout", "Expand", "Neg", "Relu"}


def corrections(maps: FeatureMaps, contexts: Sequence[FeatureMapContext], outputs: Sequence[str]) -> list[Scaling]:
    """What has to be multiplied so that no factor remains.

    Args:
        maps: which knows the means.
        contexts: of all nodes, producers first.
        outputs: names of the graph's outputs, which have no factor.
    """
    factors = dict(maps.means)
    found: list[Scaling] = []
    if not factors:
        return found
    for ctx in contexts:
        own = [factors.get(t.name, 1.0) for t in ctx.node.inputs]
        out = ctx.node.outputs[0].name
        if out in outputs and out in maps.means:
            # What the mean is of is multiplied in its place.
            own[0] *= factors.pop(out)
        if all(factor == 1 for factor in own):
            continue
        passed = None if out in outputs else _passed(maps, ctx.node, own, found, ctx.index)
        if passed is None:
            found.extend(Scaling(ctx.index, i, 1 / factor) for i, factor in enumerate(own) if factor != 1)
        elif passed != 1:
            factors[out] = passed * factors.get(out, 1.0)
    return found


def _passed(maps: FeatureMaps, node: gs.Node, own: Sequence[float], found: list[Scaling], index: int) -> float | None:
    """The factor of the output, 1 where a stored input has taken it back; None if it needs what its inputs were."""
    if node.op in _LINEAR:
        return own[0]
    if node.op == "Sqrt":
        return math.sqrt(own[0])
    if node.op == "Reciprocal":
        return 1 / own[0]
    if node.op == "Pow":
        exponent = _number(node.inputs[1])
        return None if exponent is None else math.pow(own[0], exponent)
    if node.op in ("Add", "Sub"):
        return _sum(node, own, found, index)
    if node.op in ("Mul", "Div"):
        factor = own[0] * own[1] if node.op == "Mul" else own[0] / own[1]
        # A number that all features share may be a part of a root; the scale of each feature is the end of a norm.
        stored = next((i for i, t in enumerate(node.inputs) if _is_stored(t) and maps.grows(t.name)), None)
        if stored is None or factor == 1:
            return factor
        found.append(Scaling(index, stored, factor if node.op == "Div" and stored else 1 / factor))
        return 1.0
    return None


def _sum(node: gs.Node, own: Sequence[float], found: list[Scaling], index: int) -> float | None:
    if own[0] == own[1]:
        return own[0]
    stored = next((i for i, tensor in enumerate(node.inputs) if _is_stored(tensor)), None)
    if stored is None:
        return None
    factor = own[1 - stored]
    found.append(Scaling(index, stored, factor))
    return factor


def _is_stored(tensor: gs.Tensor) -> bool:
    constant = constant_values(tensor)
    return constant is not None and dtype_of(constant).kind not in "iub"


def _number(tensor: gs.Tensor) -> float | None:
    constant = constant_values(tensor)
    if constant is None or array_of(constant).size != 1:
        return None
    return float(array_of(constant).reshape(-1)[0])
