"""Operators on small arrays in host memory, as numpy computes them: what graphs compute of the sizes of tensors.

A function takes the inputs of its operator, as arrays, and its attributes by name. Axes that were an attribute before
they became an input are one parameter, given by name or by position. An operator that is not here computes no sizes in
any export that was met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.files.data_types import numpy_dtype
from sift_onnx.operators import traits

__all__ = ["ELEMENTWISE", "KERNELS", "MOVING", "compute", "takes_count"]

Array = npt.NDArray[Any]

# Of a result that a few numbers can ask for: what computes sizes has fewer elements.
_MOST_TILED = 1 << 20
# Beyond it float64 does not hold every whole number, and int64 ends soon after.
_LARGEST_FLOAT = float(1 << 53)


def _integers(values: Any) -> list[int]:
    return [int(n) for n in np.asarray(values).reshape(-1)]


def _number(values: Any) -> Any:
    return np.asarray(values).reshape(-1)[0].item()


def gather(x: Array, indices: Array, axis: int = 0) -> Array:
    return np.asarray(np.take(x, indices, axis=axis))


def concat(*parts: Array, axis: int) -> Array:
    return np.concatenate(parts, axis=axis)


def slice_(x: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Array:
    first, last = _integers(starts), _integers(ends)
    chosen = _integers(axes) if axes is not None else list(range(len(first)))
    by = _integers(steps) if steps is not None else [1] * len(first)
    cut = [slice(None)] * x.ndim
    for axis, begin, end, step in zip(chosen, first, last, by, strict=True):
        # Running down past the first element has no negative end in Python.
        stop = None if step < 0 and end < -x.shape[axis] else end
        cut[axis] = slice(begin, stop, step)
    return x[tuple(cut)]


def squeeze(x: Array, axes: Any = None) -> Array:
    return np.squeeze(x, tuple(_integers(axes)) if axes is not None else None)


def unsqueeze(x: Array, axes: Any) -> Array:
    return np.expand_dims(x, tuple(_integers(axes)))


def reshape(x: Array, wanted: Any, allowzero: int = 0) -> Array:
    sizes = _integers(wanted)
    return x.reshape([x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(sizes)])


def transpose(x: Array, perm: Any = None) -> Array:
    return np.transpose(x, perm)


def split(
    x: Array, sizes: Any = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int = 1, **old: Any
) -> tuple[Array, ...]:
    sizes = sizes if sizes is not None else old.get("split")
    length = x.shape[axis]
    each = -(-length // (num_outputs or outputs))
    cuts = np.cumsum(_integers(sizes))[:-1] if sizes is not None else np.arange(each, length, each)
    return tuple(np.split(x, cuts, axis=axis))


def cast(x: Array, to: Any, saturate: int = 1, round_mode: str = "up") -> Array:
    return x.astype(numpy_dtype(to) if isinstance(to, int) else to)


def div(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return np.asarray(x / y)
    # ONNX truncates, Python rounds down.
    quotient = np.asarray(np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y)))
    return quotient.astype(x.dtype, copy=False)


def mod(x: Array, y: Array, fmod: int = 0) -> Array:
    return np.asarray(np.fmod(x, y) if fmod else np.mod(x, y))


def clip(x: Array, min: Any = None, max: Any = None) -> Array:
    raised = x if min is None else np.maximum(x, np.asarray(min, x.dtype))
    return raised if max is None else np.minimum(raised, np.asarray(max, x.dtype))


def constant_of_shape(sizes: Any, value: tuple[Any, int] = (0.0, 1)) -> Array:
    fill, data_type = value
    return np.full(_integers(sizes), fill, dtype=numpy_dtype(data_type))


def expand(x: Array, sizes: Any) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(_integers(sizes))))


def tile(x: Array, repeats: Any) -> Array:
    counts = _integers(repeats)
    if len(counts) != x.ndim:
        raise ValueError(f"{len(counts)} repeats for {x.ndim} axes")
    return np.tile(x, counts)


def flatten(x: Array, axis: int = 1) -> Array:
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1)


def reduce_by(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        chosen = _integers(axes) if axes is not None else []
        if not chosen and noop_with_empty_axes:
            return x
        reduced = function(x, axis=tuple(chosen) or None, keepdims=bool(keepdims))
        return np.asarray(reduced).astype(x.dtype, copy=False)

    return run


def fold_by(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    def run(*parts: Array) -> Array:
        return np.asarray(reduce(function, parts))

    return run


def elementwise(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(*parts: Array) -> Array:
        return np.asarray(function(*parts))

    return run


def power(x: Array, y: Array) -> Array:
    return np.asarray(np.power(x, y)).astype(x.dtype)


def arange(start: Any, limit: Any, delta: Any) -> Array:
    return np.arange(_number(start), _number(limit), _number(delta), dtype=np.asarray(start).dtype)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceMax": reduce_by(np.max),
    "ReduceMin": reduce_by(np.min),
    "ReduceProd": reduce_by(np.prod),
    "ReduceSum": reduce_by(np.sum),
}

# What runtimes round in ways of their own: sums and products in some order, cubes as two products.
_ROUNDED_SOMEHOW = frozenset({"Pow", *_REDUCTIONS})

KERNELS: dict[str, Callable[..., Any]] = {
    **_REDUCTIONS,
    "Abs": elementwise(np.abs),
    "Add": elementwise(np.add),
    "And": elementwise(np.logical_and),
    "Cast": cast,
    "Ceil": elementwise(np.ceil),
    "Clip": clip,
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
    "Reshape": reshape,
    "Round": elementwise(np.round),
    "Sign": elementwise(np.sign),
    "Slice": slice_,
    "Split": split,
    "Sqrt": elementwise(np.sqrt),
    "Squeeze": squeeze,
    "Sub": elementwise(np.subtract),
    "Sum": fold_by(np.add),
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
    "Where": elementwise(np.where),
    "Xor": elementwise(np.logical_xor),
}
# What works on each element alone, broadcast.
ELEMENTWISE = frozenset(KERNELS) & (traits.ELEMENTWISE_UNARY | traits.ELEMENTWISE_BINARY | {"Clip"})
MOVING = frozenset(KERNELS) & traits.MOVING


def takes_count(op: str) -> bool:
    """Whether the kernel wants to know how many outputs its node has, and gives a tuple of them."""
    return op == "Split"


def compute(
    op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], outputs: int = 1
) -> tuple[Array, ...] | None:
    """What a node makes of small arrays; None where that is not certain.

    Powers, and sums and products of floating-point numbers in an order that ONNX leaves open, are certain only if
    nothing is rounded, and so are numbers of half precision, which runtimes compute in single precision over several
    nodes. A float that no integer is, infinity say, has no certain integer.

    Args:
        op: an operator of :data:`KERNELS`.
        inputs: in the order of the operator; None for one that is left out.
        attributes: by name; a tensor as its first element and its ONNX data type.
        outputs: how many the node has.
    """
    given = list(inputs)
    while given and given[-1] is None:
        given.pop()
    present = [array for array in given if array is not None]
    if not present or _is_left_open(op, present):
        return None
    extra = {"outputs": outputs} if takes_count(op) else {}
    wide = np.dtype(np.float64 if op in _ROUNDED_SOMEHOW else np.float32)
    kinds = [a.dtype for a in present if a.dtype.kind == "f" and a.dtype.itemsize < wide.itemsize]
    try:
        with np.errstate(all="ignore"):
            run = [a.astype(wide) if kinds and a is not None and a.dtype.kind == "f" else a for a in given]
            made = KERNELS[op](*run, **attributes, **extra)
            results = [np.asarray(array) for array in (made if takes_count(op) else (made,))]
            if op == "Cast" and not _is_cast_certain(present[0], results[0]):
                return None
            narrow = [
                array.astype(kinds[0]) if kinds and op != "Cast" and array.dtype == wide else array for array in results
            ]
    except (ArithmeticError, LookupError, TypeError, ValueError, MemoryError):
        return None
    exact = all(a is b or _is_same(op, a, b) for a, b in zip(narrow, results, strict=True))
    return tuple(narrow) if exact else None


def _is_same(op: str, narrow: Array, wide: Array) -> bool:
    # A power in double precision may itself be off in its last place: 25 ** 0.5 is 5 all the same.
    places = 2 * np.spacing(np.abs(wide)) if op == "Pow" else 0
    with np.errstate(invalid="ignore"):
        return bool(((narrow == wide) | (np.abs(narrow - wide) <= places)).all())


def _is_left_open(op: str, inputs: Sequence[Array]) -> bool:
    """Whether runtimes may differ, or run out of memory.

    The first is so where zero divides an integer, and in how many floats a range has.
    """
    if op == "Tile":
        return any(a.dtype.kind not in "iu" for a in inputs[1:2]) or _tiled_size(inputs) > _MOST_TILED
    if op in ("Div", "Mod"):
        return inputs[-1].dtype.kind in "iu" and not inputs[-1].all()
    return op == "Range" and inputs[0].dtype.kind == "f"


def _tiled_size(inputs: Sequence[Array]) -> int:
    return math.prod([inputs[0].size, *(int(n) for n in inputs[-1].reshape(-1))])


def _is_cast_certain(before: Array, after: Array) -> bool:
    if before.dtype.kind == "f" and after.dtype.kind in "iu":
        # What does not fit is whatever the processor makes of it.
        limits = np.iinfo(after.dtype)
        low, high = max(float(limits.min), -_LARGEST_FLOAT), min(float(limits.max), _LARGEST_FLOAT)
        return bool(np.isfinite(before).all() and (before > low - 1).all() and (before < high + 1).all())
    return after.dtype != np.float16 or bool((after.astype(np.float64) == before.astype(np.float64)).all())
