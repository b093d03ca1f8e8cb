"""What operators compute, whatever layout or kernel a back end chooses: one frozen dataclass per operator.

The sizes of a spec's result follow from its operand's, known or not yet known (:func:`result_dims`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from sift_onnx.backends.lowering.decoder_specs import CachedAttention, Rotated, TableRows
from sift_onnx.backends.lowering.dims import Dim, Dims, bound, broadcast, names_in, product, quotient, window
from sift_onnx.backends.lowering.resampling import AxisMap, Sampling
from sift_onnx.backends.lowering.weights import Floats, WeightMatrix

__all__ = [
    "NO_ACTIVATION",
    "RELU",
    "Activation",
    "Attention",
    "ChannelCombine",
    "ChannelScale",
    "Channels",
    "Conv",
    "DepthToSpace",
    "Depthwise",
    "Elementwise",
    "Geometry",
    "GlobalPool",
    "GroupNormalization",
    "Joined",
    "LayerNormalization",
    "LinearLayer",
    "LinearResize",
    "Matmul",
    "Moving",
    "PixelCopy",
    "Pool",
    "Range",
    "Repeated",
    "Reshaped",
    "Sliced",
    "Spec",
    "Transposed",
    "result_dims",
]

Activation = tuple[str, float, float]
Pair = tuple[int, int]

NO_ACTIVATION: Activation = ("none", 0.0, 0.0)
RELU: Activation = ("clip", 0.0, float("inf"))


@dataclass(frozen=True)
class Geometry:
    """A sliding window; ``pads`` are top, left, bottom, right."""

    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    def positions(self, dims: Dims, ceil_mode: bool = False) -> Dims:
        """Height and width of the result for an operand of ``dims`` = (n, c, h, w)."""
        top, left, bottom, right = self.pads
        pads = ((top, bottom), (left, right))
        return tuple(
            window(dims[2 + i], self.kernel[i], self.stride[i], self.dilation[i], pads[i], ceil_mode) for i in range(2)
        )


@dataclass(frozen=True)
class Pool:
    """Maximum or mean of a sliding window."""

    kind: Literal["max", "average"]
    geometry: Geometry
    ceil_mode: bool = False
    count_include_pad: bool = False


@dataclass(frozen=True)
class Conv:
    """pool(activation(conv(x) + bias + second)), pool and second not together.

    With a block, the channels of the result become the pixels of blocks as :class:`DepthToSpace` has it, without pool
    and second: a transposed convolution whose windows do not overlap.
    """

    weights: WeightMatrix
    bias: Floats | None
    geometry: Geometry
    groups: int = 1
    activation: Activation = NO_ACTIVATION
    pool: Pool | None = None
    block: Pair = (1, 1)


@dataclass(frozen=True)
class Matmul:
    """activation(x @ weights.T + bias + second), x [..., columns]."""

    weights: WeightMatrix
    bias: Floats | None
    activation: Activation = NO_ACTIVATION


@dataclass(frozen=True)
class Depthwise:
    """activation(depthwise convolution + bias)."""

    weights: WeightMatrix
    bias: Floats | None
    geometry: Geometry
    activation: Activation = NO_ACTIVATION


@dataclass(frozen=True)
class GlobalPool:
    """Mean over ``axes``, which lie next to each other, the first not among them; ``keep_axes`` leaves one position."""

    keep_axes: bool = True
    axes: tuple[int, ...] = (2, 3)


@dataclass(frozen=True)
class Elementwise:
    """activation(x kind second); ``first`` is the activation of x alone.

    Attributes:
        kind: what is done.
        activation: of the result.
        broadcasts: whether an operand may be one pixel high or wide where the other one is not.
        repeats: whether the second operand has one position where the first one, and the result, have more; axes that
            it lacks are in front.
    """

    kind: Literal["first", "add", "subtract", "multiply"]
    activation: Activation = NO_ACTIVATION
    broadcasts: bool = False
    repeats: bool = False


@dataclass(frozen=True)
class ChannelCombine:
    """activation(x kind second), with a value of the second operand, [n, c, 1, 1], for each channel of each image."""

    kind: Literal["add", "subtract", "multiply"]
    activation: Activation = NO_ACTIVATION


@dataclass(frozen=True)
class ChannelScale:
    """activation(x * scale + shift), both [c]; the slopes, [c], are those of a leaky activation by channel."""

    scale: Floats = field(repr=False)
    shift: Floats = field(repr=False)
    activation: Activation = NO_ACTIVATION
    slopes: Floats | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Channels:
    """Some channels of x, in an order of their own.

    Attributes:
        taken: which ones.
        axis: that they lie along.
    """

    taken: tuple[int, ...] = field(repr=False)
    axis: int


@dataclass(frozen=True)
class DepthToSpace:
    """Channels that become the pixels of a block of the result.

    Attributes:
        block: its height and width.
        depth_first: whether the channels of one pixel are adjacent, ONNX's DCR, or those of one block, CRD.
    """

    block: Pair
    depth_first: bool = False


@dataclass(frozen=True)
class PixelCopy:
    """Pixels of x at other places of the same channel; ``fill`` where there is none.

    With ``follows``, height and width of the result are those of the second operand, which is read for these alone.
    """

    height: AxisMap
    width: AxisMap
    fill: float = 0.0
    follows: bool = False


@dataclass(frozen=True)
class LinearResize:
    """Pixels between those of x, by linear interpolation along height and width; ``follows`` as above."""

    height: Sampling
    width: Sampling
    follows: bool = False


@dataclass(frozen=True)
class LayerNormalization:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift, over the last axis.

    Attributes:
        scale: [c].
        shift: [c].
        epsilon: what is added to the variance.
        is_centered: RMS normalization, which takes the mean to be zero, is not.
    """

    scale: Floats = field(repr=False)
    shift: Floats = field(repr=False)
    epsilon: float
    is_centered: bool = True


