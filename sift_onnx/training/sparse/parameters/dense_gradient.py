"""What is kept of the gradient of inactive weights, from a backward pass to the update of the mask."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from sift_onnx.training.sparse.distributed import is_parallel
from sift_onnx.training.sparse.errors import SparsityStateError
from sift_onnx.training.sparse.parameters.compact_weight import CompactWeight
from sift_onnx.training.sparse.selection.largest import largest

__all__ = ["DenseGradient", "GrowthRule", "KeptGradient"]

# Two computations of one gradient differ by less than this share of it.
_ROUNDING = 1e-3


class GrowthRule(Protocol):
    """What an algorithm says of the gradients it needs.

    Attributes:
        synchronize: whether ranks agree on masks.
        process_group: of the ranks that agree; None for all.
    """

    synchronize: bool
    process_group: Any

    def wants_gradients(self) -> bool:
        """Whether the coming step needs gradients of inactive weights."""

    def growth_limit(self, name: str) -> int | None:
        """The most weights of a parameter that can grow at the coming update; None if that is not known."""


@dataclass(frozen=True)
class KeptGradient:
    """A gradient of which the active elements are known, and those others that can matter.

    Attributes:
        weight: that it belongs to.
        active: the gradient of the active values.
        places: flat indices of the inactive elements that were kept; None if all were.
        others: the gradient there; the dense tensor if all were kept.
    """

    weight: CompactWeight
    active: torch.Tensor
    places: torch.Tensor | None
    others: torch.Tensor

    def dense(self) -> torch.Tensor:
        """The dense gradient, a new tensor; inactive elements that were not kept are zero."""
        if self.places is None:
            flat = self.others.reshape(-1).clone()
        else:
            flat = self.active.new_zeros(self.weight.numel)
            flat[self.places] = self.others.to(flat.dtype)
        flat[self.weight.indices] = self.active.to(flat.dtype)
        return flat.reshape(self.weight.shape)


class DenseGradient:
    """The dense gradient of one compact weight.

    On update steps a layer's backward pass hands over its dense gradient. Where one backward pass makes a step and at
    most n weights can grow, the n entries of largest magnitude are kept: no other can enter the mask. Otherwise the
    whole tensor is kept: it is summed over passes, averaged over ranks, or read by other rules.
    """

    def __init__(self, rule: GrowthRule, name: str) -> None:
        self._rule = weakref.ref(rule)
        self._name = name
        self._whole: torch.Tensor | None = None
        self._largest: tuple[torch.Tensor, torch.Tensor] | None = None
        self._probe: tuple[int, float] | None = None
        self._sealed = False
        self._passes = 0
        self._most_passes = 0

    @property
    def is_open(self) -> bool:
        """Whether a gradient was taken that no step has seen."""
        return not self._sealed and (self._whole is not None or self._largest is not None)

    def begin(self) -> None:
        """Note that a step begins: gradients that were left of a step that was skipped are of no use."""
        self._most_passes, self._passes = max(self._most_passes, self._passes), 0
        self.forget()

    def forget(self) -> None:
        """Drop what was kept."""
        self._whole = self._largest = self._probe = None
        self._sealed = False

    def wants(self) -> bool:
        self._passes += 1
        rule = self._rule()
        return rule is not None and rule.wants_gradients()

    def take(self, weight: CompactWeight, grad: torch.Tensor) -> None:
        if self._sealed:
            self.forget()
        if self._largest is not None:
            raise SparsityStateError(
                f"{self._name!r} has several backward passes before an update of its mask, after steps of one each; "
                'accumulate in every step, or train with kernels="dense"'
            )
        if self._whole is not None:
            self._whole += grad
            return
        rule = self._rule()
        assert rule is not None
        limit = rule.growth_limit(self._name)
        once = self._most_passes == 1 and self._passes <= 1
        if limit is None or not once or (rule.synchronize and is_parallel(rule.process_group)):
            self._whole = grad.clone(memory_format=torch.contiguous_format)
            return
        flat = grad.reshape(-1)
        scores = flat if flat.dtype == torch.float64 else flat.float()
        inactive = torch.ones(flat.shape, dtype=torch.bool, device=flat.device)
        inactive[weight.indices.to(flat.device)] = False
        places = torch.nonzero(largest(scores, limit, candidates=inactive, magnitudes=True)).reshape(-1)
        others = flat[places]
        if bool(torch.isnan(others).any()):
            # Numbers that are not kept would count as zero, and NaN counts as less.
            self._whole = grad.clone(memory_format=torch.contiguous_format)
            return
        self._largest = places, others
        self._probe = _probe(weight.gathered(grad))

    def seal(self, weight: CompactWeight) -> KeptGradient | None:
        """What the update can use, beside the gradient as the optimizer sees it; None if no gradient was taken.

        Where ranks train together this is a collective call.
        """
        self._most_passes, self._passes = max(self._most_passes, self._passes), 0
        grad = weight.values.grad
        if grad is None or (self._whole is None and self._largest is None):
            return None
        rule = self._rule()
        if self._whole is not None:
            if not self._sealed and rule is not None and rule.synchronize and is_parallel(rule.process_group):
                dist.all_reduce(self._whole, group=rule.process_group)
                self._whole /= dist.get_world_size(rule.process_group)
            self._probe = _probe(weight.gathered(self._whole))
        self._sealed = True
        factor = _factor(self._probe, grad)
        if self._largest is None:
            assert self._whole is not None
            whole = self._whole if factor == 1 else self._whole * factor
            return KeptGradient(weight, grad.detach().clone(), None, whole)
        places, others = self._largest
        return KeptGradient(weight, grad.detach().clone(), places, others * factor)


def _probe(active: torch.Tensor) -> tuple[int, float] | None:
    """Place and value of the largest gradient of an active weight."""
    if not active.numel():
        return None
    place = int(active.abs().argmax())
    return place, float(active[place])


def _factor(probe: tuple[int, float] | None, grad: torch.Tensor) -> float:
    """By what the gradient was multiplied since it was computed: a GradScaler divides it by its scale, a clip shrinks.

    Scales are powers of two as a rule, by which a product is exact.
    """
    if probe is None or probe[1] == 0:
        return 1.0
    ratio = float(grad[probe[0]]) / probe[1]
    if not math.isfinite(ratio) or ratio <= 0:
        return 1.0
    power = 2.0 ** round(math.log2(ratio))
    return power if abs(ratio / power - 1) < _ROUNDING else ratio
