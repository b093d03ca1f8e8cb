"""How operators run on host values: numpy functions with the inputs and attributes of the operator.

An operator that is not here, or any of whose inputs is a tensor, is run by a kernel of torch. Axes that were an
attribute before they became an input are one parameter, given by name or by position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sift_onnx.files.data_types import numpy_dtype
from sift_onnx.training.host import Host, array, ints, number

__all__ = ["HOST_KERNELS", "READS_SHAPE"]

Array = npt.NDArray[Any]

# Operators that look at a tensor's shape and not at its values.
READS_SHAPE = frozenset({"Shape", "Size"})


def shape(x: Any, start: int = 0, end: int | None = None) -> Array:
    return np.array(tuple(x.shape)[start:end], dtype=np.int64)


def size(x: Any) -> Array:
    return np.array(x.numel() if isinstance(x, torch.Tensor) else x.size, dtype=np.int64)


def gather(x: Host, indices: Host, axis: int = 0) -> Array:
    return np.take(array(x), array(indices), axis=axis)


def concat(*parts: Host, axis: int) -> Array:
    return np.concatenate([array(part) for part in parts], axis=axis)


def slice_(x: Host, starts: Host, ends: Host, axes: Host = None, steps: Host = None) -> Array:
    values, first, last = array(x), ints(starts), ints(ends)
    chosen = ints(axes) if axes is not None else list(range(len(first)))
    by = ints(steps) if steps is not None else [1] * len(first)
    cut = [slice(None)] * values.ndim
    for axis, begin, end, step in zip(chosen, first, last, by, strict=True):
        # Running down past the first element has no negative end in Python.
        stop = None if step < 0 and end < -values.shape[axis] else end
        cut[axis] = slice(begin, stop, step)
    return values[tuple(cut)]


def squeeze(x: Host, axes: Host = None) -> Array:
    return np.squeeze(array(x), tuple(ints(axes)) if axes is not None else None)


def unsqueeze(x: Host, axes: Host) -> Array:
    return np.expand_dims(array(x), tuple(ints(axes)))


def reshape(x: Host, wanted: Host, allowzero: int = 0) -> Array:
    values, sizes = array(x), ints(wanted)
    return values.reshape([values.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(sizes)])


def transpose(x: Host, perm: Any = None) -> Array:
    return np.transpose(array(x), perm)


def split(
    x: Host, sizes: Host = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int = 1, **old: Any
) -> Any:
    values = array(x)
    sizes = sizes if sizes is not None else old.get("split")
    length = values.shape[axis]
    each = -(-length // (num_outputs or outputs))
    cuts = np.cumsum(ints(sizes))[:-1] if sizes is not None else np.arange(each, length, each)
    return tuple(np.split(values, cuts, axis=axis))


def cast(x: Host, to: Any, saturate: int = 1, round_mode: str = "up") -> Array:
    return array(x).astype(numpy_dtype(to) if isinstance(to, int) else to)


def div(x: Host, y: Host) -> Array:
    a, b = array(x), array(y)
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    # ONNX truncates, Python rounds down.
    quotient = np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))
    return quotient.astype(a.dtype, copy=False)


def mod(x: Host, y: Host, fmod: int = 0) -> Array:
    return np.asarray(np.fmod(array(x), array(y)) if fmod else np.mod(array(x), array(y)))


def where(condition: Host, x: Host, y: Host) -> Array:
    return np.where(array(condition), array(x), array(y))


def constant_of_shape(sizes: Host, value: tuple[Any, int] = (0.0, 1)) -> Array:
    fill, data_type = value
    return np.full(ints(sizes), fill, dtype=numpy_dtype(data_type))


def expand(x: Host, sizes: Host) -> Array:
    values = array(x)
    return np.broadcast_to(values, np.broadcast_shapes(values.shape, tuple(ints(sizes))))


def flatten(x: Host, axis: int = 1) -> Array:
    values = array(x)
    axis = axis + values.ndim if axis < 0 else axis
    return values.reshape(int(np.prod(values.shape[:axis], dtype=np.int64)), -1)


def reduce_by(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(x: Host, axes: Host = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        values = array(x)
        chosen = ints(axes) if axes is not None else []
        if not chosen and noop_with_empty_axes:
            return values
        reduced = function(values, axis=tuple(chosen) or None, keepdims=bool(keepdims))
        return np.asarray(reduced).astype(values.dtype, copy=False)

    return run


def fold_by(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    def run(*parts: Host) -> Array:
        result = array(parts[0])
        for part in parts[1:]:
            result = function(result, array(part))
        return np.asarray(result)

    return run


def elementwise(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(*parts: Host) -> Array:
        return np.asarray(function(*(array(part) for part in parts)))

    return run


def power(x: Host, y: Host) -> Array:
    base = array(x)
    return np.asarray(np.power(base, array(y))).astype(base.dtype, copy=False)


def arange(start: Host, limit: Host, delta: Host) -> Array:
    return np.arange(number(start), number(limit), number(delta), dtype=array(start).dtype)


HOST_KERNELS: dict[str, Callable[..., Any]] = {
    "Abs": elementwise(np.abs),
    "Add": elementwise(np.add),
    "And": elementwise(np.logical_and),
    "Cast": cast,
    "Ceil": elementwise(np.ceil),
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "Div": div,
    "Equal": elementwise(np.equal),
    "Expand": expand,
    "Flatten": flatten,
    "Floor": elementwise(np.floor),
    "Gather": gather,
    "Greater": elementwise(np.greater),
    "GreaterOrEqual": elementwise(np.greater_equal),
    "Identity": elementwise(np.asarray),
    "Less": elementwise(np.less),
    "LessOrEqual": elementwise(np.less_equal),
    "Max": fold_by(np.maximum),
    "Min": fold_by(np.minimum),
    "Mod": mod,
    "Mul": elementwise(np.multiply),
    "Neg": elementwise(np.negative),
    "Not": elementwise(np.logical_not),
    "Or": elementwise(np.logical_or),
    "Pow": power,
    "Range": arange,
    "Reciprocal": elementwise(np.reciprocal),
    "ReduceMax": reduce_by(np.max),
    "ReduceMin": reduce_by(np.min),
    "ReduceProd": reduce_by(np.prod),
    "ReduceSum": reduce_by(np.sum),
    "Reshape": reshape,
    "Shape": shape,
    "Size": size,
    "Slice": slice_,
    "Split": split,
    "Sqrt": elementwise(np.sqrt),
    "Squeeze": squeeze,
    "Sub": elementwise(np.subtract),
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
    "Where": where,
    "Xor": elementwise(np.logical_xor),
}
