"""Which axes of a parameter are output and input features."""

from __future__ import annotations

from collections.abc import Mapping

import torch

__all__ = ["DEFAULT_AXES", "axes_of", "known_axes"]

#: As in torch's own layers.
DEFAULT_AXES = (0, 1)


def known_axes(module: torch.nn.Module) -> Mapping[str, tuple[int, int]]:
    """What a module knows of its parameters: its attribute ``feature_axes``, which one imported from ONNX has.

    By parameter name; ``(output axis, input axis)``.
    """
    axes = getattr(module, "feature_axes", None)
    return axes if isinstance(axes, Mapping) else {}


def axes_of(param: torch.Tensor, known: tuple[int, int] | None = None) -> tuple[int, int]:
    """Axes of output and input features: the parameter's own attribute ``feature_axes``, or else ``known``."""
    own = getattr(param, "feature_axes", None)
    out_axis, in_axis = own if own is not None else known if known is not None else DEFAULT_AXES
    return int(out_axis), int(in_axis)