@dataclass(frozen=True)
class GroupNormalization:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift, of each group of channels of an image by itself.

    Attributes:
        scale: [c].
        shift: [c].
        groups: how many there are.
        epsilon: what is added to the variance.
    """

    scale: Floats = field(repr=False)
    shift: Floats = field(repr=False)
    groups: int
    epsilon: float


@dataclass(frozen=True)
class Attention:
    """softmax(scale q k + mask) v, head by head.

    The operands are q [..., tokens, depth], k [..., depth, tokens] and v [..., tokens, value_depth]. The axes before
    are those of sequences and heads, or of both in one, where ``heads`` is 1.

    Attributes:
        heads: how many there are.
        depth: channels of a head's queries and keys.
        value_depth: channels of a head's values.
        scale: of the scores.
        nan_to_zero: whether a token whose weights are NaN, since it attends to nothing, gets zeros.
        repeats_mask: whether sequences take the masks in turn, as windows of one image after the other do.
    """

    heads: int
    depth: int
    value_depth: int
    scale: float
    nan_to_zero: bool = False
    repeats_mask: bool = False


@dataclass(frozen=True)
class Reshaped:
    """The same values in the same order under other sizes.

    Attributes:
        axes: of the result: a size, -1 for what the others leave, (first, end) for the product of the operand's axes
            from first to before end, or what a run knows by its name. None keeps the operand's.
    """

    axes: tuple[Dim | Pair, ...] | None = None

    def names(self) -> set[str]:
        """Of the sizes that a run has to know."""
        return set().union(*(names_in(axis) for axis in self.axes or () if not _is_pair(axis)))

    def bound(self, known: Mapping[str, int]) -> Reshaped:
        """With the sizes that are ``known``."""
        if not self.axes or not self.names():
            return self
        return Reshaped(tuple(axis if _is_pair(axis) else bound(axis, known) for axis in self.axes))


@dataclass(frozen=True)
class Transposed:
    """Axes in another order: axis i of the result is the operand's axis ``order[i]``."""

    order: tuple[int, ...]


@dataclass(frozen=True)
class Range:
    """Positions ``range(size)[start:stop:step]`` of an axis, forwards; one of them where the size is not known.

    Attributes:
        axis: that they lie along.
        start: see there.
        stop: see there.
        step: see there.
        of: size of the axis, where it is known before a run.
    """

    axis: int
    start: int
    stop: int | None
    step: int = 1
    of: int | None = None

    def places(self, size: int) -> range:
        """The positions of an axis of ``size``."""
        return range(size)[self.start : self.stop : self.step]


@dataclass(frozen=True)
class Sliced:
    """Ranges of axes; ``drops`` leaves out an axis of which one position was taken."""

    ranges: tuple[Range, ...]
    drops: bool = False


