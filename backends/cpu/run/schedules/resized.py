"""The schedule of another number of tokens, made of one that is there.

Where all tensors are matrices of as many rows, in lanes, nothing about a schedule depends on the number but the sizes
and places, which are proportional to blocks of sixteen rows, and attention, which knows the lengths of sequences. Moves
of values are none, if they are none for one number: axes of one position aside, a view of all positions lies in the
order of memory for any sizes or for none. So the first request of a new length is not planned step by step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.operators import build_attention
from sift_onnx.backends.cpu.run.schedules.calls import Schedule
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Sizes, input_key, operand_key
from sift_onnx.backends.cpu.run.schedules.values import array_sizes
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Attention, Moving

__all__ = ["ResizableSchedule", "are_of_any_rows", "resizable"]

# Operators that do the same for any number of rows.
_OF_ANY_ROWS = (
    _kernels.Conv,
    _kernels.Matmul,
    _kernels.DenseProduct,
    _kernels.LayerNormalization,
    _kernels.Elementwise,
    _kernels.ChannelScale,
    _kernels.Softmax,
    _kernels.Reorder,
    _kernels.ReorderBytes,
    _kernels.Quantize,
    _kernels.DynamicQuantize,
    _kernels.Dequantize,
    _kernels.QuantizedConv,
    _kernels.DequantizedConv,
    _kernels.QuadAdd,
    _kernels.QuadTable,
)
_LANES = ("images16", "quads", "dynamic_quads", "float_quads")


def resizable(region: Region, dims: Mapping[str, Sizes], made: Schedule, isa: str) -> ResizableSchedule | None:
    """The schedule of ``region`` for values of ``dims`` as one that others follow from; None where none do.

    Args:
        region: that it is of; of rows only.
        dims: sizes of all values, by name.
        made: the schedule, of all rows, in lanes.
        isa: instruction set.
    """
    if region.constants or region.caches or made.is_shortened:
        return None
    if not all(are_of_any_rows(made)):
        return None
    matrices = [input_key(name, view) for name, view in region.inputs if view == "rows"]
    masks = frozenset(input_key(name, view) for name, view in region.inputs if view == "array")
    attended = []
    for step in region.steps:
        if isinstance(step.spec, Attention):
            attended.append(step)
        elif not isinstance(step.spec, Moving):
            matrices.append(step.output)
    found = ResizableSchedule(region, dict(dims), made, isa, tuple(matrices), masks, tuple(attended))
    rows = made.shapes[0][0] if made.shapes else 0
    return found if found._has_rows(dims, rows) and all(shape[0] == rows for shape in made.shapes) else None


def are_of_any_rows(made: Schedule) -> list[bool]:
    """For each operator of a schedule, whether it does the same for any number of rows, or is attention, in lanes."""
    rows = Counter(shape[0] for shape in made.shapes).most_common(1)[0][0]
    return [
        shape[0] == rows and ((isinstance(op, _OF_ANY_ROWS) and _uses_lanes(op)) or number in made.attentions)
        for number, (op, shape) in enumerate(zip(made.ops, made.shapes, strict=True))
    ]


@dataclass(frozen=True)
class ResizableSchedule:
    """A schedule that others follow from; see :func:`resizable`."""

    _region: Region
    _dims: Mapping[str, Sizes]
    _made: Schedule
    _isa: str
    _matrices: tuple[str, ...]
    _masks: frozenset[str]
    _attended: tuple[Step, ...]

    def resized(self, dims: Mapping[str, Sizes]) -> Schedule | None:
        """The schedule for values of ``dims``, of all rows in lanes; None where it might be another one."""
        rows = math.prod(dims[self._matrices[0]][:-1])
        if not _are_alike(self._dims, dims) or not self._has_channels(dims) or not self._has_rows(dims, rows):
            return None
        if not self._are_whole(dims, rows):
            return None
        replaced = []
        for call, (index, channels) in self._made.attentions.items():
            step = self._region.steps[index]
            assert isinstance(step.spec, Attention)
            sequences, tokens, keys = _lengths(step, dims)
            mask = dims[input_key(step.mask, "array")] if step.mask else None
            lengths = (tokens, keys)
            op = build_attention(step.spec, sequences, lengths, channels, mask, "images16", self._isa)
            replaced.append((call, op))
        sequence = self._made.sequence.resized(rows, replaced, array_sizes(self._region, dims))
        return replace(self._made, sequence=sequence, shapes=tuple((rows, *shape[1:]) for shape in self._made.shapes))

    def _has_channels(self, dims: Mapping[str, Sizes]) -> bool:
        """Whether matrices have the channels that they had: the tokens of another axis may be channels, too."""
        return all(dims[name][-1] == self._dims[name][-1] for name in self._matrices)

    def _are_whole(self, dims: Mapping[str, Sizes], rows: int) -> bool:
        """Whether all values are as much larger as there are more rows: a slice that took all may leave some out."""
        before = math.prod(self._dims[self._matrices[0]][:-1])
        pairs = {(sizes, dims[name]) for name, sizes in self._dims.items() if name not in self._masks}
        return all(math.prod(other) * before == math.prod(own) * rows for own, other in pairs)

    def _has_rows(self, dims: Mapping[str, Sizes], rows: int) -> bool:
        """Whether that is the number of rows of all tensors."""
        if any(math.prod(sizes[:-1]) != rows for sizes in {dims[name] for name in self._matrices}):
            return False
        lengths = {_lengths(step, dims) for step in self._attended}
        return all(sequences * tokens == sequences * keys == rows for sequences, tokens, keys in lengths)


def _uses_lanes(op: _kernels.Op) -> bool:
    """Whether what an operator reads or makes is in lanes: rows of a softmax from outside stay in planes.

    What others read or make in another layout is an array of the caller.
    """
    if isinstance(op, (_kernels.Reorder, _kernels.ReorderBytes)):
        return True
    makes_lanes = op.output_layout in _LANES or isinstance(op, (_kernels.Dequantize, _kernels.DequantizedConv))
    return op.input_layout in _LANES and makes_lanes


def _lengths(step: Step, dims: Mapping[str, Sizes]) -> tuple[int, int, int]:
    """Sequences of attention, and queries and keys of each."""
    queries, keys = (dims[operand_key(step, position, dims)] for position in (0, 1))
    return queries[0], queries[-2], keys[-1]


def _are_alike(some: Mapping[str, Sizes], others: Mapping[str, Sizes]) -> bool:
    """Whether values have as many axes, none is empty, and the same axes have one position."""
    pairs = {(sizes, others[name]) for name, sizes in some.items()}
    return all(
        len(own) == len(other) and all(a > 0 < b and (a == 1) == (b == 1) for a, b in zip(own, other, strict=True))
        for own, other in pairs
    )
