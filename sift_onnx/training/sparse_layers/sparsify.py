"""Masked layers that run on sparse kernels, and back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import fx, nn

from sift_onnx.errors import UsageError
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse.parameters.compact import compact_parameter, dense_parameter
from sift_onnx.training.sparse.parameters.of_module import unwrapped
from sift_onnx.training.sparse_layers.choices import LayerChoice
from sift_onnx.training.sparse_layers.choosing import KernelSetting, choose, used_lanes
from sift_onnx.training.sparse_layers.graph_layers import GraphLayer, graph_layers
from sift_onnx.training.sparse_layers.held_layers import HOLDER, keep_layer, layer_at
from sift_onnx.training.sparse_layers.lane_graph import put_in_lanes
from sift_onnx.training.sparse_layers.lanes.tensors import LANES
from sift_onnx.training.sparse_layers.layer import Product, SparseLayer
from sift_onnx.training.sparse_layers.modules import ModuleForward, product_of
from sift_onnx.training.sparse_layers.plain_graph import take_out_of_lanes
from sift_onnx.training.sparse_layers.weights import MaskedWeight, masked_weights

__all__ = ["densify_layers", "sparsify_layers"]


def sparsify_layers(
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    kernels: KernelSetting | Mapping[str, str] = "auto",
    report: Callable[[LayerChoice], None] | None = None,
    *,
    batch_size: int | None = None,
    rows: Mapping[str, int] | None = None,
) -> nn.Module:
    """Let masked layers compute with their active weights alone, in forward and backward passes.

    A layer has a mask if a sparsity algorithm was attached to the module, or if an imported module came with one. In an
    imported module, Conv, Gemm and MatMul are taken, and what lies between them works on the layout of the kernels,
    convolutions of dense weights included where that pays; in another one Conv1d, Conv2d and Linear, each by itself.
    Parameters of the layers taken become vectors of active weights under the same names, and ``state_dict`` stays as it
    was. Kernels compute in float32, under autocast too, and have no second
    derivative. A layer that they cannot take stays as it is, and ``report`` hears why.

    Args:
        module: the module; it is changed in place.
        optimizer: over its parameters; its states follow them.
        kernels: ``auto`` takes sparse kernels for layers where they do at most a third of the dense multiply-adds,
            ``sparse`` for all, ``dense`` for none; or ``sparse`` or ``dense`` by the weight's name. What ``auto``
            chooses depends on masks, batch size and rows alone, so a training that is resumed gets the same.
        report: is called with the choice for each masked layer.
        batch_size: of a step. Kernels compute 16 images at a time: in a batch of 4, three quarters of a convolution's
            work is wasted, and ``auto`` counts it. Without a size, ``auto`` assumes a multiple of 16.
        rows: of a step, by the name of the weight of a product of tokens, as
            :func:`~sift_onnx.training.layer_rows` counts them. Few rows are not worth what sparse kernels take for each
            step. Without them, ``auto`` assumes many.

    Returns:
        The module.

    Raises:
        UsageError: ``kernels`` is something else, or ``batch_size`` is not positive.
    """
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}; it has to be positive")
    root = unwrapped(module)
    weights = list(masked_weights(root))
    _check(kernels, weights)
    layers: dict[str, GraphLayer | Product | str] = {}
    places: dict[fx.Node, str] = {}
    if isinstance(root, ImportedModule) and weights:
        # The graph is rewritten as a whole, since layers that are sparse already may be neighbors of new ones.
        places = take_out_of_lanes(root)
        layers.update(graph_layers(root, weights))
    else:
        layers.update((weight.name, weight.obstacle or product_of(weight)) for weight in weights)
    taken: list[MaskedWeight] = []
    for weight in weights:
        choice = choose(weight, layers[weight.name], kernels, batch_size or LANES, (rows or {}).get(weight.name))
        if choice.kernels == "sparse":
            taken.append(weight)
        if report is not None:
            report(choice)
    places.update(_replace(root, taken, layers, optimizer))
    if places:
        assert isinstance(root, ImportedModule)
        put_in_lanes(root, places, used_lanes(batch_size or LANES))
        root.recompile()
    return module


def densify_layers(
    module: nn.Module, optimizer: torch.optim.Optimizer | None = None, names: Collection[str] | None = None
) -> nn.Module:
    """Put torch's kernels and dense parameters back, as they were before :func:`sparsify_layers`.

    Args:
        module: the module; it is changed in place.
        optimizer: over its parameters; its states follow them.
        names: of the weights of the layers to change; None for all.

    Returns:
        The module.
    """
    root = unwrapped(module)
    layers: list[SparseLayer] = []
    places: dict[fx.Node, str] = {}
    if isinstance(root, ImportedModule):
        holder = root.get_submodule(HOLDER)
        for node, place in take_out_of_lanes(root).items():
            layer = layer_at(root, place)
            if names is None or layer.name in names:
                layers.append(layer)
                delattr(holder, place.rpartition(".")[2])
            else:
                places[node] = place
    for owner in root.modules():
        forward = vars(owner).get("forward")
        if isinstance(forward, ModuleForward) and (names is None or forward.layer.name in names):
            layers.append(forward.layer)
            del owner.forward
    for layer in layers:
        dense_parameter(layer.owner[0], layer.parameter, optimizer)
    if isinstance(root, ImportedModule):
        # Once their parameters are dense, the layers may be in lanes as other dense ones are.
        if places:
            put_in_lanes(root, places)
        root.recompile()
    return module


def _check(kernels: KernelSetting | Mapping[str, str], weights: list[MaskedWeight]) -> None:
    named = kernels if isinstance(kernels, Mapping) else {"": kernels}
    allowed = ("sparse", "dense") if isinstance(kernels, Mapping) else ("auto", "sparse", "dense")
    for name, value in named.items():
        if value not in allowed:
            of = f" of {name!r}" if name else ""
            raise UsageError(f"kernels{of} is {value!r}; choose {', '.join(allowed[:-1])} or {allowed[-1]}")
    if isinstance(kernels, Mapping):
        unknown = sorted(set(kernels) - {weight.name for weight in weights})
        if unknown:
            raise UsageError(f"kernels names {unknown[0]!r}, which is not a masked weight of the module")


def _replace(
    root: nn.Module,
    taken: list[MaskedWeight],
    layers: Mapping[str, GraphLayer | Product | str],
    optimizer: torch.optim.Optimizer | None,
) -> dict[fx.Node, str]:
    """Make layers sparse; the nodes of those that lie in a graph, and where it keeps the layers."""
    places: dict[fx.Node, str] = {}
    for weight in taken:
        found = layers[weight.name]
        assert not isinstance(found, str)
        product = found.product if isinstance(found, GraphLayer) else found
        layer = SparseLayer(weight.name, (weight.owner,), weight.parameter, product)
        if isinstance(found, GraphLayer):
            assert isinstance(root, ImportedModule)
            places[found.node] = keep_layer(root, layer)
        else:
            weight.owner.forward = ModuleForward(layer)
        compact_parameter(weight.owner, weight.parameter, weight.mask, optimizer)
    return places
