"""Imported models with masks, and their training on either kind of kernels."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sift_onnx.training import ImportedModule, LayerChoice, sparsify_layers


def with_masks(module: ImportedModule, density: float = 0.3, seed: int = 0) -> ImportedModule:
    """The module with random masks on all its weights of two axes and more, which they are set to."""
    draw = torch.Generator().manual_seed(seed)
    for name, path in module.parameter_paths.items():
        weight = dict(module.named_parameters()).get(path)
        if weight is not None and weight.dim() > 1 and path in module.feature_axes:
            module.masks[name] = torch.rand(weight.shape, generator=draw) < density
            with torch.no_grad():
                weight.mul_(module.masks[name])
    return module


def sparsified(module: nn.Module, kernels: Any = "sparse", **settings: Any) -> tuple[Any, dict[str, LayerChoice]]:
    """A copy on sparse kernels, and the choices by name."""
    found: list[LayerChoice] = []
    twin = sparsify_layers(copy.deepcopy(module), kernels=kernels, report=found.append, **settings)
    return twin, {choice.name: choice for choice in found}


@dataclass(frozen=True)
class Run:
    """What a training leaves: outputs of all steps, the input's gradients, and the state."""

    outputs: list[Tensor]
    gradients: list[Tensor]
    state: dict[str, Tensor]


def run(module: nn.Module, batches: Sequence[Tensor], masks: dict[str, Tensor] | None = None) -> Run:
    """Train a copy for a step per batch; gradients of dense parameters are masked."""
    module = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    outputs, gradients = [], []
    dtype = next(module.parameters()).dtype
    for batch in batches:
        x = batch.to(dtype, copy=True) if batch.is_floating_point() else batch
        if x.is_floating_point():
            x.requires_grad_()
        y = module(x)
        # A loss that weighs every output otherwise.
        (y * torch.linspace(-1, 1, y.numel(), dtype=dtype).reshape(y.shape)).mean().backward()
        for name, mask in (masks or {}).items():
            if module.get_parameter(name).shape == mask.shape:
                module.get_parameter(name).grad.mul_(mask)
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(y.detach())
        gradients.append(x.grad if x.is_floating_point() else torch.zeros(()))
    return Run(outputs, gradients, {k: v for k, v in module.state_dict().items() if not k.endswith("_mask")})


def assert_as_exact_as_torch(module: ImportedModule, batches: Sequence[Tensor], twin: nn.Module | None = None) -> None:
    """Compare trainings on sparse kernels and on torch's with one in double precision.

    The error is at most twice torch's, and twice the rounding of single precision where torch's is by chance smaller.
    """
    masks = {module.parameter_paths[name]: mask for name, mask in module.masks.items()}
    twin = sparsified(module)[0] if twin is None else twin
    ours, theirs = run(twin, batches, masks), run(module, batches, masks)
    exact = run(copy.deepcopy(module).double(), batches, masks)
    assert ours.state.keys() == theirs.state.keys()
    named = [("output", ours.outputs, theirs.outputs, exact.outputs)]
    named += [("gradient", ours.gradients, theirs.gradients, exact.gradients)]
    named += [("state", *([r.state[k] for k in ours.state] for r in (ours, theirs, exact)))]
    for what, mine, others, wanted in named:
        for i, (a, b, c) in enumerate(zip(mine, others, wanted, strict=True)):
            assert a.shape == c.shape, what
            if not c.numel() or not a.is_floating_point():
                continue
            scale = float(c.abs().max()) or 1.0
            error, allowed = float((a - c).abs().max()) / scale, float((b - c).abs().max()) / scale
            assert error <= 2 * allowed + 4e-6, f"{what} {i}: {error} against {allowed}"
