"""Activations of the 256 values that bytes stand for, from which tables are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.specs import Activation

__all__ = ["function_values"]

_Values = npt.NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: _Values) -> _Values:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _gelu_tanh(x: _Values) -> _Values:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


_FUNCTIONS: Mapping[str, Callable[[_Values, float, float], _Values]] = {
    "none": lambda x, a, b: x,
    "clip": lambda x, a, b: np.clip(x, a, b),
    "leaky": lambda x, a, b: np.where(x < 0, a * x, x),
    "sigmoid": lambda x, a, b: _sigmoid(x),
    "silu": lambda x, a, b: x * _sigmoid(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "hard_swish": lambda x, a, b: x * np.clip(x / 6 + 0.5, 0, 1),
    "elu": lambda x, a, b: b * np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    "gelu": lambda x, a, b: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x, a, b: _gelu_tanh(x),
    "mish": lambda x, a, b: x * np.tanh(np.logaddexp(0, x)),
}


def function_values(activation: Activation, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """``activation`` of each element, computed in double precision and rounded."""
    kind, a, b = activation
    return _FUNCTIONS[kind](x.astype(np.float64), a, b).astype(np.float32)
