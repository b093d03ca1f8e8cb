"""Plans as plain values and arrays, and back.

Only frozen dataclasses of the rooms that describe plans, and the few classes that are listed here, are made again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.base import Placement
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.quantization import IntegerMatrix, IntegerReading
from sift_onnx.backends.lowering.weights import Reading, WeightMatrix
from sift_onnx.shapes.tensor_specs import TensorSpec

__all__ = ["NotStored", "from_plain", "to_plain"]

Array = npt.NDArray[Any]

# Where the classes of plans are.
_ROOMS = ("sift_onnx.backends.lowering.", "sift_onnx.backends.cpu.lower.")
_OTHERS: dict[str, Callable[..., Any]] = {"TensorSpec": TensorSpec, "Placement": Placement}
# What is stored of weights: all but what is gone once they are packed.
_GONE = ("constant", "scale", "steps", "reading")
_OF_WEIGHTS = tuple(field.name for field in dataclasses.fields(WeightMatrix) if field.name not in _GONE)


class NotStored(Exception):  # noqa: N818 - an answer: such a plan is not kept
    """A plan holds what has no stored form; the message names it."""


def to_plain(value: Any, arrays: list[Array]) -> Any:
    """``value`` as None, numbers, texts, bytes, lists and dictionaries; arrays are appended to ``arrays``.

    Weights are stored without their values, as :meth:`WeightMatrix.released` and that of integers leave them.

    Raises:
        NotStored: there is something in it that has no such form.
    """

    def plain(part: Any) -> Any:
        if part is None or (isinstance(part, (bool, int, float, str, bytes)) and type(part).__module__ == "builtins"):
            return part
        if isinstance(part, (tuple, list)):
            return [plain(item) for item in part]
        if isinstance(part, WeightMatrix):
            return {
                "weights": plain((part.name, part.nnz, part.is_finite, *(getattr(part, name) for name in _OF_WEIGHTS)))
            }
        if isinstance(part, IntegerMatrix):
            found = part.reading
            told = (part.name, part.rows, part.channels, part.taps, part.zero, found.nnz, found.quads)
            return {"integers": plain(told)}
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
        if isinstance(part, (set, frozenset)):
            return {"set": sorted(plain(item) for item in part)}
        name = _name_of(type(part))
        if name:
            return {"class": name, "fields": {field: plain(getattr(part, field)) for field in _fields_of(part)}}
        if isinstance(part, Mapping):
            return {"map": [[plain(key), plain(item)] for key, item in part.items()]}
        raise NotStored(f"{type(part).__name__} has no stored form")

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
                return _class_of(name)(**{field: made(item) for field, item in fields.items()})
            case {"array": int(index)}:
                return array(index)
            case {"map": list(items)}:
                return {made(key): made(item) for key, item in items}
            case {"set": list(items)}:
                return frozenset(made(item) for item in items)
            case {"weights": [name, nnz, is_finite, *told]}:
                fields = dict(zip(_OF_WEIGHTS, map(made, told), strict=True))
                nothing = gs.Constant(name, np.empty(0, fields["dtype"].numpy))
                return WeightMatrix(nothing, **fields, reading=Reading(nnz, is_finite))
            case {"integers": [str(name), int(rows), int(channels), int(taps), zero, nnz, quads]}:
                nothing = gs.Constant(name, np.empty(0, np.int8))
                return IntegerMatrix(nothing, rows, channels, taps, made(zero), reading=IntegerReading(nnz, quads))
            case {"element": str(name)}:
                return DType[name]
            case {"dtype": str(text)}:
                return np.dtype(text)
            case {"model": bytes(content)}:
                return onnx.ModelProto.FromString(content)
        raise ValueError(f"{sorted(map(str, part))} is nothing that is stored")

    return made(plain)


def _name_of(kind: type) -> str:
    """What a class is stored as; empty if its values are not."""
    if _OTHERS.get(kind.__name__) is kind:
        return kind.__name__
    return f"{kind.__module__}:{kind.__name__}" if _is_of_plans(kind) else ""


def _class_of(name: str) -> Callable[..., Any]:
    module, _, own = name.partition(":")
    if module in _OTHERS:
        return _OTHERS[module]
    if not module.startswith(_ROOMS):
        raise ValueError(f"{name!r} is no class of plans")
    found = getattr(import_module(module), own, None)
    if not isinstance(found, type) or not _is_of_plans(found):
        raise ValueError(f"{name!r} is no class of plans")
    return found


def _is_of_plans(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return kind.__module__.startswith(_ROOMS) and parameters is not None and bool(parameters.frozen)


def _is_numpy(dtype: np.dtype[Any]) -> bool:
    """Whether numpy itself has it; the text of others, such as bfloat16, does not say what they are."""
    return np.dtype(dtype.str) == dtype


def _fields_of(value: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value) if field.init)
    return tuple(value.__struct_fields__)
