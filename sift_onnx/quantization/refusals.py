"""What onnxruntime's quantizer cannot take: said before it fails, and after it has left everything as it was."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_graphsurgeon as gs
from onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry

from sift_onnx.analysis.findings import AxisAnalysis, WeightLayer
from sift_onnx.analysis.quantized_layers import quantized_layers
from sift_onnx.errors import UnsupportedError, listing
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of, shape_of
from sift_onnx.operators.labels import operator_name
from sift_onnx.operators.weight_operands import WEIGHT
from sift_onnx.passes.selection import no_layers

__all__ = ["refuse_quantized", "refuse_unfit", "why_nothing"]

_OPERATORS = {"qdq": QDQRegistry, "qoperator": QLinearOpsRegistry, "dynamic": IntegerOpsRegistry}
# DequantizeLinear makes float16 from this version of ONNX's operators on.
_HALF_PRECISION = 19


def refuse_quantized(analysis: AxisAnalysis) -> None:
    """Refuse a model whose weights are integers.

    Raises:
        UnsupportedError: they are.
    """
    found = quantized_layers(analysis)
    if found:
        raise UnsupportedError(
            f"the weights of the model are quantized already ({found[0].constant.name!r}, ...); quantize the model in "
            f"floating point that it was made of"
        )


def refuse_unfit(analysis: AxisAnalysis, form: str, opset: int, excluded: Collection[str]) -> None:
    """Refuse weights that the quantizer fails for.

    Args:
        analysis: of the model.
        form: ``qdq``, ``qoperator`` or ``dynamic``.
        opset: version of ONNX's operators.
        excluded: names of nodes that stay in floating point.

    Raises:
        UnsupportedError: a weight or a bias is empty or not finite, or weights have a type that is not quantized.
    """
    fit = {"float32", "float16"} if form == "qdq" and opset >= _HALF_PRECISION else {"float32"}
    layers = [layer for layer in analysis.layers.values() if _node(analysis, layer).name not in excluded]
    unfit: dict[str, str] = {}
    for layer in layers:
        for constant in _stored(_node(analysis, layer)):
            _refuse_values(constant)
            if constant.name == layer.name and dtype_of(constant).name not in fit:
                unfit[layer.name] = dtype_of(constant).name
    # Layers of other types stay as they are, beside those that are quantized.
    failing = next((name for name, kind in unfit.items() if kind == "float16"), None)
    if failing is not None or (unfit and len(unfit) == len(layers)):
        name = failing or next(iter(unfit))
        kind = {"float64": "double"}.get(unfit[name], unfit[name])
        newer = f", or in float16 with opset {_HALF_PRECISION} or newer" if failing and form == "qdq" else ""
        raise UnsupportedError(
            f"the weights of the model are {kind} ({name!r}, ...), which onnxruntime's quantizer does not take here; "
            f"export the model in float32{newer}"
        )


def why_nothing(analysis: AxisAnalysis, form: str, excluded: Collection[str]) -> str:
    """Why the quantizer has left every weight layer as it was, as far as it is known.

    Args:
        analysis: of the model.
        form: ``qdq``, ``qoperator`` or ``dynamic``.
        excluded: names of nodes that stay in floating point.
    """
    reasons: dict[str, list[str]] = {}
    for layer in analysis.layers.values():
        reasons.setdefault(_why_left(analysis, layer, form, excluded), []).append(repr(layer.name))
    if not reasons:
        return no_layers(analysis)
    return "; ".join(f"{listing(names)}: {reason}" for reason, names in reasons.items())


def _why_left(analysis: AxisAnalysis, layer: WeightLayer, form: str, excluded: Collection[str]) -> str:
    node = _node(analysis, layer)
    attributes = ("alpha", 1), ("beta", 1), ("transA", 0)
    if node.name in excluded:
        return "kept in floating point by `keep_float`"
    if dtype_of(layer.constant).name != "float32":
        return f"of type {dtype_of(layer.constant).name}"
    if node.op == "Gemm" and form == "dynamic":
        changed = [f"{name} {node.attrs[name]:g}" for name, usual in attributes if node.attrs.get(name, usual) != usual]
        if changed:
            return f"a Gemm with {' and '.join(changed)}, which onnxruntime's quantizer leaves as it is"
    elif node.op not in _OPERATORS[form]:
        return f"onnxruntime's quantizer does not quantize {operator_name(node.op, node.domain)} here"
    if len(node.inputs) > WEIGHT and constant_values(node.inputs[WEIGHT]) is None:
        return "onnxruntime's quantizer takes stored weights that are the second input of their operator"
    return "onnxruntime's quantizer leaves it as it is"


def _node(analysis: AxisAnalysis, layer: WeightLayer) -> gs.Node:
    """The first node that multiplies by the weight."""
    return analysis.order[layer.uses[0].index]


def _stored(node: gs.Node) -> Iterator[gs.Constant]:
    """The floating-point constants that a node reads."""
    for tensor in node.inputs:
        constant = constant_values(tensor)
        if constant is not None and dtype_of(constant).name in ("bfloat16", "float16", "float32", "float64"):
            yield constant


def _refuse_values(constant: gs.Constant) -> None:
    shape = shape_of(constant)
    if 0 in shape:
        size = "x".join(map(str, shape))
        raise UnsupportedError(f"{constant.name!r} has no values ({size}), and onnxruntime's quantizer fails for it")
    if not np.isfinite(array_of(constant)).all():
        raise UnsupportedError(
            f"{constant.name!r} holds values that are infinite or NaN, for which there is no scale; repair the model"
        )
