"""The kernels of sparse int8, called on plain arrays, and what they compute in exact integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sift_onnx.backends.cpu import _kernels

BLOCK = 16
ISAS = tuple(_kernels.int8_isas())
# An instruction set, and how rows of weights are multiplied.
FORMS = [(isa, "lists") for isa in ISAS]
if ISAS[0] == "avx512_vnni" and _kernels.may_execute_code():
    FORMS += [(ISAS[0], "generated"), (ISAS[0], "generated in fours")]


def aligned_words(words: int) -> np.ndarray:
    """float32 of any values, aligned to 64 bytes."""
    raw = np.empty(words * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    memory = raw[start : start + words * 4]
    memory[:] = 0xA5
    return memory.view(np.float32)


def as_images(x: np.ndarray) -> np.ndarray:
    """A matrix is images of one pixel."""
    return x if x.ndim == 4 else x[:, :, None, None]


def to_quads(x: np.ndarray) -> np.ndarray:
    """u8 [n, c, h, w] or [n, c] in quads, as words; what is past the last position or channel is not zero."""
    x = as_images(x)
    n, c, h, w = x.shape
    positions, quads = -(-n * h * w // BLOCK), -(-c // 4)
    full = np.full((positions * BLOCK, quads * 4), 0x5A, np.uint8)
    full[: n * h * w, :c] = x.transpose(0, 2, 3, 1).reshape(-1, c)
    words = aligned_words(positions * quads * BLOCK)
    words.view(np.uint8)[:] = full.reshape(positions, BLOCK, quads, 4).transpose(0, 2, 1, 3).reshape(-1)
    return words


def from_quads(words: np.ndarray, shape: tuple[int, int, int, int]) -> np.ndarray:
    n, c, h, w = shape
    positions, quads = -(-n * h * w // BLOCK), -(-c // 4)
    blocks = words.view(np.uint8).reshape(positions, quads, BLOCK, 4).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(
        blocks.reshape(-1, quads * 4)[: n * h * w, :c].reshape(n, h, w, c).transpose(0, 3, 1, 2)
    )


def quads_words(shape: tuple[int, int, int, int]) -> int:
    n, c, h, w = shape
    return -(-n * h * w // BLOCK) * BLOCK * -(-c // 4)


def to_float_quads(x: np.ndarray) -> np.ndarray:
    """Floats [n, c, h, w] in float_quads; bytes, and what is past the last position or channel, are not zero."""
    n, c, h, w = x.shape
    positions, channels = -(-n * h * w // BLOCK), -(-c // 4) * 4
    full = np.full((positions * BLOCK, channels), 55, np.float32)
    full[: n * h * w, :c] = x.transpose(0, 2, 3, 1).reshape(-1, c)
    words = aligned_words(5 * quads_words(x.shape))
    words[quads_words(x.shape) :] = full.reshape(positions, BLOCK, channels).transpose(0, 2, 1).reshape(-1)
    return words


def from_float_quads(words: np.ndarray, shape: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The floats, and the bytes beside them."""
    n, c, h, w = shape
    positions, channels = -(-n * h * w // BLOCK), -(-c // 4) * 4
    quads, floats = np.split(words, [quads_words(shape)])
    blocks = floats.reshape(positions, channels, BLOCK).transpose(0, 2, 1).reshape(-1, channels)[: n * h * w, :c]
    return np.ascontiguousarray(blocks.reshape(n, h, w, c).transpose(0, 3, 1, 2)), from_quads(quads, shape)


def run_quads(pool: _kernels.ThreadPool, op: Any, x: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
    """An operator from quads to quads."""
    x = as_images(x)
    shape = op.output_shape(x.shape)
    out = aligned_words(quads_words(shape))
    op.run(pool, x.shape, to_quads(x), out, None if second is None else to_quads(second))
    return from_quads(out, shape)


def integer_conv(
    x: np.ndarray,
    weights: np.ndarray,
    zero_point: int,
    *,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    groups: int = 1,
) -> np.ndarray:
    """Sums of weights times (x - zero_point), in int64; padding is the zero point."""
    x = as_images(x).astype(np.int64) - zero_point
    weights = as_images(weights).astype(np.int64)
    top, left, bottom, right = pads
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    rows, of_group, kernel_h, kernel_w = weights.shape
    out_h = (x.shape[2] - (kernel_h - 1) * dilation[0] - 1) // stride[0] + 1
    out_w = (x.shape[3] - (kernel_w - 1) * dilation[1] - 1) // stride[1] + 1
    y = np.zeros((len(x), rows, out_h, out_w), np.int64)
    per_group = rows // groups
    for group in range(groups):
        own = weights[group * per_group : (group + 1) * per_group]
        channels = x[:, group * of_group : (group + 1) * of_group]
        for ky in range(kernel_h):
            for kx in range(kernel_w):
                ys = slice(ky * dilation[0], ky * dilation[0] + (out_h - 1) * stride[0] + 1, stride[0])
                xs = slice(kx * dilation[1], kx * dilation[1] + (out_w - 1) * stride[1] + 1, stride[1])
                y[:, group * per_group : (group + 1) * per_group] += np.einsum(
                    "nchw,oc->nohw", channels[:, :, ys, xs], own[:, :, ky, kx]
                )
    return y


def requantize(sums: np.ndarray, multipliers: np.ndarray, zero_point: int, low: int = 0, high: int = 255) -> np.ndarray:
    """In single precision, half to even, as onnxruntime does it."""
    with np.errstate(over="ignore"):
        scaled = sums.astype(np.float32) * np.asarray(multipliers, np.float32).reshape(1, -1, 1, 1)
    return np.clip(np.rint(scaled) + zero_point, low, high).astype(np.uint8)
