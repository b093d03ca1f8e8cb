"""Which parameters a module owns, by which names, and which module a call of ``Module.apply`` means."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["is_inner_call_of_apply", "owned_parameters", "unwrapped"]


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


def is_inner_call_of_apply(function: Any) -> bool:
    """Whether ``function`` was called for a child by a ``Module.apply`` that will call it for the parent, too.

    ``model.apply(sparsity)`` calls ``sparsity`` with every submodule, children first and the model last, and nothing in
    the arguments tells one from the other. A parameter's full name is only known from the model, so the calls on the
    stack are counted. cstorch replaces ``torch.nn.Module.apply`` for all modules instead.
    """
    applications = 0
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is torch.nn.Module.apply.__code__ and frame.f_locals.get("fn") is function:
            applications += 1
        frame = frame.f_back  # type: ignore[assignment]
    return applications > 1
