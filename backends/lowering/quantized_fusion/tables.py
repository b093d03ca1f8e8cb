"""Rules for functions of one byte, which are tables of 256 entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.byte_functions import function_values
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.region_steps import Merged, RegionSteps, merged
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    ByteTable,
    ChannelScale,
    Dequantize,
    Elementwise,
    Quantize,
    QuantizedAdd,
    QuantizedMatmul,
    Reshaped,
    Spec,
)
from sift_onnx.backends.lowering.weights import Floats

__all__ = ["drop_identity", "join_tables", "tabulate"]


def _as_numbers(compare: Callable[[Floats, Floats], npt.NDArray[np.bool_]]) -> Callable[[Floats, Floats], Floats]:
    return lambda first, second: compare(first, second).astype(np.float32)


_OPERATIONS: dict[str, Callable[[Floats, Floats], Floats]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "less": _as_numbers(np.less),
    "less_or_equal": _as_numbers(np.less_equal),
    "greater": _as_numbers(np.greater),
    "greater_or_equal": _as_numbers(np.greater_equal),
    "equal": _as_numbers(np.equal),
}

_FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "square_root": np.sqrt,
    "reciprocal": np.reciprocal,
    "exponential": np.exp,
    "softplus": lambda values: np.logaddexp(np.float32(0), values),
    "logarithm": np.log,
    "sine": np.sin,
    "cosine": np.cos,
}


def tabulate(region: RegionSteps, step: Step) -> Merged:
    """Rule 2."""
    if not isinstance(step.spec, Quantize):
        return None
    found = _values_of_byte(region, step.inputs[0])
    before = region.sole_producer(step.inputs[0], step)
    if found is None or (before is None and not isinstance(_maker(region, step.inputs[0]), Dequantize)):
        return None
    operand, values = found
    if not np.isfinite(values).all():
        return None
    gone = [before] if before is not None and not isinstance(before.spec, Dequantize) else []
    nodes = (*step.nodes, *(index for other in gone for index in other.nodes))
    table = ByteTable(step.spec.y.bytes_of(values))
    return replace(step, spec=table, inputs=(operand,), nodes=nodes, dtype=DType.UINT8), gone


def _maker(region: RegionSteps, name: str) -> Spec | None:
    step = region.producer(name)
    return None if step is None else step.spec


def _values_of_byte(region: RegionSteps, name: str) -> tuple[str, Floats] | None:
    """The bytes that a value is a function of, element by element, and its 256 values."""
    step = region.producer(name)
    if step is None:
        return None
    spec = step.spec
    if isinstance(spec, Dequantize):
        return _through_tables(region, step.inputs[0], spec.x.values())
    if isinstance(spec, ChannelScale):
        found = _values_of_byte(region, step.inputs[0])
        if found is None or spec.slopes is not None or np.ptp(spec.scale) or np.ptp(spec.shift):
            return None
        return found[0], function_values(spec.activation, found[1] * spec.scale[0] + spec.shift[0])
    if not isinstance(spec, Elementwise) or spec.broadcasts or spec.repeats:
        return None
    operands = [_values_of_byte(region, operand) for operand in step.inputs]
    first = operands[0]
    if first is None:
        return None
    values = first[1]
    if spec.kind in _FUNCTIONS:
        with np.errstate(all="ignore"):
            values = _FUNCTIONS[spec.kind](values)
    elif spec.kind != "first":
        second = operands[1]
        if second is None or second[0] != first[0]:
            return None
        values = _of_two(spec, values, second[1])
    return first[0], function_values(spec.activation, values)


def _of_two(spec: Elementwise, first: Floats, second: Floats) -> Floats:
    if spec.kind in ("where_true", "where_false"):
        return np.where((second != 0) == (spec.kind == "where_true"), first, np.float32(spec.fill))
    with np.errstate(all="ignore"):
        return _OPERATIONS[spec.kind](first, second)


def _through_tables(region: RegionSteps, name: str, values: Floats) -> tuple[str, Floats]:
    """Bytes before tables that made ``name``, for whose bytes these are the values."""
    step = region.producer(name)
    while step is not None and isinstance(step.spec, ByteTable):
        name, values = step.inputs[0], values[step.spec.values]
        step = region.producer(name)
    return name, values


def join_tables(region: RegionSteps, step: Step) -> Merged:
    """Rule 5."""
    if not isinstance(step.spec, ByteTable):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None:
        return None
    if isinstance(before.spec, ByteTable):
        return merged(before, step, before.spec.then(step.spec))
    if not isinstance(before.spec, (QuantizedMatmul, QuantizedAdd)) or before.spec.y is None:
        return None
    table = step.spec.values
    low, high = before.spec.clamp
    ends = (int(table[low]), int(table[high]))
    own = np.arange(low, high + 1)
    if low > high or not np.array_equal(table[own], np.clip(own, *ends)):
        return None
    return merged(before, step, replace(before.spec, clamp=ends))


def drop_identity(region: RegionSteps, step: Step) -> Merged:
    """Rule 6."""
    is_identity = isinstance(step.spec, ByteTable) and step.spec.is_identity
    return (replace(step, spec=Reshaped()), []) if is_identity else None
