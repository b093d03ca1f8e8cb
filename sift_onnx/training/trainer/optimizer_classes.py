"""The optimizers of torch, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sift_onnx.errors import UsageError

__all__ = ["class_of"]

# Optimizers of torch that this loop or masked weights do not go with.
_REFUSED = {
    "Adafactor": "keeps sums over rows and columns of a weight, which masks do not go with",
    "LBFGS": "computes the loss several times in a step, which this loop does not",
    "Muon": "takes matrices alone",
    "SparseAdam": "takes sparse gradients, and weights with masks have dense ones",
}


def class_of(name: str) -> Callable[..., torch.optim.Optimizer]:
    """A class of ``torch.optim`` by its name, in capitals or not.

    Raises:
        UsageError: there is none, or it does not go with this loop or with masks.
    """
    classes = {
        each.lower(): kind
        for each, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    if name.lower() not in classes:
        known = ", ".join(sorted(kind.__name__ for key, kind in classes.items() if kind.__name__ not in _REFUSED))
        raise UsageError(f"optimizer {name!r} is unknown; torch has {known}")
    kind = classes[name.lower()]
    if kind.__name__ in _REFUSED:
        raise UsageError(f"optimizer {name!r} {_REFUSED[kind.__name__]}; choose another one")
    return kind
