"""Inputs and outputs of a model: name, data type, and the shape that the file declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model
from sift_onnx.shapes.open_axes import Extent, declared_shape, extents_of

__all__ = ["TensorSpec", "graph_inputs", "model_inputs", "shape_text"]


@dataclass(frozen=True)
class TensorSpec:
    """A graph input or output.

    Attributes:
        name: as the model has it.
        dtype: of the array.
        shape: one entry per axis, as the model has it: its size, text, or None where it says nothing. None if the model
            does not even say how many axes there are.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Extent, ...] | None

    @cached_property
    def extents(self) -> tuple[Extent, ...]:
        """Per axis its size, the symbol of its size, or None; marks of open axes are not symbols."""
        return extents_of(self.shape or ())


def graph_inputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """The inputs that a caller must feed: those without a default value among the initializers.

    Raises:
        UnsupportedError: an input is not a tensor (a sequence, a map, an optional).
    """
    graph = model.graph
    defaults = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return tuple(_spec(value) for value in graph.input if value.name not in defaults)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise _no_tensor(value.name, kind or "a value without a type")
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return TensorSpec(value.name, np.dtype(dtype), declared_shape(tensor))


def _no_tensor(name: str, kind: str) -> UnsupportedError:
    told = {"optional_type": "an optional value", "sequence_type": "a sequence", "map_type": "a map"}.get(kind, kind)
    return UnsupportedError(f"input {name!r} is {told}; export the model with tensors as inputs")


def model_inputs(model: Model) -> tuple[TensorSpec, ...]:
    """As :func:`graph_inputs`, of the graph as it is now.

    Raises:
        UnsupportedError: an input is not a tensor.
    """
    return tuple(_spec_of(tensor) for tensor in model.graph.inputs if not isinstance(tensor, gs.Constant))


def _spec_of(tensor: gs.Tensor) -> TensorSpec:
    kind = getattr(tensor, "type", "tensor_type")
    if kind != "tensor_type":
        raise _no_tensor(tensor.name, kind)
    dtype = tensor.dtype if tensor.dtype is not None else np.float32
    if isinstance(dtype, int):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    return TensorSpec(tensor.name, np.dtype(dtype), None if tensor.shape is None else tuple(tensor.shape))


def shape_text(shape: Sequence[Extent] | None) -> str:
    """A shape as messages have it, ``1,3,?``."""
    if shape is None:
        return "of any number of axes"
    return ",".join("?" if size is None else str(size) for size in shape) or "()"
