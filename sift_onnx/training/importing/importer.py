"""``to_torch``: a torch.fx module from an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sift_onnx.graphs.constants import array_of, sparse_weight_of
from sift_onnx.model import Model, ModelLike
from sift_onnx.training.importing.feature_axes import feature_axes_of
from sift_onnx.training.importing.names import attribute_paths
from sift_onnx.training.importing.parameters import roles_of
from sift_onnx.training.kernels.normalization import BatchNormalization
from sift_onnx.training.lowering import Lowering
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.packed_masks import PackedMasks
from sift_onnx.training.prepare import prepare, stored_constants
from sift_onnx.training.tensors import HALF_TYPES, tensor_from_array
from sift_onnx.weights.packed_mask import PackedMask

__all__ = ["to_torch"]


def to_torch(model: ModelLike, *, trainable: Sequence[str] = (), biased_statistics: bool = False) -> ImportedModule:
    """A torch module that computes what the model computes, and can be trained.

    Weights, biases, scales and tables are parameters in ONNX's layout, one for each initializer; running statistics of
    BatchNormalization are buffers, and so are weights that are fixed functions
    (:mod:`sift_onnx.analysis.fixed_weights`).
    ``state_dict`` keys are initializer names; what :class:`UnshareInitializers` gives a tensor of its own has the name
    that it gets there. BatchNormalization and Dropout follow ``train()`` and ``eval()``; the module comes in evaluation
    mode. Parameters of 16 bits are kept as float32, and rounded where they are used.

    Args:
        model: a path, a Model, an ``onnx.ModelProto``, an ``onnx_graphsurgeon.Graph`` or an ``onnx_ir.Model``; it is
            not changed.
        trainable: globs of further initializers that are parameters, fixed functions too; see
            :mod:`sift_onnx.training.importing.parameters` for those that are found.
        biased_statistics: update running variances of BatchNormalization with the biased variance of the batch, as
            ONNX defines it, and not with the unbiased one, as torch does.

    Returns:
        The module. ``forward`` takes the model's inputs in their order, or by name, and returns its output, or a tuple
        of its outputs.

    Raises:
        UnsupportedError: an operator or data type has no kernel; the message names the node.
        SiftError: the model cannot be read, see :meth:`~sift_onnx.model.Model.load`.
    """
    prepared = prepare(Model.load(model))
    stored = stored_constants(prepared.graph)
    roles = roles_of(prepared.graph, trainable)
    paths = attribute_paths(roles, reserved=Lowering.RESERVED)
    lowering = Lowering.of_model(prepared, paths)
    lowering.run()
    tensors: dict[str, torch.Tensor] = {}
    for name, role in roles.items():
        tensor = tensor_from_array(array_of(stored[name]))
        if role != "statistic" and tensor.dtype in HALF_TYPES:
            tensor = tensor.float()
        if role == "parameter":
            tensor = nn.Parameter(tensor)
        tensors[name] = tensor
    module = ImportedModule(lowering.graph, tensors, paths)
    parameters = [name for name, role in roles.items() if role == "parameter"]
    module.feature_axes = {paths[name]: axes for name, axes in feature_axes_of(prepared.graph, parameters).items()}
    for holder, contents in lowering.holders().items():
        module.add_module(holder, contents)
    module.masks = masks = PackedMasks()
    for name in roles:
        weight = sparse_weight_of(stored[name])
        if weight is not None:
            masks.put(name, PackedMask.of_weight(weight))
    for layer in module.modules():
        if isinstance(layer, BatchNormalization):
            layer.biased = biased_statistics
    return module.eval()
