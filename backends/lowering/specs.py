"""What operators compute, whatever layout or kernel a back end chooses: one frozen dataclass per operator.

The sizes of a spec's result follow from its operand's, known or not yet known (:func:`result_dims`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from sift_onnx.backends.lowering.dims import Dim, Dims, bound, names_in, product, quotient, window
from sift_onnx.backends.lowering.weights import Floats, WeightMatrix

__all__ = [
    "NO_ACTIVATION",
    "RELU",
    "Activation",
    "Attention",
    "ChannelScale",
    "Conv",
    "Depthwise",
    "Elementwise",
    "Geometry",
    "GlobalPool",
    "Joined",
    "LayerNormalization",
    "LinearLayer",
    "Matmul",
    "Moving",
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
    """pool(activation(conv(x) + bias + second)), pool and second not together."""

    weights: WeightMatrix
    bias: Floats | None
    geometry: Geometry
    groups: int = 1
    activation: Activation = NO_ACTIVATION
    pool: Pool | None = None


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
    """activation(x kind second); ``first`` is the activation of x alone."""

    kind: Literal["first", "add", "subtract", "multiply"]
    activation: Activation = NO_ACTIVATION


@dataclass(frozen=True)
class ChannelScale:
    """activation(x * scale + shift), both [c]."""

    scale: Floats = field(repr=False)
    shift: Floats = field(repr=False)
    activation: Activation = NO_ACTIVATION


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
    """Positions ``range(size)[start:stop:step]`` of an axis, forwards; one of them where the size is not known."""

    axis: int
    start: int
    stop: int | None
    step: int = 1

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

    The first operand has the result's other sizes; axes of one position of the others are repeated.

    Attributes:
        axis: along which they lie.
        starts: where each operand begins.
        size: of the result.
    """

    axis: int
    starts: tuple[int, ...]
    size: int


LinearLayer = Conv | Depthwise | Matmul
Moving = Reshaped | Transposed | Sliced | Repeated | Joined
Spec = LinearLayer | Pool | GlobalPool | Elementwise | ChannelScale | LayerNormalization | Attention | Moving


def _is_pair(axis: Dim | Pair) -> TypeGuard[Pair]:
    return isinstance(axis, tuple) and isinstance(axis[0], int)


def result_dims(spec: Spec, dims: Dims) -> Dims:
    """Sizes of the result for an operand of ``dims``, as ONNX has them."""
    match spec:
        case Conv():
            convolved = (dims[0], spec.weights.rows, *spec.geometry.positions(dims))
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
        case Attention():
            return (*dims[:-1], spec.value_depth)
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
