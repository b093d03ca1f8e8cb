"""Calls of layers that run in bands of rows, in place of one call for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.bands import Chain
from sift_onnx.backends.cpu.run.schedules.placement import Call

__all__ = ["in_bands"]


def in_bands(calls: Sequence[Call], chains: Sequence[Chain], fixed: Collection[str], threads: int) -> list[Call]:
    """The calls, with one for each chain that takes less time in bands.

    Args:
        calls: in order.
        chains: of the region that they are of.
        fixed: tensors in the caller's arrays.
        threads: that run them.
    """
    left: list[Call | None] = list(calls)
    for chain, numbers, op in banded(calls, chains, fixed):
        first, last = calls[numbers[0]], calls[numbers[-1]]
        if not op.pays(first.shape, threads):
            continue
        read = (first.inputs[0], *last.inputs[1:])
        together = tuple(zip(chain.steps, (calls[number].shape for number in numbers), strict=True))
        for number in numbers:
            left[number] = None
        # Where the last one was: everything that they read is there.
        left[numbers[-1]] = Call(op, first.shape, read, last.output, first.step, together=together)
    return [call for call in left if call is not None]


def banded(
    calls: Sequence[Call], chains: Sequence[Chain], fixed: Collection[str]
) -> Iterator[tuple[Chain, list[int], _kernels.BandedDepthwise]]:
    """Chains that can run in bands, whether that pays or not: the numbers of their calls, and what runs them."""
    of_step: dict[int, list[int]] = defaultdict(list)
    for number, call in enumerate(calls):
        if call.step is not None:
            of_step[call.step].append(number)
    for chain in chains:
        numbers = [of_step[step] for step in chain.steps]
        if any(len(own) != 1 for own in numbers):
            continue
        op = _banded(chain, [calls[own[0]] for own in numbers], fixed)
        if op is not None:
            yield chain, [own[0] for own in numbers], op


def _banded(chain: Chain, layers: Sequence[Call], fixed: Collection[str]) -> _kernels.BandedDepthwise | None:
    """What runs the layers of a chain in bands; None where that is impossible."""
    if any(later.inputs[0] != earlier.output or earlier.output in fixed for earlier, later in pairwise(layers)):
        return None
    ops = dict(zip(chain.steps, (call.op for call in layers), strict=True))
    depthwise = ops[chain.depthwise]
    neighbours: list[_kernels.Conv | None] = []
    for step in (chain.before, chain.after):
        layer = None if step is None else ops[step]
        if layer is not None and not isinstance(layer, _kernels.Conv):
            return None
        if layer is not None and not _kernels.BandedDepthwise.joins(layer):
            return None
        neighbours.append(layer)
    if not isinstance(depthwise, _kernels.Depthwise) or depthwise.input_layout != "planes":
        return None
    before, after = neighbours
    return _kernels.BandedDepthwise(before, depthwise, after)
