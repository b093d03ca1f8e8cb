"""A stand-in for sparse layers: the same products in double precision, which round otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sift_onnx.training import ImportedModule


@dataclass(frozen=True)
class Choice:
    name: str
    kernels: str
    reason: str
    seconds: float = 0.0


@dataclass
class StandIn:
    """Takes the place of ``sparsify_layers``; ``auto`` finds sparse what ``faster`` names, and one less each time."""

    faster: list[str]
    asked: list[Any] = field(default_factory=list)

    def __call__(
        self,
        module: ImportedModule,
        optimizer: torch.optim.Optimizer | None = None,
        kernels: str | Mapping[str, str] = "auto",
        report: Callable[[Choice], None] = lambda choice: None,
        *,
        batch_size: int | None = None,
        rows: Mapping[str, int] | None = None,
    ) -> ImportedModule:
        self.asked.append(kernels)
        taken: set[str] = vars(module).setdefault("taken", set())
        names = [name for name, _ in module.named_parameters() if f"{name}_mask" in dict(module.named_buffers())]
        for name in names:
            if name in taken:
                continue
            if isinstance(kernels, Mapping):
                choice = Choice(name, kernels[name], "as before")
            elif kernels == "sparse" or name in self.faster:
                choice = Choice(name, "sparse", "faster so: 1 ms against 2")
            else:
                choice = Choice(name, "dense", "faster so: 2 ms against 3")
            report(choice)
            if choice.kernels == "sparse":
                taken.add(name)
                _compute_in_double(module, name)
        if kernels == "auto":
            del self.faster[-1:]
        return module


def _compute_in_double(module: ImportedModule, name: str) -> None:
    for node in module.graph.nodes:
        weight = node.args[1] if node.op == "call_function" and len(node.args) > 1 else None
        if isinstance(weight, torch.fx.Node) and weight.op == "get_attr" and weight.target == name:
            node.target = _in_double(node.target)
    module.recompile()


def _in_double(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        wide = [arg.double() if isinstance(arg, torch.Tensor) else arg for arg in args]
        return function(*wide, **kwargs).float()

    return run
