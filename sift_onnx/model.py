"""Model: an onnx-graphsurgeon graph, plus what graphsurgeon drops; loading, saving and conversion."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, overload

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.errors import ModelReadError, OutputError, SiftError, UnsupportedError, UsageError
from sift_onnx.files.detached_data import CutOutData, locate_data
from sift_onnx.files.external_data import DataFiles
from sift_onnx.graphs.constant_tensors import full_tensor, stub_of
from sift_onnx.graphs.constants import MaskedConstant, nbytes_of
from sift_onnx.graphs.exporting import export_graph, export_model_fields, graph_constants
from sift_onnx.graphs.importing import copy_graph, import_model, normalize_constants, own_arrays, restore_masks
from sift_onnx.graphs.onnx_ir_export import ir_model_of
from sift_onnx.graphs.sparsity_notes import note_sparsity
from sift_onnx.graphs.topological_order import sort_nodes
from sift_onnx.model_files import writer as model_file
from sift_onnx.model_files.paths import check_output
from sift_onnx.model_files.reader import parse_model, read_model, refuse_incomplete
from sift_onnx.model_files.sparse_stream import LargeSparseTensor
from sift_onnx.model_files.storage import (
    IR_VERSION_OF_SPARSE_INITIALIZERS,
    Storage,
    add_initializer,
    hide_sparse_initializers,
    is_stored_sparse,
)
from sift_onnx.weights.mask_storage import MASKS_KEY, mask_records, text_of_masks

if TYPE_CHECKING:
    import onnx_ir

__all__ = ["MASKS_KEY", "Model", "ModelLike", "Storage", "as_kind_of", "load", "masks", "save"]

ModelLike = Union[str, Path, bytes, onnx.ModelProto, gs.Graph, "onnx_ir.Model", "Model"]
# What functions that rewrite return as the kind that they were given; a graph comes last, since it has no types.
OtherModel = TypeVar("OtherModel", bytes, onnx.ModelProto, "onnx_ir.Model")


@dataclass
class Model:
    """An ONNX model that can be rewritten.

    Attributes:
        graph: the graph, which can be edited. Masked weights are :class:`~sift_onnx.graphs.constants.MaskedConstant`.
        metadata: the model's ``metadata_props``, without the entry for masks.
        origin: the original model; read-only, has what ``graph`` does not represent. Large initializers of a model
            from a file are left out of it, and marked as external.
        path: of the file that it was loaded from, if any.
    """

    graph: gs.Graph
    metadata: dict[str, str] = field(default_factory=dict)
    origin: onnx.ModelProto = field(default_factory=onnx.ModelProto, repr=False)
    path: Path | None = None

    @classmethod
    def load(cls, source: ModelLike) -> Model:
        """A model from a path, a ModelProto, bytes, a graphsurgeon graph, an ``onnx_ir.Model``, or a Model (as it is).

        What is passed in is not changed, nor may it be changed as long as the Model is used. A file may be removed or
        replaced, and is replaced by :meth:`save`; one that is written to in place gives an error when its data is read.

        Raises:
            ModelReadError: the file is not an ONNX model, is truncated, or its external data is missing or too short.
            UnsupportedError: the model holds what cannot be represented.
            UsageError: ``source`` is of another kind.
        """
        if isinstance(source, Model):
            return source
        if isinstance(source, (str, Path)):
            if source == "":
                raise ModelReadError("the name is empty; name a file")
            return _from_file(Path(source))
        if isinstance(source, bytes):
            return _from_proto(parse_model(source, f"what was passed ({len(source)} bytes)"), None)
        if isinstance(source, onnx.ModelProto):
            refuse_incomplete(source, "the ModelProto that was passed")
            return _from_proto(source, None)
        if isinstance(source, gs.Graph):
            graph = copy_graph(source)
            sort_nodes(graph)
            normalize_constants(graph, {})
            # graphsurgeon has no place for them; as_kind_of() puts them there.
            return cls(graph, dict(vars(source).get("metadata_props", {})))
        if type(source).__module__.split(".")[0] == "onnx_ir":
            return _from_onnx_ir(source)
        if isinstance(getattr(source, "model", None), Model):
            raise UsageError(f"cannot read a model from {type(source).__name__!r}; pass its attribute model")
        raise UsageError(
            f"cannot read a model from {type(source).__name__!r}; "
            "pass a path, an onnx.ModelProto or its bytes, an onnx_graphsurgeon.Graph or an onnx_ir.Model"
        )

    def __repr__(self) -> str:
        """One line, where a graph would print all its nodes."""
        nodes, masked = len(self.graph.nodes), len(self.masked())
        file = "" if self.path is None else f"{str(self.path)!r}, "
        return f"Model({file}opset {self.graph.opset}, {nodes:,} nodes, {masked:,} masked weights)"

    def copy(self) -> Model:
        """A model that can be edited without changing this one; values of constants are shared."""
        return Model(copy_graph(self.graph), dict(self.metadata), self.origin, self.path)

    def __copy__(self) -> Model:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        twin = self.copy()
        memo[id(self)] = twin
        own_arrays(twin.graph)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        """The model with all its data, as :meth:`to_proto` returns it, independent of files.

        Raises:
            UnsupportedError: it would pass 2 GB; save it to a file, and pickle the path.
        """
        return _from_pickle, (self.to_proto().SerializeToString(), self.path)

    def masked(self) -> dict[str, MaskedConstant]:
        """The masked weights of the main graph by initializer name."""
        return {n: t for n, t in self.graph.tensors().items() if isinstance(t, MaskedConstant)}

    def initializers(self) -> dict[str, gs.Constant]:
        """All constants that nodes of the main graph read, by name."""
        return {n: t for n, t in self.graph.tensors().items() if isinstance(t, gs.Constant)}

    def skeleton(self) -> onnx.ModelProto:
        """The model with the data of large tensors of the main graph left out, for shape inference; see ``stub_of``."""

        def add(proto: onnx.GraphProto, constant: gs.Constant, known: onnx.TensorProto | None, main: bool) -> None:
            # Initializers of subgraphs have no other place: two branches may use one name for different ones.
            tensor = stub_of(constant, model_file.STREAMED_FROM, known) if main else full_tensor(constant, known)
            proto.initializer.append(tensor)

        model = export_model_fields(self.graph, self.origin, self.metadata)
        export_graph(self.graph, self.origin.graph, model.graph, add, ir_version=model.ir_version)
        return model

    def to_proto(self, storage: Storage = "dense") -> onnx.ModelProto:
        """The model as one ModelProto, all data inside.

        Raises:
            UnsupportedError: it would pass the 2 GB that protobuf allows; save it to a file instead.
        """
        sparse = self._stored_sparse(storage)
        dense = sum(nbytes_of(constant) for name, constant in self.initializers().items() if name not in sparse)
        size = dense + sum(LargeSparseTensor(constant).nbytes for constant in sparse.values())
        if size >= model_file.PROTOBUF_LIMIT:
            raise UnsupportedError(
                f"a model of {size / 2**30:.1f} GiB does not fit in one ModelProto; save it to a file"
            )
        model = self._fields(storage)

        def add(proto: onnx.GraphProto, constant: gs.Constant, known: onnx.TensorProto | None, main: bool) -> None:
            add_initializer(proto, constant, known, storage)

        export_graph(self.graph, self.origin.graph, model.graph, add, ir_version=model.ir_version)
        note_sparsity(model.graph, self.masked())
        hide_sparse_initializers(model.graph)
        return model

    def to_onnx_ir(self) -> Any:
        """The model as an ``onnx_ir.Model`` of any size, with lazy large tensors."""
        skeleton, masked = self.skeleton(), self.masked()
        note_sparsity(skeleton.graph, masked)
        return ir_model_of(skeleton, graph_constants(self.graph, self.origin.graph), masked)

    def save(
        self,
        path: str | Path,
        *,
        storage: Storage = "dense",
        force: bool = False,
        external_from: int | None = None,
        progress: model_file.Progress | None = None,
    ) -> Path | None:
        """Write the model; the target is replaced only once the new file is complete.

        Args:
            path: the target. Where the model passes 2 GB, large weights go to ``<path>.data``, or to ``<path>.data1``
                and so on where that file exists.
            storage: ``dense`` keeps masked weights as ordinary tensors, which every tool reads; ``sparse`` as ONNX
                ``sparse_initializer``, which is smaller, but for those that are outputs of the model.
            force: replace an existing file.
            external_from: size in bytes from which weights go to the data file in any case.
            progress: called with the bytes of large weights written so far, and in all.

        Returns:
            The data file, if there is one.

        Raises:
            OutputError: the file exists and ``force`` is off, or it cannot be written.
            UnsupportedError: sparse storage of a dtype that readers do not take.
            UsageError: ``external_from`` is below 1.
        """
        target = Path(path)
        if external_from is not None and external_from < 1:
            raise UsageError(f"weights of {external_from} bytes have no data to lie elsewhere; use 1 or more")
        check_output(target, force)
        large_from = min(model_file.STREAMED_FROM, external_from or model_file.STREAMED_FROM)
        fields = self._fields(storage)
        graph = onnx.GraphProto()
        large: list[model_file.LargeTensor | LargeSparseTensor] = []

        def add(proto: onnx.GraphProto, constant: gs.Constant, known: onnx.TensorProto | None, main: bool) -> None:
            sparse = is_stored_sparse(constant, storage, {info.name for info in proto.output})
            tensor = LargeSparseTensor(constant, known) if sparse else model_file.LargeTensor(constant, known)
            if main and tensor.nbytes >= large_from:
                large.append(tensor)
            else:
                add_initializer(proto, constant, known, storage)

        export_graph(self.graph, self.origin.graph, graph, add, ir_version=fields.ir_version)
        note_sparsity(graph, self.masked())
        sparse_names = {tensor.constant.name for tensor in large if isinstance(tensor, LargeSparseTensor)}
        hide_sparse_initializers(graph, sparse_names)
        parts = model_file.ModelParts(fields, graph, large)
        return model_file.write_model(parts, target, external_from=external_from, progress=progress)

    def _fields(self, storage: Storage) -> onnx.ModelProto:
        """The model without its graph, for this storage of masks."""
        if storage not in ("dense", "sparse"):
            raise UsageError(f"storage {storage!r} is unknown; choose dense or sparse")
        metadata = dict(self.metadata)
        sparse = self._stored_sparse(storage)
        dense = {name: constant for name, constant in self.masked().items() if name not in sparse}
        if dense:
            metadata[MASKS_KEY] = text_of_masks(dense)
        fields = export_model_fields(self.graph, self.origin, metadata)
        if sparse:
            fields.ir_version = max(fields.ir_version, IR_VERSION_OF_SPARSE_INITIALIZERS)
        return fields

    def _stored_sparse(self, storage: Storage) -> dict[str, MaskedConstant]:
        """The masked weights of the main graph that this storage writes as sparse initializers."""
        outputs = {tensor.name for tensor in self.graph.outputs}
        return {n: c for n, c in self.masked().items() if is_stored_sparse(c, storage, outputs)}


def _from_file(path: Path) -> Model:
    proto, cut = read_model(path)
    try:
        model = _from_proto(proto, DataFiles(path), cut)
    except SiftError as error:
        raise type(error)(f"{path}: {error}") from error
    model.path = path
    return model


def _from_pickle(content: bytes, path: Path | None) -> Model:
    model = Model.load(content)
    model.path = path
    return model


def _from_proto(proto: onnx.ModelProto, files: DataFiles | None, cut: CutOutData | None = None) -> Model:
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    records = mask_records(metadata.pop(MASKS_KEY, None))
    graph = import_model(proto, locate_data(proto, files, cut or {}))
    # Converters append nodes behind those that read what they make, and onnxruntime accepts that. A BatchNormalization
    # may write over what it reads.
    sort_nodes(graph, leaves_cycles=True)
    if records:
        restore_masks(graph, records)
    return Model(graph, metadata, proto)


def _from_onnx_ir(source: Any) -> Model:
    import onnx_ir

    tensors = [value.const_value for value in source.graph.initializers.values()]
    folders = {Path(t.base_dir) for t in tensors if isinstance(t, onnx_ir.ExternalTensor)}
    files = DataFiles(folders.pop() / "model.onnx") if len(folders) == 1 else None
    return _from_proto(onnx_ir.to_proto(source), files)


@overload
def as_kind_of(source: str | Path | Model, model: Model) -> Model: ...
@overload
def as_kind_of(source: OtherModel, model: Model) -> OtherModel: ...
@overload
def as_kind_of(source: gs.Graph, model: Model) -> gs.Graph: ...
def as_kind_of(source: ModelLike, model: Model) -> Any:
    """``model`` as the kind of model that ``source`` is; a Model where that is a path."""
    if isinstance(source, bytes):
        return model.to_proto().SerializeToString()
    if isinstance(source, onnx.ModelProto):
        return model.to_proto()
    if isinstance(source, gs.Graph):
        model.graph.metadata_props = dict(model.metadata)
        return model.graph
    if type(source).__module__.split(".")[0] == "onnx_ir":
        return model.to_onnx_ir()
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
    if path == "":
        raise OutputError("the name is empty; name a file")
    Model.load(model).save(path, storage=storage, force=force)


def masks(model: ModelLike) -> dict[str, npt.NDArray[np.bool_]]:
    """The masks of the masked weights by initializer name, as boolean arrays of the weights' shapes."""
    return {name: constant.weight.mask() for name, constant in Model.load(model).masked().items()}
