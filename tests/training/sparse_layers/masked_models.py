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


def assert_as_exact_as_torch(module: ImportedModule, batches: Sequence[Tensor]) -> None:
    """Compare trainings on sparse kernels and on torch's with one in double precision.

    The error is at most twice torch's, and twice the rounding of single precision where torch's is by chance smaller.
    """
    for ours, theirs in errors(module, batches):
        assert ours <= 2 * theirs + 4e-6


def errors(module: ImportedModule, batches: Sequence[Tensor]) -> list[tuple[float, float]]:
    """Of sparse kernels and of torch's: outputs, gradients of the input, and the state at the end."""
    masks = {module.parameter_paths[name]: mask for name, mask in module.masks.items()}
    ours, theirs = run(sparsified(module)[0], batches, masks), run(module, batches, masks)
    exact = run(copy.deepcopy(module).double(), batches, masks)
    assert ours.state.keys() == theirs.state.keys()
    wanted = [exact.outputs, exact.gradients, list(exact.state.values())]
    found = [
        [
            _error(part, whole)
            for part, whole in zip((r.outputs, r.gradients, list(r.state.values())), wanted, strict=True)
        ]
        for r in (ours, theirs)
    ]
    return list(zip(*found, strict=True))


def _error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest, of each tensor's scale; what is next to nothing has the scale of weights."""
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in exact]
    pairs = [(a, b) for a, b in zip(found, exact, strict=True) if b.numel() and b.is_floating_point()]
    return max((float((a - b).abs().max()) / max(float(b.abs().max()), 1e-3) for a, b in pairs), default=0.0)
