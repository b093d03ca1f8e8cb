"""Masks of a model by name, one bit per weight: most are asked for once, and stay for the whole of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

import numpy as np
import torch

from sift_onnx.weights.packed_mask import PackedMask

__all__ = ["PackedMasks"]


class PackedMasks(MutableMapping[str, torch.Tensor]):
    """Boolean tensors on the CPU by name.

    What is read is a new tensor each time: to change a mask, set it.
    """

    def __init__(self, masks: Mapping[str, torch.Tensor | PackedMask] | None = None) -> None:
        """Masks to begin with.

        Args:
            masks: by name; a tensor is true where a weight is active.
        """
        self._packed: dict[str, PackedMask] = {}
        for name in masks or ():
            assert masks is not None
            self.put(name, masks._packed[name] if isinstance(masks, PackedMasks) else masks[name])

    def put(self, name: str, mask: torch.Tensor | PackedMask) -> None:
        """Set a mask, which may be packed already."""
        if isinstance(mask, torch.Tensor):
            active = mask.detach().to("cpu", torch.bool)
            bits = np.packbits(active.numpy().reshape(-1), bitorder="little")
            mask = PackedMask(tuple(active.shape), bits)
        self._packed[name] = mask

    def renamed(self, names: Mapping[str, str]) -> PackedMasks:
        """The same masks, of which some have other names.

        Args:
            names: new names by old ones; all others stay.
        """
        return PackedMasks({names.get(name, name): mask for name, mask in self._packed.items()})

    def __getitem__(self, name: str) -> torch.Tensor:
        packed = self._packed[name]
        active = np.unpackbits(packed.bits, count=packed.size, bitorder="little").view(np.bool_)
        return torch.from_numpy(active.reshape(packed.shape))

    def __setitem__(self, name: str, mask: torch.Tensor) -> None:
        self.put(name, mask)

    def __delitem__(self, name: str) -> None:
        del self._packed[name]

    def __contains__(self, name: object) -> bool:
        return name in self._packed  # without a tensor, as Mapping would make

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {mask.nnz} of {mask.size}" for name, mask in self._packed.items())
        return f"PackedMasks({sizes})"
