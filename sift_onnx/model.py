"""Model: an onnx-graphsurgeon graph, plus what graphsurgeon drops; loading, saving and conversion."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from google.protobuf.message import DecodeError

from sift_onnx.constants import (
    MaskedConstant,
    MaskedValues,
    full_tensor,
    header_of,
    masked_constant,
    nbytes_of,
    shape_of,
)
from sift_onnx.errors import ModelReadError, OutputError, UnsupportedError, UsageError
from sift_onnx.external_data import attach_external_data
from sift_onnx.graph_export import export_graph, export_model_fields, import_model
from sift_onnx.sparse import SparseWeight
from sift_onnx.storage import PROTOBUF_LIMIT, STREAMED_FROM, ModelParts, check_output, write_model

__all__ = ["MASKS_KEY", "Model", "ModelLike", "Storage", "as_kind_of", "load", "masks", "save"]

ModelLike = Union[str, Path, onnx.ModelProto, gs.Graph, "Model", Any]
Storage = Literal["dense", "sparse"]

# Entry of the model's metadata_props that lists the masked weights of dense storage.
MASKS_KEY = "sift_onnx.masks"


@dataclass
class Model:
    """An ONNX model that can be rewritten.

    Attributes:
        graph: the graph, to be read and edited. Masked weights are :class:`~sift_onnx.constants.MaskedConstant`.
        metadata: the model's ``metadata_props``, without the entry that this class keeps for itself.
        origin: the model as it came; read-only, supplies what ``graph`` does not hold.
        path: where it came from, if from a file.
    """

    graph: gs.Graph
    metadata: dict[str, str] = field(default_factory=dict)
    origin: onnx.ModelProto = field(default_factory=onnx.ModelProto, repr=False)
    path: Path | None = None

    @classmethod
    def load(cls, source: ModelLike) -> Model:
        """A model from a path, a ModelProto, a graphsurgeon graph, an ``onnx_ir.Model``, or a Model (as it is).

        What is passed in is not changed, nor may it be changed as long as the Model is used.

        Raises:
            ModelReadError: the file is no ONNX model, is truncated, or its external data is missing or out of bounds.
            UsageError: ``source`` is of another kind.
        """
        if isinstance(source, Model):
            return source
        if isinstance(source, (str, Path)):
            path = Path(source)
            return cls._from_proto(_read(path), path)
        if isinstance(source, onnx.ModelProto):
            return cls._from_proto(source, None)
        if isinstance(source, gs.Graph):
            return cls(source.copy())
        if type(source).__module__.split(".")[0] == "onnx_ir":
            import onnx_ir

            return cls._from_proto(onnx_ir.to_proto(source), None)
        raise UsageError(
            f"cannot read a model from {type(source).__name__!r}; "
            "pass a path, an onnx.ModelProto, an onnx_graphsurgeon.Graph or an onnx_ir.Model"
        )

    @classmethod
    def _from_proto(cls, proto: onnx.ModelProto, path: Path | None) -> Model:
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        records = _mask_records(metadata.pop(MASKS_KEY, None))
        graph = import_model(proto)
        attach_external_data(graph, path.parent if path is not None else None)
        sparse = {t.values.name: t for t in proto.graph.sparse_initializer}
        for name, tensor in graph.tensors().items():
            if name in sparse:
                masked_constant(tensor, MaskedValues(_from_sparse_tensor(sparse[name])))
            elif name in records and isinstance(tensor, gs.Constant):
                masked_constant(tensor, MaskedValues(None, tensor._values, records[name]))
        return cls(graph, metadata, proto, path)

    def copy(self) -> Model:
        """A model that can be edited without changing this one; values of constants are shared."""
        return Model(self.graph.copy(), dict(self.metadata), self.origin, self.path)

    def masked(self) -> dict[str, MaskedConstant]:
        """The masked weights of the main graph by initializer name."""
        return {n: t for n, t in self.graph.tensors().items() if isinstance(t, MaskedConstant)}

    def initializers(self) -> dict[str, gs.Constant]:
        """All constants that nodes of the main graph read, by name."""
        return {n: t for n, t in self.graph.tensors().items() if isinstance(t, gs.Constant)}

    def skeleton(self) -> onnx.ModelProto:
        """The model with the data of large tensors left out, for shape inference.

        The stubs are marked as external, so that nobody takes their missing data for zeros.
        """

        def add(proto: onnx.GraphProto, constant: gs.Constant) -> None:
            if nbytes_of(constant) < STREAMED_FROM:
                proto.initializer.append(full_tensor(constant))
                return
            header = header_of(constant)
            header.data_location = onnx.TensorProto.EXTERNAL
            header.external_data.add(key="location", value="left-out")
            proto.initializer.append(header)

        model = export_model_fields(self.graph, self.origin, self.metadata)
        model.graph.CopyFrom(export_graph(self.graph, self.origin.graph, add))
        return model

    def to_proto(self, storage: Storage = "dense") -> onnx.ModelProto:
        """The model as one ModelProto, all data inside.

        Raises:
            UnsupportedError: it would pass the 2 GB that protobuf allows; save it to a file instead.
        """
        parts = self._parts(storage)
        size = parts.graph.ByteSize() + sum(nbytes_of(c) for c in parts.large)
        if size >= PROTOBUF_LIMIT:
            raise UnsupportedError(f"a model of {size / 2**30:.1f} GiB does not fit in one ModelProto; save it to a file")
        parts.graph.initializer.extend(full_tensor(c) for c in parts.large)
        model = parts.fields
        model.graph.CopyFrom(parts.graph)
        return model

    def save(self, path: str | Path, *, storage: Storage = "dense", force: bool = False) -> None:
        """Write the model; the target is replaced only once the new file is complete.

        Args:
            path: the target. Where the model passes 2 GB, large weights go to ``<path>.data`` beside it.
            storage: ``dense`` keeps masked weights as ordinary tensors, which every tool reads; ``sparse`` as ONNX
                ``sparse_initializer``, which is smaller.
            force: replace an existing file.

        Raises:
            OutputError: the file exists and ``force`` is off, or it cannot be written.
            UnsupportedError: sparse storage of a dtype or size that ONNX cannot hold.
        """
        target = Path(path)
        check_output(target, force)
        write_model(self._parts(storage), target)

    def _parts(self, storage: Storage) -> ModelParts:
        if storage not in ("dense", "sparse"):
            raise UsageError(f"storage {storage!r} is unknown; choose dense or sparse")
        large: list[gs.Constant] = []
        main = self.initializers()

        def add(proto: onnx.GraphProto, constant: gs.Constant) -> None:
            if isinstance(constant, MaskedConstant) and storage == "sparse":
                proto.sparse_initializer.append(_to_sparse_tensor(constant))
            elif nbytes_of(constant) >= STREAMED_FROM and constant.name in main:
                large.append(constant)
            else:
                proto.initializer.append(full_tensor(constant))

        graph = export_graph(self.graph, self.origin.graph, add)
        metadata = dict(self.metadata)
        masked = self.masked()
        if masked and storage == "dense":
            metadata[MASKS_KEY] = json.dumps({n: c._values.active_zeros for n, c in masked.items()})
        return ModelParts(export_model_fields(self.graph, self.origin, metadata), graph, large)


def _read(path: Path) -> onnx.ModelProto:
    if not path.exists():
        raise ModelReadError(f"{path}: no such file")
    if path.is_dir():
        raise ModelReadError(f"{path} is a folder; name the .onnx file in it")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelReadError(f"cannot read {path}: {error.strerror}") from error
    if not data:
        raise ModelReadError(f"{path} is empty; export it again")
    try:
        proto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelReadError(f"{path} is not an ONNX model, or is truncated; export or copy it again") from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelReadError(f"{path} is not an ONNX model, or is truncated: it has no graph or no opset")
    return proto


def _mask_records(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    try:
        records = json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelReadError(f"the metadata entry {MASKS_KEY!r} is damaged: {error}") from error
    if not isinstance(records, dict) or not all(isinstance(v, str) for v in records.values()):
        raise ModelReadError(f"the metadata entry {MASKS_KEY!r} is damaged: it is no table of masks")
    return records


def _from_sparse_tensor(tensor: onnx.SparseTensorProto) -> SparseWeight:
    shape = tuple(tensor.dims)
    try:
        values = onnx.numpy_helper.to_array(tensor.values)
        indices = onnx.numpy_helper.to_array(tensor.indices).astype(np.int64)
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), shape)
        order = np.argsort(indices, kind="stable") if np.any(np.diff(indices) < 0) else slice(None)
        dtype = np.int32 if np.prod(shape, dtype=np.int64) < 2**31 else np.int64
        return SparseWeight(shape, indices[order].astype(dtype), values[order])
    except ValueError as error:
        raise ModelReadError(f"sparse initializer {tensor.values.name!r} is damaged: {error}") from error


# Readers differ in what they accept: onnxruntime takes raw or typed data, graphsurgeon 0.6 typed data only.
_TYPED_FIELD = {"float32": "float_data", "float64": "double_data", "float16": "int32_data"}


def _to_sparse_tensor(constant: MaskedConstant) -> onnx.SparseTensorProto:
    weight: SparseWeight = constant._values.weight
    field_name = _TYPED_FIELD.get(weight.dtype.name)
    if field_name is None:
        raise UnsupportedError(
            f"initializer {constant.name!r}: sparse storage of {weight.dtype.name} is not supported; use --storage dense"
        )
    tensor = onnx.SparseTensorProto(dims=shape_of(constant))
    tensor.values.name = constant.name
    tensor.values.data_type = onnx.helper.np_dtype_to_tensor_dtype(weight.dtype)
    tensor.values.dims.append(weight.nnz)
    stored = weight.values.view(np.uint16) if weight.dtype == np.float16 else weight.values
    getattr(tensor.values, field_name).extend(stored.tolist())
    tensor.indices.data_type = onnx.TensorProto.INT64
    tensor.indices.dims.append(weight.nnz)
    tensor.indices.int64_data.extend(weight.indices.tolist())
    return tensor


def as_kind_of(source: ModelLike, model: Model) -> Any:
    """``model`` as what ``source`` is: a path gives a Model, everything else its own kind."""
    if isinstance(source, onnx.ModelProto):
        return model.to_proto()
    if isinstance(source, gs.Graph):
        return model.graph
    if type(source).__module__.split(".")[0] == "onnx_ir":
        import onnx_ir

        return onnx_ir.from_proto(model.to_proto())
    return model


def load(path: ModelLike) -> Model:
    """Read a model; see :meth:`Model.load`."""
    return Model.load(path)


def save(model: ModelLike, path: str | Path, storage: Storage = "dense", force: bool = False) -> None:
    """Write a model; see :meth:`Model.save`.

    Raises:
        OutputError: the file exists and ``force`` is off, or it cannot be written.
    """
    if not isinstance(path, (str, Path)):
        raise OutputError(f"cannot write a model to {type(path).__name__!r}; name a file")
    Model.load(model).save(path, storage=storage, force=force)


def masks(model: ModelLike) -> dict[str, npt.NDArray[np.bool_]]:
    """The masks of the masked weights by initializer name, as boolean arrays of the weights' shapes."""
    return {name: constant._values.weight.mask() for name, constant in Model.load(model).masked().items()}
