"""The non-linearity inside Sparse Parallel, Factorized and Doped (paper, section 3.2 and appendix B.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.errors import UnsupportedError
from sift_onnx.graphs.constants import array_of, constant_values, shape_of
from sift_onnx.passes.layerwise.linear_layers import LinearLayer
from sift_onnx.passes.node_builder import NodeBuilder

__all__ = [
    "Activation",
    "NonLinearity",
    "apply_function",
    "choose",
    "own_function",
    "second_moment",
]

Activation = Literal["auto", "none", "bn-relu", "relu", "gelu"]
Function = Literal["relu", "gelu", "gelu-tanh", "silu", "hardswish"]

# The opset in which ONNX got an operator for the function.
_SINCE = {"relu": 1, "gelu": 20, "gelu-tanh": 20, "hardswish": 14}
# The oldest opset that has the operators of a function written out: Erf, and Clip with limits as inputs.
_WRITTEN_SINCE = {"gelu": 9, "hardswish": 11}
_OPERATORS = {"Relu": "relu", "HardSwish": "hardswish", "Swish": "silu", "FastGelu": "gelu-tanh", "BiasGelu": "gelu"}


@dataclass(frozen=True)
class NonLinearity:
    """What stands between the linear parts of a transformed layer.

    Attributes:
        function: applied to each element.
        norm: whether a BatchNormalization comes before it.
    """

    function: Function
    norm: bool


def choose(setting: Activation, layer: LinearLayer, own: Function) -> NonLinearity | None:
    """The non-linearity of one layer; None for a linear one.

    ``auto`` is BatchNormalization and ReLU for a convolution, as in the paper, and the model's own function for a
    linear layer: its features are the last axis, where a BatchNormalization cannot be, and transformers have none.

    Args:
        setting: what was asked for.
        layer: the layer.
        own: from :func:`own_function`.

    Raises:
        UnsupportedError: a BatchNormalization was asked for where none can be.
    """
    if setting == "none":
        return None
    # A convolution that has a BatchNormalization keeps one, whatever the function.
    has_norm = any(occurrence.norm is not None for occurrence in layer.occurrences)
    if setting == "auto":
        return NonLinearity("relu", norm=True) if layer.is_conv else NonLinearity(own, norm=has_norm)
    if setting == "bn-relu":
        product = next(
            (occurrence.product for occurrence in layer.occurrences if occurrence.product.op == "MatMul"), None
        )
        if product is not None:
            raise UnsupportedError(
                f"`activation='bn-relu'`: no BatchNormalization can follow MatMul {product.name!r}, whose "
                f"features are its last axis; use `activation='auto'` or `'gelu'`, or leave {layer.name!r} out with "
                "`keep_dense`"
            )
        return NonLinearity("relu", norm=True)
    return NonLinearity("gelu" if setting == "gelu" else "relu", norm=has_norm)


def own_function(graph: gs.Graph) -> Function:
    """The activation that the model itself uses most; ReLU if it has none that is known."""
    found: Counter[str] = Counter(name for node in graph.nodes if (name := _function_of(node)))
    return found.most_common(1)[0][0] if found else "relu"  # type: ignore[return-value]


def _function_of(node: gs.Node) -> str | None:
    if node.op == "Gelu":
        return "gelu-tanh" if node.attrs.get("approximate") == "tanh" else "gelu"
    if node.op == "Erf":
        return "gelu"
    if node.op == "Tanh":
        # 0.5 x (1 + tanh(...)); any other tanh is a gate or a pooler.
        follower = node.outputs[0].outputs[0] if node.outputs[0].outputs else None
        is_gelu = follower is not None and follower.op == "Add" and any(_is_one(t) for t in follower.inputs)
        return "gelu-tanh" if is_gelu else None
    if node.op == "Sigmoid":
        readers = node.outputs[0].outputs
        return "silu" if any(r.op == "Mul" and any(t is node.inputs[0] for t in r.inputs) for r in readers) else None
    return _OPERATORS.get(node.op)


def _is_one(tensor: gs.Tensor) -> bool:
    constant = constant_values(tensor)
    return constant is not None and math.prod(shape_of(constant)) == 1 and float(array_of(constant).flat[0]) == 1.0


def apply_function(
    builder: NodeBuilder, function: Function, x: gs.Variable, dtype: np.dtype[Any], name: str
) -> gs.Variable:
    """``function(x)`` of type ``dtype``; as primitive operators where the model's opset has none for it.

    Raises:
        UnsupportedError: the opset lacks one of these, too.
    """
    if builder.opset >= _SINCE.get(function, 1 << 30):
        attrs = {"approximate": "tanh"} if function == "gelu-tanh" else {}
        operator = {"relu": "Relu", "hardswish": "HardSwish"}.get(function, "Gelu")
        return builder.node(operator, [x], like=x, name=name, attrs=attrs)
    oldest = _WRITTEN_SINCE.get(function, 0)
    if builder.opset < oldest:
        raise UnsupportedError(
            f"the activation {function!r} cannot be written in opset {builder.opset}; use `activation='relu'`, or "
            f"convert the model to opset {oldest} or newer with onnx.version_converter"
        )
    return _PRIMITIVES[function](_Arithmetic(builder, x, dtype, name))


@dataclass(frozen=True)
class _Arithmetic:
    """Elementwise operators on tensors of one shape and type."""

    builder: NodeBuilder
    x: gs.Variable
    dtype: np.dtype[Any]
    name: str

    def __call__(self, op: str, *operands: gs.Tensor | float) -> gs.Variable:
        inputs = [t if isinstance(t, gs.Tensor) else self._scalar(t) for t in operands]
        return self.builder.node(op, inputs, like=self.x, name=f"{self.name}.{op.lower()}")

    def _scalar(self, value: float) -> gs.Constant:
        return self.builder.constant(f"{self.name}.value", np.asarray(value, dtype=self.dtype))


def _gelu(f: _Arithmetic) -> gs.Variable:
    return f("Mul", f("Mul", f.x, f("Add", f("Erf", f("Div", f.x, math.sqrt(2))), 1.0)), 0.5)


def _gelu_tanh(f: _Arithmetic) -> gs.Variable:
    inner = f("Mul", f("Add", f.x, f("Mul", f("Pow", f.x, 3.0), 0.044715)), math.sqrt(2 / math.pi))
    return f("Mul", f("Mul", f.x, f("Add", f("Tanh", inner), 1.0)), 0.5)


def _silu(f: _Arithmetic) -> gs.Variable:
    return f("Mul", f.x, f("Sigmoid", f.x))


def _hardswish(f: _Arithmetic) -> gs.Variable:
    return f("Mul", f.x, f("Div", f("Clip", f("Add", f.x, 3.0), 0.0, 6.0), 6.0))


_PRIMITIVES: dict[str, Callable[[_Arithmetic], gs.Variable]] = {
    "gelu": _gelu,
    "gelu-tanh": _gelu_tanh,
    "silu": _silu,
    "hardswish": _hardswish,
}


def second_moment(branches: int) -> float:
    """The second moment of a sum of ``branches`` independent ReLUs of standard normal variables.

    Each has mean ``1 / sqrt(2 pi)`` and second moment 1/2; means add up, variances too.
    """
    mean_squared = 1 / (2 * math.pi)
    return branches * (0.5 - mean_squared) + branches**2 * mean_squared
