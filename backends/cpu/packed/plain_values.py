"""Plans as plain values and arrays, and back. Only classes that are listed here are made again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.base import Placement
from sift_onnx.backends.cpu.lower.costs import Estimate
from sift_onnx.backends.cpu.lower.plan import Plan, Region
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.resampling import Padding, Sampling, Slicing
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Geometry, Range, Spec
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.backends.lowering.weights import Reading, WeightMatrix
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["NotStored", "from_plain", "to_plain"]

Array = npt.NDArray[Any]

_CLASSES: dict[str, Callable[..., Any]] = {
    known.__name__: known
    for known in (
        *get_args(Spec), Estimate, Geometry, Padding, Placement, Plan, Range, Region, Sampling, Slicing, Step, Subgraph,
        TensorSpec,
    )
}  # fmt: skip


class NotStored(Exception):  # noqa: N818 - an answer: the plan is made anew each time
    """A plan holds what has no stored form; the message names it."""


def to_plain(value: Any, arrays: list[Array]) -> Any:
    """``value`` as None, numbers, texts, bytes, lists and dictionaries; arrays are appended to ``arrays``.

    Weights are stored without their values, as :meth:`WeightMatrix.released` leaves them.

    Raises:
        NotStored: there is something in it that has no such form.
    """

    def plain(part: Any) -> Any:
        if part is None or (isinstance(part, (bool, int, float, str, bytes)) and type(part).__module__ == "builtins"):
            return part
        if isinstance(part, (tuple, list)):
            return [plain(item) for item in part]
        if isinstance(part, WeightMatrix):
            told = (part.name, part.rows, part.columns, part.transposed, part.dtype, part.nnz, part.is_finite)
            return {"weights": plain(told)}
        if isinstance(part, np.ndarray) and part.dtype.kind in "bifu" and _is_numpy(part.dtype):
            arrays.append(part)
            return {"array": len(arrays) - 1}
        if isinstance(part, DType):
            return {"element": part.name}
        if isinstance(part, np.dtype) and _is_numpy(part):
            return {"dtype": part.str}
        if isinstance(part, onnx.ModelProto):
            return {"model": part.SerializeToString()}
        if isinstance(part, np.generic):
            return plain(part.item())
        name = type(part).__name__
        if _CLASSES.get(name) is type(part):
            return {"class": name, "fields": {field: plain(getattr(part, field)) for field in _fields_of(part)}}
        if isinstance(part, Mapping):
            return {"map": [[plain(key), plain(item)] for key, item in part.items()]}
        raise NotStored(f"{name} has no stored form")

    return plain(value)


def from_plain(plain: Any, array: Callable[[int], Array]) -> Any:
    """The value that :func:`to_plain` made it from; ``array`` gives an array by its number.

    Raises:
        KeyError, TypeError, ValueError: it is none that :func:`to_plain` makes.
    """

    def made(part: Any) -> Any:
        if isinstance(part, list):
            return tuple(made(item) for item in part)
        if not isinstance(part, dict):
            return part
        match part:
            case {"class": str(name), "fields": dict(fields)}:
                return _CLASSES[name](**{field: made(item) for field, item in fields.items()})
            case {"array": int(index)}:
                return array(index)
            case {"map": list(items)}:
                return {made(key): made(item) for key, item in items}
            case {"weights": [name, rows, columns, transposed, dtype, nnz, is_finite]}:
                element = made(dtype)
                nothing = gs.Constant(name, np.empty(0, element.numpy))
                reading = Reading(nnz, is_finite)
                return WeightMatrix(nothing, rows, columns, transposed, dtype=element, reading=reading)
            case {"element": str(name)}:
                return DType[name]
            case {"dtype": str(text)}:
                return np.dtype(text)
            case {"model": bytes(content)}:
                return onnx.ModelProto.FromString(content)
        raise ValueError(f"{sorted(map(str, part))} is nothing that is stored")

    return made(plain)


def _is_numpy(dtype: np.dtype[Any]) -> bool:
    """Whether numpy itself has it; the text of others, such as bfloat16, does not say what they are."""
    return np.dtype(dtype.str) == dtype


def _fields_of(value: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value) if field.init)
    return tuple(value.__struct_fields__)
