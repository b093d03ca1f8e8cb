"""Random draws that depend on seed, step and rank alone: a checkpoint needs no state of a generator."""

from __future__ import annotations

import functools
import hashlib
import random

import numpy as np
import torch

__all__ = ["mixed_seed", "seed_everything"]


def mixed_seed(*parts: int | str) -> int:
    """A seed of 63 bits from numbers and words; neighbouring numbers give unrelated seeds."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def seed_everything(seed: int) -> None:
    """Seed the generators that layers and a user's data draw from: torch's, Python's and numpy's old one."""
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        # torch.manual_seed would note a stack trace for each kind of device there could be, in every step.
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@functools.cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()
