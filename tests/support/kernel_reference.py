"""What the kernels should compute, in plain numpy, and how to run one in either layout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sift_onnx.backends.cpu import _kernels

Array = np.ndarray[Any, np.dtype[np.float32]]
Shape = tuple[int, int, int, int]
LANES = 16
LAYOUTS = ("planes", "images16")
ACTIVATIONS = (
    ("none", 0.0, 0.0),
    ("clip", 0.0, math.inf),
    ("clip", -0.5, 0.75),
    ("leaky", 0.125, 0.0),
    ("hard_sigmoid", 0.2, 0.5),
    ("hard_swish", 0.0, 0.0),
    ("sigmoid", 0.0, 0.0),
    ("silu", 0.0, 0.0),
    ("tanh", 0.0, 0.0),
    ("gelu", 0.0, 0.0),
    ("gelu_tanh", 0.0, 0.0),
    ("elu", 0.75, 1.5),
    ("mish", 0.0, 0.0),
)


def random_array(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def random_sparse(rng: np.random.Generator, shape: tuple[int, ...], density: float) -> Array:
    """Non-zeros at random places; a density of -1 stands for exactly one of them."""
    values = random_array(rng, shape)
    if density < 0:
        kept = np.zeros(values.size, bool)
        kept[rng.integers(values.size)] = True
        return values * kept.reshape(shape)
    return values * (rng.random(shape) < density)


def aligned(size: int) -> Array:
    """NaN everywhere, so that a value that a kernel forgets to write shows; begins at a multiple of 64 bytes."""
    memory = np.full(size + LANES, np.nan, np.float32)
    first = -memory.ctypes.data // 4 % LANES
    return memory[first : first + size]


def lanes_of(x: Array, idle: float = 3.0) -> Array:
    """``x`` in images16; lanes that belong to no image hold ``idle``."""
    n, c, h, w = x.shape
    groups = -(-n // LANES)
    padded = np.full((groups * LANES, c, h, w), idle, np.float32)
    padded[:n] = x
    blocks = aligned(padded.size)
    blocks[:] = padded.reshape(groups, LANES, c, h, w).transpose(0, 2, 3, 4, 1).reshape(-1)
    return blocks


def images_of(blocks: Any, shape: tuple[int, ...], idle_is_zero: bool = False) -> Any:
    """What ``lanes_of`` was made from."""
    n, c, h, w = shape
    groups = -(-n // LANES)
    images = blocks.reshape(groups, c, h, w, LANES).transpose(0, 4, 1, 2, 3).reshape(groups * LANES, c, h, w)
    if idle_is_zero:
        assert not images[n:].any()
    return images[:n]


def activate(x: Any, activation: tuple[str, float, float]) -> Any:
    kind, a, b = activation
    erf = np.vectorize(math.erf, otypes=[np.float64])
    with np.errstate(over="ignore"):
        match kind:
            case "clip":
                return np.clip(x, a, b)
            case "leaky":
                return np.where(x < 0, x * a, x)
            case "hard_sigmoid":
                return np.clip(x * a + b, 0, 1)
            case "hard_swish":
                return x * np.clip(x / 6 + 0.5, 0, 1)
            case "sigmoid":
                return 1 / (1 + np.exp(-x))
            case "silu":
                return x / (1 + np.exp(-x))
            case "tanh":
                return np.tanh(x)
            case "gelu":
                return x * 0.5 * (1 + erf(x / math.sqrt(2)))
            case "elu":
                return b * np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x)
            case "mish":
                return x * np.tanh(np.logaddexp(0, x))
            case "gelu_tanh":
                return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x


def windows(
    x: Array, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], pads: Shape, fill: float
) -> Any:
    """[kh, kw, n, c, out_h, out_w] in double precision: what each tap of a sliding window reads."""
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    out_h = (padded.shape[2] - (kernel[0] - 1) * dilation[0] - 1) // stride[0] + 1
    out_w = (padded.shape[3] - (kernel[1] - 1) * dilation[1] - 1) // stride[1] + 1
    taps = np.empty((*kernel, *x.shape[:2], out_h, out_w))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            y, z = i * dilation[0], j * dilation[1]
            taps[i, j] = padded[
                :, :, y : y + (out_h - 1) * stride[0] + 1 : stride[0], z : z + (out_w - 1) * stride[1] + 1 : stride[1]
            ]
    return taps


def conv(
    x: Array,
    weights: Array,
    bias: Array | None = None,
    *,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    pads: Shape = (0, 0, 0, 0),
    groups: int = 1,
    activation: tuple[str, float, float] = ("none", 0.0, 0.0),
    residual: Array | None = None,
) -> Any:
    kernel = (weights.shape[2], weights.shape[3])
    taps = windows(x, kernel, stride, dilation, pads, 0.0)
    taps = taps.reshape(*kernel, x.shape[0], groups, -1, *taps.shape[4:])
    grouped = weights.astype(np.float64).reshape(groups, -1, *weights.shape[1:])
    y = np.einsum("ijngchw,gocij->ngohw", taps, grouped, optimize=True)
    y = y.reshape(x.shape[0], -1, *y.shape[3:])
    if bias is not None:
        y = y + bias.reshape(1, -1, 1, 1)
    if residual is not None:
        y = y + residual
    return activate(y, activation)


def to_layout(pool: _kernels.ThreadPool, x: Array, layout: str) -> Array:
    if layout == "planes":
        return np.ascontiguousarray(x)
    n, c, h, w = x.shape
    blocks = aligned(-(-n // LANES) * LANES * c * h * w)
    _kernels.Reorder("planes").run(pool, x.shape, np.ascontiguousarray(x), blocks)
    return blocks


def run(
    pool: _kernels.ThreadPool,
    op: _kernels.Op,
    x: Array,
    second: Array | None = None,
    align: bool = False,
    third: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """Run `op` in its layouts on NCHW arrays; its output begins at a cache line in `images16`, or if it is to."""
    shape = op.output_shape(x.shape)
    inside = to_layout(pool, x, op.input_layout)
    others = [None if y is None else to_layout(pool, y, op.output_layout) for y in (second, third)]
    out = aligned(math.prod(shape)).reshape(shape) if align else np.full(shape, np.nan, np.float32)
    if op.output_layout == "planes":
        op.run(pool, x.shape, inside, out, *others, mask)
        return out
    blocks = aligned(-(-shape[0] // LANES) * LANES * shape[1] * shape[2] * shape[3])
    op.run(pool, x.shape, inside, blocks, *others, mask)
    _kernels.Reorder("images16").run(pool, shape, blocks, out)
    return out


def assert_close(actual: Array, expected: Any, terms: int = 1) -> None:
    """Equal up to the rounding of `terms` additions in single precision."""
    assert actual.shape == expected.shape
    scale = 1 + (float(np.abs(expected[np.isfinite(expected)]).max()) if expected.size else 0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6 * scale * max(1, math.sqrt(terms)))


def sparse_integers(rng: np.random.Generator, shape: tuple[int, int], density: float) -> Array:
    """Weights of int8 as floats, of which this share are not zero."""
    weights = rng.integers(-128, 128, shape).astype(np.float32)
    weights[rng.random(shape) >= density] = 0
    return weights


def product(pool: _kernels.ThreadPool, op: _kernels.Matmul, x: Array, second: Array | None = None) -> Array:
    """The result for x [m, columns] in the operator's layout."""
    added = None if second is None else second[:, :, None, None]
    return run(pool, op, x[:, :, None, None], added)[:, :, 0, 0]
