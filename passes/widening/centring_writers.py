"""What is stored and written to a residual stream, so that it can be centred where it is stored.

A layer writes ``W x + b``, whose mean over features is zero if that of the columns of ``W`` and of ``b`` is. Where a
stored scale follows (``g * (W x + b)``, the layer scale of deep vision transformers), it is multiplied into both first,
up to its root mean square, which stays behind as the scale of every feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.feature_maps.maps import FeatureMaps
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of, is_masked, replace_values
from sift_onnx.operators.weight_operands import FOLDABLE

__all__ = ["Written", "written_by"]

# Linear in the weight, whose features are those of the output.
_LINEAR = FOLDABLE | {"Gather", "MatMul"}
# A mean that is smaller by this factor than what it is of is zero, up to the precision of the type.
_PRECISIONS = 16


@dataclass(frozen=True)
class Written:
    """Stored tensors that make a tensor of a stream.

    Attributes:
        parameters: each with its axis of features.
        scale: a vector of factors that what they make is multiplied by, if there is one.
    """

    parameters: tuple[tuple[gs.Constant, int], ...]
    scale: gs.Constant | None = None

    def centre(self) -> None:
        """Centre the parameters; in place."""
        factors, common = np.ones(1), 1.0
        if self.scale is not None:
            factors = array_of(self.scale).astype(np.float64).reshape(-1)
            common = float(np.sqrt(np.mean(factors**2)))
            replace_values(self.scale, np.full_like(array_of(self.scale), common))
        for constant, axis in self.parameters:
            if is_masked(constant):
                continue  # centred already
            values = array_of(constant)
            along = [-1 if i == axis else 1 for i in range(values.ndim)]
            scaled = values * (factors / common).reshape(along)
            replace_values(constant, (scaled - scaled.mean(axis=axis, keepdims=True)).astype(dtype_of(constant)))


def written_by(tensor: gs.Tensor, analysis: AxisAnalysis, maps: FeatureMaps) -> Written | None:
    """The stored tensors that make ``tensor``, if they can be centred and make nothing else.

    Args:
        tensor: one axis of which grows.
        analysis: of the original.
        maps: where its features lie.
    """
    stored = constant_values(tensor)
    if stored is not None:
        # Whoever else reads it belongs to the stream as well.
        axis = _feature_axis(tensor, maps)
        return Written(((stored, axis),)) if _is_free(stored, axis) else None
    if not tensor.inputs:
        return None
    node = tensor.inputs[0]
    if node.op == "Mul":
        return _scaled(node, analysis, maps)
    return _layer(node, analysis, maps)


def _layer(node: gs.Node, analysis: AxisAnalysis, maps: FeatureMaps) -> Written | None:
    layer = maps.layer_at(maps.index_of(node))
    if layer is None or len(layer.uses) != 1 or layer.name in analysis.fixed:
        return None
    if node.op not in _LINEAR or int(node.attrs.get("group", 1)) != 1:
        return None
    if _feature_axis(node.outputs[0], maps) != _features_made(node, layer.kind, analysis, maps):
        return None
    found = [(layer.constant, layer.out_axis)]
    for bias in node.inputs[2:]:
        constant = constant_values(bias)
        if constant is None or len(bias.outputs) != 1 or not maps.grows(bias.name):
            return None
        found.append((constant, _feature_axis(bias, maps)))
    return Written(tuple(found)) if all(_is_free(constant, axis) for constant, axis in found) else None


def _scaled(node: gs.Node, analysis: AxisAnalysis, maps: FeatureMaps) -> Written | None:
    """A layer, with a bias behind it or not, times a stored vector."""
    sides: Mapping[bool, gs.Tensor] = {constant_values(tensor) is not None: tensor for tensor in node.inputs}
    if len(sides) != 2:
        return None
    scale, x = constant_values(sides[True]), sides[False]
    if scale is None or is_masked(scale) or len(sides[True].outputs) != 1 or not maps.grows(sides[True].name):
        return None
    if array_of(scale).size != max(array_of(scale).shape) or len(x.outputs) != 1 or not x.inputs:
        return None
    parameters: list[tuple[gs.Constant, int]] = []
    if x.inputs[0].op == "Add":
        for summand in x.inputs[0].inputs:
            stored = constant_values(summand)
            if stored is None:
                x = summand
            elif len(summand.outputs) == 1 and maps.grows(summand.name):
                parameters.append((stored, _feature_axis(summand, maps)))
            else:
                return None
        if len(x.outputs) != 1 or not x.inputs:
            return None
    layer = _layer(x.inputs[0], analysis, maps)
    if layer is None or any(is_masked(c) or dtype_of(c).kind in "iub" for c, _ in (*layer.parameters, *parameters)):
        return None
    return Written((*layer.parameters, *parameters), scale)


def _feature_axis(tensor: gs.Tensor, maps: FeatureMaps) -> int:
    return next(axis.axis for axis in maps.extents(tensor.name) if axis.grows)


def _features_made(node: gs.Node, kind: str, analysis: AxisAnalysis, maps: FeatureMaps) -> int:
    rank = len(maps.extents(node.outputs[0].name))
    if kind == "conv":
        return 1
    left = node.inputs[0]
    is_left = kind != "embedding" and (left.name in analysis.derived or constant_values(left) is not None)
    return rank - 2 if is_left else rank - 1


def _is_free(constant: gs.Constant, axis: int) -> bool:
    """Whether a constant can be centred: no mask holds zeros in it, or its mean is zero already."""
    if dtype_of(constant).kind in "iub":
        return False
    if not is_masked(constant):
        return True
    values = array_of(constant)
    largest = float(np.abs(values).max(initial=0))
    mean = float(np.abs(values.mean(axis=axis, dtype=np.float64)).max(initial=0))
    return mean <= _PRECISIONS * float(np.finfo(values.dtype).eps) * largest
