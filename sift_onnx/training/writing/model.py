"""``write_back``: the original model with the trained tensors in it, and nothing else changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
import torch
from torch import nn

from sift_onnx.errors import PreconditionError, UsageError
from sift_onnx.graphs.constants import array_of, dtype_of, replace_values, shape_of, sparse_weight_of
from sift_onnx.model import Model, ModelLike, OtherModel, as_kind_of
from sift_onnx.passes.prepare.inference_mode import InferenceMode
from sift_onnx.passes.prepare.unshare_initializers import UnshareInitializers
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.prepare import prepare, stored_constants
from sift_onnx.training.sparse.distributed import full_tensor
from sift_onnx.training.tensors import array_from_tensor
from sift_onnx.training.writing.proto_patch import NewValue, dense_values, patched_proto
from sift_onnx.weights.sparse import SparseWeight, index_dtype

__all__ = ["write_back"]

Array = npt.NDArray[Any]

_MASK = "_mask"


@overload
def write_back(model: str | Path | Model, module: nn.Module | Mapping[str, torch.Tensor]) -> Model: ...
@overload
def write_back(model: OtherModel, module: nn.Module | Mapping[str, torch.Tensor]) -> OtherModel: ...
@overload
def write_back(model: gs.Graph, module: nn.Module | Mapping[str, torch.Tensor]) -> gs.Graph: ...
def write_back(model: ModelLike, module: nn.Module | Mapping[str, torch.Tensor]) -> Any:
    """The model with the module's parameters, statistics and masks.

    The model is not exported a second time: nodes, names, metadata and every tensor that did not change stay, and
    a tensor that did keeps its data type and its form (dense or sparse, raw or typed data, the value of a Constant
    node). Where nothing changed, a ModelProto comes back byte for byte. A weight that several parameters shared only
    because an exporter had merged equal values gets an initializer for each, under the module's names, once they
    differ. Nodes in training mode are put into inference mode (:class:`~sift_onnx.passes.InferenceMode`): the module
    trains by its own mode, and the file is for inference.

    A mask is the module's buffer ``<name>_mask`` if there is one, and the model's otherwise. Weights outside of the
    module's masks become zeros; -0.0 becomes 0.0 in tensors that changed.

    Args:
        model: what the module was made from; a path, a Model, an ``onnx.ModelProto``, an ``onnx_graphsurgeon.Graph`` or
            an ``onnx_ir.Model``; it is not changed.
        module: from :func:`~sift_onnx.training.to_torch`, also inside a wrapper such as DistributedDataParallel; or its
            ``state_dict``. If FSDP2 shards the module, every rank has to call this.

    Returns:
        The same kind as ``model``; a :class:`~sift_onnx.model.Model` for a path.

    Raises:
        UsageError: the module has a tensor that the model has not, or of another shape.
        PreconditionError: a weight has non-zeros outside of the model's mask, and the module has no mask for it.
        UnsupportedError: a node cannot be put into inference mode.
    """
    loaded = Model.load(model)
    source = InferenceMode()(loaded).model
    prepared = prepare(source)
    changes = _changes(stored_constants(prepared.graph), _state(module))
    base = source if _fits(source, set(changes)) else prepared
    if base is loaded and isinstance(model, onnx.ModelProto):
        return patched_proto(model, changes)
    if not changes:
        return as_kind_of(model, source if isinstance(model, Model) else source.copy())
    result = base.copy()
    _put(result, changes)
    return as_kind_of(model, result)


def _state(module: nn.Module | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The module's tensors by initializer name; wrappers of one module are looked through."""
    if isinstance(module, Mapping):
        return {name: full_tensor(tensor) for name, tensor in module.items()}
    if not isinstance(module, nn.Module):
        raise UsageError(f"cannot write back a {type(module).__name__}; pass a module of to_torch, or its state_dict")
    while not isinstance(module, ImportedModule):
        inner = getattr(module, "module", getattr(module, "_orig_mod", None))
        if not isinstance(inner, nn.Module):
            break
        module = inner
    return {name: full_tensor(tensor) for name, tensor in module.state_dict().items()}


def _changes(stored: Mapping[str, gs.Constant], state: Mapping[str, torch.Tensor]) -> dict[str, NewValue]:
    masks = {name.removesuffix(_MASK): t for name, t in state.items() if name.endswith(_MASK) and name not in stored}
    found: dict[str, NewValue] = {}
    for name, tensor in state.items():
        if name not in stored:
            if name.endswith(_MASK) and name.removesuffix(_MASK) in state:
                continue
            raise UsageError(f"the module has {name!r}, the model has no such tensor; pass the model it was made from")
        constant = stored[name]
        if tuple(tensor.shape) != shape_of(constant):
            raise UsageError(
                f"{name!r} has shape {list(tensor.shape)} in the module and {list(shape_of(constant))} in the model; "
                "pass the model that the module was made from"
            )
        mask = array_from_tensor(masks[name]).astype(np.bool_) if name in masks else None
        value = _value(name, constant, array_from_tensor(tensor, dtype_of(constant)), mask)
        if value is not None:
            found[name] = value
    return found


def _value(name: str, constant: gs.Constant, trained: Array, mask: Array | None) -> NewValue | None:
    """What the tensor becomes; None if that is what it is."""
    kept = sparse_weight_of(constant)
    if mask is not None and kept is None and mask.all():
        mask = None
    if mask is None and kept is None:
        return None if _same(trained, array_of(constant)) else _positive_zeros(trained)
    if mask is None:
        assert kept is not None
        indices = kept.indices
        outside = np.count_nonzero(trained) - np.count_nonzero(trained.reshape(-1)[indices])
        if outside:
            raise PreconditionError(
                f"{name!r} has {outside} non-zeros outside of its mask: it was trained without it; attach a sparsity "
                "algorithm before training, or drop the masks of the model (densify)"
            )
    else:
        indices = np.flatnonzero(mask).astype(index_dtype(mask.size))
    values = trained.reshape(-1)[indices]
    if kept is not None and np.array_equal(indices, kept.indices) and _same(values, kept.values):
        return None
    return SparseWeight(shape_of(constant), indices, _positive_zeros(values))


def _same(one: Array, other: Array) -> bool:
    # 0.0 and -0.0 are the same weight; NaN is itself.
    return bool(np.all((one == other) | ((one != one) & (other != other))))


def _positive_zeros(values: Array) -> Array:
    return values + np.zeros((), values.dtype) if values.dtype.kind != "b" else values


def _fits(source: Model, names: set[str]) -> bool:
    """Whether each of the changed tensors is one tensor of the model as it came, read as one parameter."""
    if not names <= set(stored_constants(source.graph)):
        return False
    copies: Mapping[str, Any] = UnshareInitializers(renamed_only=True)(source).report["copies"]
    return not names & {*copies, *(name for group in copies.values() for name in group)}


def _put(model: Model, changes: Mapping[str, NewValue]) -> None:
    tensors = model.graph.tensors()
    for name, value in changes.items():
        constant = tensors[name]
        if not isinstance(constant, gs.Constant):
            # The value of a Constant node, which has no mask: sparsity belongs to initializers.
            node = constant.inputs[0]
            node.attrs["value"] = gs.Constant(name, dense_values(value))
        else:
            replace_values(constant, value)
