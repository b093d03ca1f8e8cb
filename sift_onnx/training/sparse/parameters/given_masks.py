"""Masks that a model comes with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

__all__ = ["masks_by_path", "masks_of"]


def masks_of(module: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """The masks a module knows of itself, as one imported from ONNX does: its attribute ``masks``, or none."""
    masks = getattr(module, "masks", None)
    if not isinstance(masks, Mapping):
        return {}
    return {name: mask for name, mask in masks.items() if isinstance(mask, torch.Tensor)}


def masks_by_path(module: torch.nn.Module, masks: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``masks`` by parameter name, of a module whose ``parameter_paths`` say where a few initializers are kept."""
    paths = getattr(module, "parameter_paths", None)
    return {paths.get(name, name) if isinstance(paths, Mapping) else name: mask for name, mask in masks.items()}
