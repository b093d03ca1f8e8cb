"""What operators compute, whatever layout or kernel a back end chooses: one frozen dataclass per operator.

The sizes of a spec's result follow from its operand's, known or not yet known (:func:`result_dims`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sift_onnx.backends.lowering.dims import Dims, broadcast, product, quotient, window
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
    "Concat",
    "Conv",
    "DepthToSpace",
    "Depthwise",
    "Elementwise",
    "Geometry",
    "GlobalPool",
    "GroupNormalization",
    "LayerNormalization",
    "LinearLayer",
    "LinearResize",
    "Matmul",
    "PixelCopy",
    "Pool",
    "Reshaped",
    "Spec",
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
    """Mean over height and width."""

    keep_axes: bool = True


@dataclass(frozen=True)
class Elementwise:
    """activation(x kind second); ``first`` is the activation of x alone.

    Attributes:
        kind: what is done.
        activation: of the result.
        broadcasts: whether an operand may be one pixel high or wide where the other one is not.
    """

    kind: Literal["first", "add", "subtract", "multiply"]
    activation: Activation = NO_ACTIVATION
    broadcasts: bool = False


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
class Concat:
    """The channels of all operands, one after the other.

    Attributes:
        channels: how many each operand has.
        axis: that they lie along.
    """

    channels: tuple[int, ...]
    axis: int


@dataclass(frozen=True)
class Channels:
    """Some channels of x, in an order of their own: a slice, or a shuffle.

    Attributes:
        taken: which ones.
        of: how many x has.
        axis: that they lie along.
    """

    taken: tuple[int, ...] = field(repr=False)
    of: int
    axis: int

    @property
    def is_range(self) -> bool:
        """Whether they are adjacent, in their order."""
        return self.taken == tuple(range(self.taken[0], self.taken[0] + len(self.taken)))


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
    """softmax(scale q k^T + mask) v, head by head; q, k and v are [..., tokens, channels] or [rows, channels].

    Attributes:
        heads: how many there are.
        depth: channels of a head's queries and keys.
        value_depth: channels of a head's values.
        first_channels: of queries, keys and values, where the first head begins.
        tokens: of a sequence; None: the last but one axis.
        scale: of the scores.
        nan_to_zero: whether a token whose weights are NaN, since it attends to nothing, gets zeros.
        joins_rows: whether the result is a matrix, whatever q is.
    """

    heads: int
    depth: int
    value_depth: int
    first_channels: tuple[int, int, int]
    tokens: int | None
    scale: float
    nan_to_zero: bool = False
    joins_rows: bool = False


@dataclass(frozen=True)
class Reshaped:
    """The same values in the same order under other sizes: nothing is executed.

    Attributes:
        axes: of the result: a size, -1 for what the others leave, or (first, end) for the product of the operand's axes
            from first to before end. None keeps the operand's.
    """

    axes: tuple[int | Pair, ...] | None = None


LinearLayer = Conv | Depthwise | Matmul
Spec = (
    LinearLayer
    | Pool
    | GlobalPool
    | Elementwise
    | ChannelCombine
    | ChannelScale
    | Concat
    | Channels
    | DepthToSpace
    | PixelCopy
    | LinearResize
    | LayerNormalization
    | GroupNormalization
    | Attention
    | Reshaped
)


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
            return (*dims[:2], 1, 1) if spec.keep_axes else dims[:2]
        case Matmul():
            return (*dims[:-1], spec.weights.rows)
        case Concat():
            return (*dims[: spec.axis], sum(spec.channels), *dims[spec.axis + 1 :])
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
            channels = spec.heads * spec.value_depth
            return (product(dims[:-1]), channels) if spec.joins_rows else (*dims[:-1], channels)
        case Reshaped(axes=axes) if axes is not None:
            target = [axis if isinstance(axis, int) else product(dims[axis[0] : axis[1]]) for axis in axes]
            rest = quotient(product(dims), product(size for size in target if size != -1))
            return tuple(rest if size == -1 else size for size in target)
        case _:
            return dims
