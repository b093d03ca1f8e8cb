"""Masked weights of a module, and which of them sparse kernels can take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sift_onnx.training.sparse.parameters.compact import compact_weight, compact_weights
from sift_onnx.training.sparse.parameters.of_module import masks_by_path, masks_of

__all__ = ["MaskedWeight", "masked_weights"]


@dataclass(frozen=True)
class MaskedWeight:
    """A weight with a mask.

    Attributes:
        name: as ``named_parameters`` has it.
        owner: the module that has it.
        parameter: its name there.
        values: the parameter, still dense.
        mask: true where a weight is active.
        obstacle: why sparse kernels cannot take it, whatever the layer; None if they can.
    """

    name: str
    owner: nn.Module
    parameter: str
    values: nn.Parameter
    mask: Tensor
    obstacle: str | None

    @property
    def density(self) -> float:
        """Share of active weights."""
        return int(self.mask.count_nonzero()) / max(self.mask.numel(), 1)


def masked_weights(module: nn.Module) -> Iterator[MaskedWeight]:
    """The masked weights that are dense: those of a sparsity algorithm, without one those that the module came with."""
    named = list(module.named_modules())
    attached = any(f"{leaf}_mask" in owner._buffers for _, owner in named for leaf in owner._parameters)
    stored = {} if attached or compact_weights(module) else masks_by_path(module, masks_of(module))
    owners = Counter(id(param) for _, owner in named for param in owner._parameters.values() if param is not None)
    for prefix, owner in named:
        for leaf, param in list(owner._parameters.items()):
            name = f"{prefix}.{leaf}" if prefix else leaf
            # torch.nn.utils.prune keeps the parameter as weight_orig, beside weight_mask.
            mask = owner._buffers.get(f"{leaf.removesuffix('_orig')}_mask", stored.get(name))
            if param is None or mask is None or compact_weight(owner, leaf) is not None or mask.shape != param.shape:
                continue
            obstacle = _obstacle(owner, leaf, param, mask)
            if obstacle is None and owners[id(param)] > 1:
                obstacle = "its weight is shared with another layer"
            yield MaskedWeight(name, owner, leaf, param, mask, obstacle)


def _obstacle(owner: nn.Module, leaf: str, param: nn.Parameter, mask: Tensor) -> str | None:
    if parametrize.is_parametrized(owner):
        return "its weight is parametrized"
    if leaf.endswith("_orig") and f"{leaf}_mask" not in owner._buffers:
        return "its weight is computed by torch.nn.utils.prune"
    if param.device.type != "cpu":
        return f"its weight is on {param.device}; sparse kernels run on the CPU"
    if param.dtype != torch.float32:
        return f"its weight is {str(param.dtype).removeprefix('torch.')}; sparse kernels compute in float32"
    if not bool(mask.any()):
        return "no weight of it is active"
    return None
