"""What a module says of its parameters: names and owners, masks that it comes with, axes of features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from sift_onnx.training.packed_masks import PackedMasks

__all__ = ["axes_of", "known_axes", "maskable_parameters", "masks_by_path", "masks_of", "owned_parameters", "unwrapped"]

# Output and input features, as in torch's own layers.
_DEFAULT_AXES = (0, 1)


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The user's module inside DistributedDataParallel and torch.compile, so that names have no prefix."""
    while True:
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), torch.nn.Module):
            module = inner
        else:
            return module


def owned_parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, torch.nn.Parameter]]:
    """Full name, owner and parameter; a tied parameter once, under its first name."""
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for name, param in owner._parameters.items():
            if param is not None and id(param) not in seen:
                seen.add(id(param))
                yield f"{prefix}.{name}" if prefix else name, owner, param


def maskable_parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, torch.nn.Parameter]]:
    """The :func:`owned_parameters` of floating point that are not to stay dense by an attribute ``requires_dense``."""
    for name, owner, param in owned_parameters(module):
        if getattr(owner, "requires_dense", False) or getattr(param, "requires_dense", False):
            continue
        if param.is_floating_point() and param.numel():
            yield name, owner, param


def masks_of(module: torch.nn.Module) -> PackedMasks:
    """The masks a module knows of itself, as one imported from ONNX does: its attribute ``masks``, or none."""
    masks = getattr(module, "masks", None)
    if isinstance(masks, PackedMasks):
        return masks
    if not isinstance(masks, Mapping):
        return PackedMasks()
    return PackedMasks({name: mask for name, mask in masks.items() if isinstance(mask, torch.Tensor)})


def masks_by_path(module: torch.nn.Module, masks: PackedMasks) -> PackedMasks:
    """``masks`` by parameter name, of a module whose ``parameter_paths`` say where a few initializers are kept."""
    paths = getattr(module, "parameter_paths", None)
    return masks.renamed(paths if isinstance(paths, Mapping) else {})


def known_axes(module: torch.nn.Module) -> Mapping[str, tuple[int, int]]:
    """What a module knows of its parameters: its attribute ``feature_axes``, which one imported from ONNX has.

    By parameter name; ``(output axis, input axis)``.
    """
    axes = getattr(module, "feature_axes", None)
    return axes if isinstance(axes, Mapping) else {}


def axes_of(param: torch.Tensor, known: tuple[int, int] | None = None) -> tuple[int, int]:
    """Axes of output and input features: the parameter's own attribute ``feature_axes``, or else ``known``."""
    own = getattr(param, "feature_axes", None)
    out_axis, in_axis = own if own is not None else known if known is not None else _DEFAULT_AXES
    return int(out_axis), int(in_axis)