@dataclass(frozen=True)
class Repeated:
    """Axes of one position that have ``sizes`` of them in the result, by axis: all the same."""

    sizes: tuple[Pair, ...]


@dataclass(frozen=True)
class Joined:
    """Operands one after the other along an axis, of which the result has ``size`` positions.

    The first operand has the result's other sizes.

    Attributes:
        axis: along which they lie.
        starts: where each operand begins.
        size: of the result.
        repeated: which operands are repeated along the other axes of which they have one position, as a class token is.
    """

    axis: int
    starts: tuple[int, ...]
    size: int
    repeated: tuple[int, ...] = ()

    def count(self, operand: int) -> int:
        """Positions of one of the operands."""
        first = self.starts[operand]
        return min((start for start in self.starts if start > first), default=self.size) - first


LinearLayer = Conv | Depthwise | Matmul
Moving = Reshaped | Transposed | Sliced | Repeated | Joined
Spec = (
    LinearLayer
    | Pool
    | GlobalPool
    | Elementwise
    | ChannelCombine
    | ChannelScale
    | Channels
    | DepthToSpace
    | PixelCopy
    | LinearResize
    | LayerNormalization
    | GroupNormalization
    | Attention
    | CachedAttention
    | Rotated
    | TableRows
    | Moving
)


def _is_pair(axis: Dim | Pair) -> TypeGuard[Pair]:
    return isinstance(axis, tuple) and isinstance(axis[0], int)


def result_dims(spec: Spec, dims: Dims, second: Dims | None = None) -> Dims:
    """Sizes of the result for an operand of ``dims``, and another one where there is one, as ONNX has them."""
    match spec:
        case Conv():
            convolved: Dims = (dims[0], spec.weights.rows, *spec.geometry.positions(dims))
            if spec.block != (1, 1):
                return result_dims(DepthToSpace(spec.block), convolved)
            return convolved if spec.pool is None else result_dims(spec.pool, convolved)
        case Depthwise():
            return (*dims[:2], *spec.geometry.positions(dims))
        case Pool():
            return (*dims[:2], *spec.geometry.positions(dims, spec.ceil_mode))
        case GlobalPool():
            pooled = [1 if axis in spec.axes else size for axis, size in enumerate(dims)]
            return tuple(size for axis, size in enumerate(pooled) if spec.keep_axes or axis not in spec.axes)
        case Matmul():
            return (*dims[:-1], spec.weights.rows)
        case Channels():
            return (*dims[: spec.axis], len(spec.taken), *dims[spec.axis + 1 :])
        case DepthToSpace():
            height, width = spec.block
            channels = quotient(dims[1], height * width)
            return (dims[0], channels, product((dims[2], height)), product((dims[3], width)))
        case Elementwise(broadcasts=True) if second is not None:
            return (*dims[:2], *map(broadcast, dims[2:], second[2:]))
        case PixelCopy(follows=True) | LinearResize(follows=True) if second is not None:
            return (*dims[:2], *second[2:])
        case PixelCopy() | LinearResize():
            return (*dims[:2], spec.height.size_of(dims[2]), spec.width.size_of(dims[3]))
        case Attention():
            return (*dims[:-1], spec.value_depth)
        case CachedAttention():
            return (*dims[:-1], spec.value_depth * (1 if spec.is_parted else spec.heads))
        case TableRows():
            rows = dims if spec.kind == "positions" else (*dims, spec.tokens)
            return (*rows, spec.table.shape[1])
        case Reshaped(axes=axes) if axes is not None:
            target = [product(dims[slice(*axis)]) if _is_pair(axis) else axis for axis in axes]
            rest = quotient(product(dims), product(size for size in target if size != -1))
            return tuple(rest if size == -1 else size for size in target)
        case Transposed():
            return tuple(dims[axis] for axis in spec.order)
        case Sliced():
            left: list[Dim] = list(dims)
            for taken in spec.ranges:
                size = dims[taken.axis]
                left[taken.axis] = len(taken.places(size)) if isinstance(size, int) else 1
            dropped = {taken.axis for taken in spec.ranges} if spec.drops else set()
            return tuple(size for axis, size in enumerate(left) if axis not in dropped)
        case Repeated(sizes=sizes):
            repeated = dict(sizes)
            return tuple(repeated.get(axis, size) for axis, size in enumerate(dims))
        case Joined(axis=axis):
            return (*dims[:axis], spec.size, *dims[axis + 1 :])
        case _:
            return dims
