"""Which kernels suit a masked layer, by its mask and by what a step multiplies with it.

A rule and not a time, so that a resumed training chooses the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sift_onnx.training.sparse_layers.choices import LayerChoice
from sift_onnx.training.sparse_layers.graph_layers import GraphLayer
from sift_onnx.training.sparse_layers.lanes.tensors import LANES
from sift_onnx.training.sparse_layers.layer import Product
from sift_onnx.training.sparse_layers.weights import MaskedWeight

__all__ = ["KernelSetting", "choose", "used_lanes"]

KernelSetting = Literal["auto", "sparse", "dense"]

# Of the dense layer's multiply-adds, those that sparse kernels do. It leaves out layers that would be faster rather
# than take some that are slower.
_MOST_WORK = 1 / 3

# What sparse kernels take of a product of tokens, as long as so many multiply-adds of a dense one do; fitted to layers
# of 192 to 768 features, 16 to 1,024 rows and 10 to 30 % of active weights on an Intel Xeon (family 6, model 207).
_ACTIVE = 1.1  # for each row and active weight
_WEIGHT = 0.13  # for each row and weight
_FEATURE = 52  # for each row and feature of input and output: conversions
_REFRESH = 200  # for each active weight: values are put in place, gradients brought back
_CALL = 5_000_000


def used_lanes(batch_size: int) -> float:
    """The share of lanes that a batch of images fills."""
    return batch_size / (-(-batch_size // LANES) * LANES)


def choose(
    weight: MaskedWeight,
    layer: GraphLayer | Product | str,
    kernels: KernelSetting | Mapping[str, str],
    batch_size: int,
    rows: int | None,
) -> LayerChoice:
    """The kernels of a layer.

    Args:
        weight: of the layer.
        layer: what it computes, or why sparse kernels do not.
        kernels: the setting, or kernels by the weight's name.
        batch_size: images of a step.
        rows: that a product of tokens has in a step; None if that is not known.
    """
    setting = kernels.get(weight.name, "dense") if isinstance(kernels, Mapping) else kernels
    active = f"{weight.density:.0%} of its weights are active"
    if setting == "dense":
        return LayerChoice(weight.name, "dense", "kernels dense")
    if isinstance(layer, str):
        return LayerChoice(weight.name, "dense", layer)
    if setting == "sparse":
        return LayerChoice(weight.name, "sparse", "kernels sparse")
    product = layer.product if isinstance(layer, GraphLayer) else layer
    if product.is_per_image:
        used = used_lanes(batch_size)
        reason = active if used == 1 else f"{active}, and {used:.0%} of the lanes are used in batches of {batch_size}"
        return LayerChoice(weight.name, "sparse" if weight.density <= _MOST_WORK * used else "dense", reason)
    pays = weight.density <= _MOST_WORK and (rows is None or _token_work(weight, rows) < 1)
    return LayerChoice(
        weight.name, "sparse" if pays else "dense", active if rows is None else f"{active}, in {rows} rows of a step"
    )


def _token_work(weight: MaskedWeight, rows: int) -> float:
    """The estimated time of sparse kernels in that of torch's."""
    weights, features = weight.mask.numel(), sum(weight.mask.shape)
    nnz = weight.density * weights
    per_row = _ACTIVE * nnz + _WEIGHT * weights + _FEATURE * features
    return (rows * per_row + _REFRESH * nnz + _CALL) / max(rows * weights, 1)
