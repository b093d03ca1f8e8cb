"""The two ways in which masked weights lie in a model file: as dense or as sparse initializers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import onnx
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constant_tensors import full_tensor, header_of
from sift_onnx.graphs.constants import MaskedConstant
from sift_onnx.model_files.sparse_tensors import sparse_tensor_of

__all__ = [
    "IR_VERSION_OF_SPARSE_INITIALIZERS",
    "Storage",
    "add_initializer",
    "hide_sparse_initializers",
    "is_stored_sparse",
]

Storage = Literal["dense", "sparse"]

# Older versions of the IR have no sparse_initializer.
IR_VERSION_OF_SPARSE_INITIALIZERS = 6


def is_stored_sparse(constant: gs.Constant, storage: Storage, outputs: Collection[str]) -> bool:
    """Whether a constant lies in the file as a sparse initializer.

    Outputs do not: of the model, onnxruntime returns them as sparse tensors; of a subgraph, it fails on them.

    Args:
        constant: an initializer.
        storage: of masked weights.
        outputs: names of the outputs of the graph that the constant belongs to.
    """
    return storage == "sparse" and isinstance(constant, MaskedConstant) and constant.name not in outputs


def add_initializer(
    proto: onnx.GraphProto, constant: gs.Constant, known: onnx.TensorProto | None, storage: Storage
) -> None:
    """Append a constant to the initializers of ``proto``, its data inside; a masked one as ``storage`` says.

    Args:
        proto: the graph that is being built; it has its outputs.
        constant: what is appended.
        known: the tensor of that name in the original model, if it had one.
        storage: of masked weights.

    Raises:
        UnsupportedError: ONNX, or its sparse storage, has no tensors of that type.
    """
    if is_stored_sparse(constant, storage, {info.name for info in proto.output}):
        proto.sparse_initializer.append(sparse_tensor_of(constant.weight, header_of(constant, known)))
    else:
        proto.initializer.append(full_tensor(constant, known))


def hide_sparse_initializers(graph: onnx.GraphProto, others: Collection[str] = ()) -> None:
    """Remove sparse initializers, ``others`` too, from the inputs of the graph, which are declared as dense tensors."""
    names = {tensor.values.name for tensor in graph.sparse_initializer} | set(others)
    inputs = [info for info in graph.input if info.name not in names]
    if len(inputs) < len(graph.input):
        del graph.input[:]
        graph.input.extend(inputs)
