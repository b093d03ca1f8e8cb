"""Which kernels a masked layer runs by, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["LayerChoice"]


@dataclass(frozen=True)
class LayerChoice:
    """The kernels of a masked layer.

    Attributes:
        name: of the weight, as ``named_parameters`` has it.
        kernels: ``sparse``: those that skip inactive weights; ``dense``: torch's, on the masked weight.
        reason: why these.
    """

    name: str
    kernels: Literal["sparse", "dense"]
    reason: str
