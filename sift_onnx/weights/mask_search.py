"""The tensors that the masks in a model's metadata belong to, after other tools have rewritten the model.

Tools rename weights, transpose them, fold factors into them, cast them. Pruned weights stay zero through all of that: a
tensor can only belong to a mask that covers all its non-zeros.

1. A tensor with the name and the size of the mask belongs to it if it fits, in its original order or with its axes
   permuted.
2. A mask whose name is gone belongs to the one tensor that fits it, if that tensor fits no other mask and the fit is
   significant: a random mask of that density would cover its non-zeros with a probability below 2**-64.
3. A tensor with too few non-zeros for that (a branch that was folded to zero) belongs to a mask whose name is part of
   the name of the tensor, as in ``ConvBnFusion_W_conv1.weight``.

Every other mask is lost, and the reason is reported. A mask without bits fits only if the non-zeros of the tensor are
exactly those that it had when the file was written.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sift_onnx.files.stored_values import StoredValues
from sift_onnx.weights.mask_storage import MaskRecord
from sift_onnx.weights.masked_values import DenseUnderMask
from sift_onnx.weights.packed_mask import PackedMask
from sift_onnx.weights.sparse import decode_positions

__all__ = ["MaskFindings", "find_masks"]

# Bits of information from which a fit is significant.
_EVIDENCE = 64
# Permutations of up to this many axes are tried, not counting axes of size 1.
_AXES = 5
# A file may name any number of masks: the search ends after this many comparisons per weight.
_COMPARISONS = 256

# The permutation of the axes of one tensor, without those of size 1, that gives another; None for a reshape alone.
Order = tuple[int, ...] | None


@dataclass
class MaskFindings:
    """The masks that were found, and those that were lost.

    Attributes:
        found: masked weights by the name of their tensor.
        lost: the reason, by the original name of the weight.
        altered: warnings, by the name of the tensor.
    """

    found: dict[str, DenseUnderMask] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    altered: dict[str, str] = field(default_factory=dict)


def find_masks(records: Mapping[str, MaskRecord], tensors: Mapping[str, StoredValues]) -> MaskFindings:
    """The tensors that the masks belong to.

    Args:
        records: from the model's metadata, by the original name of the weight.
        tensors: the initializers of the model; only floating-point numbers and 8-bit integers are considered.

    Raises:
        ValueError: a record is damaged; the message names the weight.
    """
    candidates = {name: _Candidate(name, stored) for name, stored in tensors.items() if _may_be_masked(stored)}
    search = _Search(_COMPARISONS * sum(candidate.size for candidate in candidates.values()))
    findings = MaskFindings()
    wanted: list[_Wanted] = []
    for name, record in records.items():
        try:
            mask = _Wanted(name, record)
            by_name = candidates.get(name)
            fit = search.fit_by_name(mask, by_name) if by_name is not None else None
            if by_name is not None and fit is not None:
                _note(findings, mask, by_name, fit)
                del candidates[name]
            else:
                wanted.append(mask)
        except ValueError as error:
            raise ValueError(f"the mask of initializer {name!r} is damaged: {error}") from error
    _search_by_content(search, wanted, candidates, findings)
    return findings


def _may_be_masked(stored: StoredValues) -> bool:
    # The floats of ml_dtypes are of kind V or f.
    kind = stored.dtype.kind
    return bool(stored.shape) and (kind in "fV" or (kind == "i" and stored.dtype.itemsize == 1))


@dataclass(frozen=True, eq=False)
class _Candidate:
    name: str
    stored: StoredValues

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.stored.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def nonzeros(self) -> PackedMask:
        return PackedMask.of_non_zeros(self.shape, self.stored.flat_pieces())

    @cached_property
    def count(self) -> int:
        return self.nonzeros.nnz


@dataclass(frozen=True, eq=False)
class _Wanted:
    name: str
    record: MaskRecord

    @cached_property
    def mask(self) -> PackedMask | None:
        """Its bits, if they are in the file."""
        if self.record.bits is None or self.record.shape is None:
            return None
        mask = PackedMask.parse(self.record.bits, self.record.shape)
        if mask.nnz != self.record.nnz:
            raise ValueError(f"it has {mask.nnz} active weights, not {self.record.nnz}")
        return mask

    def information(self, candidate: _Candidate) -> float:
        """Bits of information in a fit."""
        nnz = self.record.nnz or 0
        return candidate.count * math.log2(candidate.size / nnz) if 0 < nnz <= candidate.size else 0.0


class _Search:
    """Comparisons of masks with tensors, up to a limit."""

    def __init__(self, comparisons: int) -> None:
        self._left = comparisons

    def fit_by_name(self, wanted: _Wanted, candidate: _Candidate) -> DenseUnderMask | None:
        """The masked weight, if the tensor of the mask's name fits it."""
        if wanted.record.shape is None:  # version 1 has no more
            return DenseUnderMask(candidate.stored, active_zeros=wanted.record.active_zeros)
        orders = list(_orders(wanted.record.shape, candidate.shape))
        as_before = self.fit(wanted, candidate, None) if orders else None
        if as_before is not None and (candidate.shape == wanted.record.shape or len(orders) == 1):
            return as_before
        others = (self.fit(wanted, candidate, order) for order in orders[1:])
        found = [fit for fit in (as_before, *others) if fit is not None]
        return found[0] if len(found) == 1 and wanted.information(candidate) >= _EVIDENCE else None

    def fit(self, wanted: _Wanted, candidate: _Candidate, order: Order) -> DenseUnderMask | None:
        """The masked weight, if the tensor's axes are those of the mask in this order."""
        shape = wanted.record.shape
        assert shape is not None
        self._left -= candidate.size
        if self._left < 0:
            return None
        if wanted.mask is not None:
            mask = _ordered(wanted.mask, order, candidate.shape)
            if not mask.admits(candidate.nonzeros):
                return None
            return DenseUnderMask(candidate.stored, mask, nonzeros=candidate.count)
        if candidate.count != wanted.record.nonzeros:
            return None
        back = None if order is None else tuple(int(i) for i in np.argsort(order))
        nonzeros = _ordered(candidate.nonzeros, back, shape)
        if nonzeros.digest() != wanted.record.digest:
            return None
        zeros = wanted.record.active_zeros
        if order is None:
            return DenseUnderMask(candidate.stored, active_zeros=zeros, nonzeros=candidate.count)
        if zeros:
            nonzeros = nonzeros.joined(PackedMask.of_positions(shape, decode_positions(zeros, nonzeros.size)))
        mask = _ordered(nonzeros, order, candidate.shape)
        return DenseUnderMask(candidate.stored, mask, nonzeros=candidate.count)


