"""Shapes and types of tensors, as a graph records them in value_info."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.importers.onnx_importer import get_onnx_tensor_dtype
from onnx_graphsurgeon.logger import G_LOGGER

from sift_onnx.files.data_types import data_type_of

__all__ = ["value_info_of", "value_infos_of"]


def value_infos_of(
    graph: gs.Graph, origin: onnx.GraphProto, tensors: Mapping[str, gs.Tensor]
) -> Iterator[onnx.ValueInfoProto]:
    """The ``value_info`` of a graph: the original entries, updated, and then those of new tensors.

    Args:
        graph: the graph as it is now.
        origin: the original graph.
        tensors: the tensors of ``graph`` by name.
    """
    gone = {name for node in origin.node for name in node.output}
    gone |= {t.name for t in origin.initializer} | {info.name for info in origin.input}
    gone -= tensors.keys()
    for info in origin.value_info:
        if info.name in tensors:
            yield value_info_of(tensors[info.name], info)
        elif info.name not in gone:
            yield info
    described = {t.name for t in (*graph.inputs, *graph.outputs)} | {info.name for info in origin.value_info}
    for node in graph.nodes:
        for tensor in node.outputs:
            if tensor.name and tensor.name not in described and (tensor.dtype is not None or tensor.shape is not None):
                yield value_info_of(tensor, None)


def value_info_of(tensor: gs.Tensor, origin: onnx.ValueInfoProto | None) -> onnx.ValueInfoProto:
    """What is known of a tensor.

    Args:
        tensor: the tensor as it is now.
        origin: its entry as it came; what graphsurgeon does not model of it is kept.
    """
    if origin is None:
        return _new_value_info(tensor)
    info = deepcopy(origin)
    if not origin.type.HasField("tensor_type"):
        return info
    kind = info.type.tensor_type
    if tensor.dtype is not None and _data_type(tensor.dtype) != kind.elem_type and tensor.dtype != _as_imported(origin):
        kind.elem_type = _data_type(tensor.dtype)
    if tensor.shape is None:
        kind.ClearField("shape")
    elif not kind.HasField("shape") or len(kind.shape.dim) != len(tensor.shape):
        kind.shape.CopyFrom(onnx.TensorShapeProto())
        for size in tensor.shape:
            _set_dim(kind.shape.dim.add(), size)
    else:
        for dim, size in zip(kind.shape.dim, tensor.shape, strict=True):
            _set_dim(dim, size)
    return info


def _as_imported(origin: onnx.ValueInfoProto) -> Any:
    # With onnx before 1.19, graphsurgeon makes of some types a wider one.
    with G_LOGGER.suppress(G_LOGGER.CRITICAL + 1):
        return get_onnx_tensor_dtype(origin)


def _set_dim(dim: onnx.TensorShapeProto.Dimension, size: int | str | None) -> None:
    kind = dim.WhichOneof("value")
    if size == (getattr(dim, kind) if kind else None):
        return
    if isinstance(size, str):
        dim.dim_param = size
    elif size is None:
        dim.ClearField("dim_value")
        dim.ClearField("dim_param")
    else:
        dim.dim_value = int(size)


def _new_value_info(tensor: gs.Tensor) -> onnx.ValueInfoProto:
    # graphsurgeon keeps of a map or an optional that it is one, but not of what.
    kind = getattr(tensor, "type", "tensor_type")
    shape: Sequence[Any] | None = tensor.shape
    if tensor.dtype is not None and kind == "tensor_type":
        return onnx.helper.make_tensor_value_info(tensor.name, _data_type(tensor.dtype), shape)
    if tensor.dtype is not None and kind == "sequence_type":
        return onnx.helper.make_tensor_sequence_value_info(tensor.name, _data_type(tensor.dtype), shape)
    return onnx.ValueInfoProto(name=tensor.name)


def _data_type(dtype: Any) -> int:
    # graphsurgeon leaves ONNX's number where it knows no numpy type.
    return dtype if isinstance(dtype, int) else data_type_of(np.dtype(dtype))
