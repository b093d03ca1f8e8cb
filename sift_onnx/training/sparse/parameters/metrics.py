"""How far masks have moved: explored weights, weights that were never dropped, and what the last update exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["MaskHistory", "MaskMetrics"]


@dataclass(frozen=True)
class MaskMetrics:
    """Shares between 0 and 1, of one parameter or of all.

    Attributes:
        itop: of weights that have been active at some time: ``nnz(OR of all masks) / numel`` (Liu et al. 2021, "Do we
            actually need dense over-parameterization?").
        doc: of weights that have been active all the time: ``nnz(AND of all masks) / numel``, as cbsparse has it.
        churn: of the weights that are active now and were not before the last update; 0 before the first.
        density: of weights that are active now.
    """

    itop: float
    doc: float
    churn: float
    density: float


class MaskHistory:
    """The masks a set of parameters has had, as two bits per weight."""

    def __init__(self) -> None:
        self._ever: dict[str, torch.Tensor] = {}
        self._always: dict[str, torch.Tensor] = {}
        self._counts: dict[str, tuple[int, int]] = {}

    def start(self, name: str, mask: torch.Tensor) -> None:
        """Take ``mask`` as a parameter's first."""
        self._ever[name], self._always[name] = mask.clone(), mask.clone()
        self._counts[name] = (int(torch.count_nonzero(mask)), 0)

    def update(self, name: str, old: torch.Tensor, new: torch.Tensor) -> None:
        """Note that ``new`` follows ``old``, bool tensors of the parameter's shape."""
        if name not in self._ever:
            self.start(name, old)
        self._ever[name] = self._ever[name].to(new.device) | new
        self._always[name] = self._always[name].to(new.device) & new
        self._counts[name] = (int(torch.count_nonzero(new)), int(torch.count_nonzero(new & ~old)))

    def of(self, name: str) -> MaskMetrics:
        """The metrics of one parameter.

        Raises:
            KeyError: it is not followed.
        """
        return self._metrics([name])

    def total(self) -> MaskMetrics:
        """The metrics of all parameters, each weight counted once."""
        return self._metrics(list(self._ever))

    def report(self) -> dict[str, MaskMetrics]:
        """The metrics of each parameter, by name."""
        return {name: self.of(name) for name in self._ever}

    def state_dict(self) -> dict[str, Any]:
        """All of it, in tensors and integers."""
        return {
            name: {
                "ever": _pack(self._ever[name]),
                "always": _pack(self._always[name]),
                "shape": list(self._ever[name].shape),
                "counts": list(self._counts[name]),
            }
            for name in self._ever
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a :meth:`state_dict`."""
        for name, entry in state.items():
            shape = tuple(entry["shape"])
            self._ever[name], self._always[name] = _unpack(entry["ever"], shape), _unpack(entry["always"], shape)
            nnz, new = entry["counts"]
            self._counts[name] = (int(nnz), int(new))

    def _metrics(self, names: list[str]) -> MaskMetrics:
        size = max(sum(self._ever[name].numel() for name in names), 1)
        nnz = sum(self._counts[name][0] for name in names)
        return MaskMetrics(
            itop=sum(int(torch.count_nonzero(self._ever[name])) for name in names) / size,
            doc=sum(int(torch.count_nonzero(self._always[name])) for name in names) / size,
            churn=sum(self._counts[name][1] for name in names) / max(nnz, 1),
            density=nnz / size,
        )


def _pack(mask: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.packbits(mask.cpu().numpy().reshape(-1)))


def _unpack(packed: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    size = int(np.prod(shape, dtype=np.int64))
    return torch.from_numpy(np.unpackbits(packed.cpu().numpy(), count=size).astype(np.bool_)).reshape(shape)
