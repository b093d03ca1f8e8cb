"""Tensors whose data lies in a file beside the model: found, checked, and read on demand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from sift_onnx.errors import ModelReadError

__all__ = ["ExternalValues", "bits_per_element"]

_BITS_BELOW_A_BYTE = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}


def bits_per_element(data_type: int) -> int:
    """Bits that one element of an ONNX data type takes in ``raw_data``."""
    name = onnx.TensorProto.DataType.Name(data_type)
    return _BITS_BELOW_A_BYTE.get(name) or 8 * onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize


class ExternalValues(LazyValues):  # type: ignore[misc]  # graphsurgeon has no type information
    """The values of a tensor that is stored outside the model file, mapped into memory when they are asked for."""

    def __init__(self, tensor: onnx.TensorProto, folder: Path) -> None:
        """Check that the data is there, without reading it.

        Args:
            tensor: the stub in the model, with its ``external_data`` entries.
            folder: of the model file; data outside it is refused.

        Raises:
            ModelReadError: the file is missing, too short, or outside ``folder``.
        """
        self.stub = tensor
        self.shape = list(tensor.dims)
        self.dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        self.nbytes = -(-math.prod(tensor.dims) * bits_per_element(tensor.data_type) // 8)
        entries = {entry.key: entry.value for entry in tensor.external_data}
        self.path = _inside(folder, entries.get("location", ""), tensor.name)
        try:
            self.offset = int(entries.get("offset", 0))
            length = int(entries.get("length", self.nbytes))
        except ValueError as error:
            raise ModelReadError(f"initializer {tensor.name!r}: damaged external data entry: {error}") from error
        if length != self.nbytes or self.offset < 0:
            raise ModelReadError(
                f"initializer {tensor.name!r}: external data of {length} bytes does not fit its shape {self.shape}"
            )
        if not self.path.is_file():
            raise ModelReadError(
                f"initializer {tensor.name!r}: its external data file {self.path} is missing; "
                "copy it beside the model file"
            )
        if self.path.stat().st_size < self.offset + self.nbytes:
            raise ModelReadError(f"initializer {tensor.name!r}: its external data file {self.path} is truncated")

    def raw(self) -> npt.NDArray[np.uint8]:
        """The bytes of the tensor, mapped read-only; a vector of ``nbytes``."""
        if not self.nbytes:
            return np.empty(0, np.uint8)
        return np.memmap(self.path, np.uint8, mode="r", offset=self.offset, shape=(self.nbytes,))

    @property
    def tensor(self) -> onnx.TensorProto:
        """The tensor with its data inside, as graphsurgeon's exporter expects it."""
        inline = onnx.TensorProto()
        inline.CopyFrom(self.stub)
        inline.ClearField("external_data")
        inline.ClearField("data_location")
        inline.raw_data = self.raw().tobytes()
        return inline

    def load(self) -> npt.NDArray[Any]:
        """The values as an array of the tensor's shape."""
        if bits_per_element(self.stub.data_type) % 8:
            array: npt.NDArray[Any] = onnx.numpy_helper.to_array(self.tensor)
            return array
        return self.raw().view(self.dtype).reshape(self.shape)


def _inside(folder: Path, location: str, name: str) -> Path:
    path = folder / location
    # resolve() follows links: a link inside the folder may point anywhere.
    if not location or not path.resolve().is_relative_to(folder.resolve()):
        raise ModelReadError(
            f"initializer {name!r}: its external data path {location!r} lies outside the model's folder; refused"
        )
    return path


def attach_external_data(graph: gs.Graph, folder: Path | None) -> None:
    """Give each externally stored constant of ``graph`` and its subgraphs values that know where their data is.

    Args:
        graph: as graphsurgeon imported it.
        folder: of the model file; None when the model never had one.

    Raises:
        ModelReadError: data is missing or outside ``folder``, or there is no folder to look in.
    """
    for level in [graph, *graph.subgraphs(recursive=True)]:
        for tensor in level.tensors().values():
            values = getattr(tensor, "_values", None)
            if isinstance(values, ExternalValues) or not isinstance(values, LazyValues):
                continue
            proto = values.tensor
            if not isinstance(proto, onnx.TensorProto) or proto.data_location != onnx.TensorProto.EXTERNAL:
                continue
            if folder is None:
                raise ModelReadError(
                    f"initializer {tensor.name!r}: its data is external; pass the model's path, or load the data first"
                )
            tensor._values = ExternalValues(proto, folder)
            tensor.data_location = None