def _orders(source: tuple[int, ...], target: tuple[int, ...]) -> Iterator[Order]:
    """The reshapes and transposes that make a tensor of one shape one of the other."""
    if math.prod(source) != math.prod(target):
        return
    yield None
    before, after = _squeezed(source), _squeezed(target)
    if len(before) != len(after) or not 2 <= len(before) <= _AXES:
        return
    for order in itertools.permutations(range(len(before))):
        if order != tuple(range(len(before))) and tuple(before[i] for i in order) == after:
            yield order


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _ordered(mask: PackedMask, order: Order, shape: tuple[int, ...]) -> PackedMask:
    if order is None:
        return mask.reshaped(shape)
    return mask.reshaped(_squeezed(mask.shape)).transposed(order).reshaped(shape)


def _search_by_content(
    search: _Search, wanted: list[_Wanted], candidates: Mapping[str, _Candidate], findings: MaskFindings
) -> None:
    fits: dict[str, dict[str, DenseUnderMask]] = {}
    for mask in wanted:
        fits[mask.name] = {}
        shape = mask.record.shape
        if shape is None:
            continue
        for name, candidate in candidates.items():
            if candidate.size != math.prod(shape):
                continue
            derived = _contains_name(name, mask.name)
            if not derived and mask.information(candidate) < _EVIDENCE:
                continue
            orders = _orders(shape, candidate.shape) if mask.information(candidate) >= _EVIDENCE else (None,)
            found = [fit for order in orders if (fit := search.fit(mask, candidate, order)) is not None]
            # A mask of whole windows of a convolution is the same with rows and columns of the window exchanged.
            if len({_digest_of(fit, candidate) for fit in found}) == 1:
                fits[mask.name][name] = found[0]
    for mask in wanted:
        own = fits[mask.name]
        derived_names = [name for name in own if _contains_name(name, mask.name)]
        names = derived_names if len(derived_names) == 1 else list(own)
        rivals = [other for other in fits if other != mask.name and any(name in fits[other] for name in names)]
        # A mask whose name is part of the tensor's comes first: the longer name, if two are.
        closer = [other for other in rivals if any(_contains_name(name, other) for name in names)]
        by_name = len(derived_names) == 1 and all(len(other) < len(mask.name) for other in closer)
        if len(names) == 1 and (not rivals or by_name):
            _note(findings, mask, candidates[names[0]], own[names[0]])
        else:
            findings.lost[mask.name] = _why_lost(mask, candidates, len(names), rivals)


def _digest_of(fit: DenseUnderMask, candidate: _Candidate) -> str:
    """What tells masks of one tensor apart."""
    return fit.mask.digest() if fit.mask is not None else candidate.nonzeros.digest() + fit.active_zeros


def _contains_name(name: str, part: str) -> bool:
    """Whether ``name`` is ``part`` with a prefix or a suffix."""
    return re.search(rf"(?<![^\W_]){re.escape(part)}(?![^\W_])", name) is not None


def _note(findings: MaskFindings, wanted: _Wanted, candidate: _Candidate, fit: DenseUnderMask) -> None:
    findings.found[candidate.name] = fit
    before = wanted.record.nonzeros
    if before is not None and candidate.count < before:
        findings.altered[candidate.name] = (
            f"{before - candidate.count} of {wanted.record.nnz} active weights have become zero since the mask was "
            "written; they count as active"
        )


def _why_lost(wanted: _Wanted, candidates: Mapping[str, _Candidate], fitting: int, rivals: list[str]) -> str:
    if fitting > 1:
        return f"{fitting} tensors fit it"
    if rivals:
        return f"the tensor that fits it fits that of {rivals[0]!r} too"
    if wanted.name not in candidates:
        return "its weight is gone, and no other tensor fits it for certain"
    candidate, record = candidates[wanted.name], wanted.record
    if record.shape is not None and candidate.size != math.prod(record.shape):
        return f"its weight has the shape {list(candidate.shape)} now, not {list(record.shape)}"
    if wanted.mask is None:
        return "its weight has other zeros now, and its bits are not in the file"
    return "its weight has non-zeros where it has none"
