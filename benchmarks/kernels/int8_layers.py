"""Time layers of sparse int8, beside onnxruntime's dense int8 of the same layer.

    python benchmarks/kernels/int8_layers.py [--model resnet50 bert] [--pattern 0.8 0.9 0.95 block:0.85] [--threads 1 2]

In turns: the rate in GOP/s of live quads (8 operations each), the least and the median time of both, and the ratio of
the least times. onnxruntime runs QLinearConv and QLinearMatMul with all weights; it does not skip zeros.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from sift_onnx.backends.cpu import _kernels


@dataclass(frozen=True)
class Layer:
    """Rows x channels, a square kernel, and an image of size x size; or tokens, where size is their number."""

    rows: int
    channels: int
    kernel: int
    stride: int
    size: int
    is_product: bool = False

    @property
    def name(self) -> str:
        if self.is_product:
            return f"{self.rows}x{self.channels}, {self.size} tokens"
        return f"{self.rows}x{self.channels}x{self.kernel}x{self.kernel}/{self.stride}@{self.size}"


MODELS = {
    "resnet50": (
        Layer(64, 3, 7, 2, 224),
        Layer(64, 256, 1, 1, 56),
        Layer(64, 64, 3, 1, 56),
        Layer(256, 64, 1, 1, 56),
        Layer(128, 128, 3, 1, 28),
        Layer(512, 128, 1, 1, 28),
        Layer(256, 256, 3, 1, 14),
        Layer(1024, 256, 1, 1, 14),
        Layer(1024, 512, 1, 2, 28),
        Layer(512, 512, 3, 1, 7),
        Layer(2048, 512, 1, 1, 7),
        Layer(512, 2048, 1, 1, 7),
    ),
    "bert": (
        Layer(768, 768, 1, 1, 128, True),
        Layer(3072, 768, 1, 1, 128, True),
        Layer(768, 3072, 1, 1, 128, True),
    ),
}


def aligned(words: int) -> np.ndarray:
    """Words of four bytes, at a multiple of 64."""
    raw = np.zeros(words + 16, np.float32)
    return raw[-raw.ctypes.data // 4 % 16 :][:words]


def pruned(layer: Layer, pattern: str, rng: np.random.Generator) -> np.ndarray:
    """Values of int8, of which blocks of four input channels are zero, or any."""
    shape = (layer.rows, layer.channels, layer.kernel, layer.kernel)
    values = rng.integers(1, 128, shape) * rng.choice((-1, 1), shape)
    block = pattern.startswith("block:")
    sparsity = float(pattern.removeprefix("block:"))
    if not block:
        return np.where(rng.random(shape) < sparsity, 0, values).astype(np.int8)
    quads = rng.random((layer.rows, math.ceil(layer.channels / 4), layer.kernel, layer.kernel)) < sparsity
    return np.where(quads.repeat(4, axis=1)[:, : layer.channels], 0, values).astype(np.int8)


def ours(
    layer: Layer, weights: np.ndarray, batch: int, threads: int, isa: str, algorithm: str
) -> tuple[Callable[[], None], int]:
    """The layer in our kernels, and the operations of its live quads."""
    quads = _kernels.QuadWeights(weights)
    pads = ((layer.kernel - 1) // 2,) * 4
    op = _kernels.QuantizedConv(
        quads, None, np.float32([1e-4]), input_zero_point=3, zero_point=128, stride=(layer.stride,) * 2, pads=pads,
        isa=isa, algorithm=algorithm,
    )  # fmt: skip
    size = layer.size
    shape = (batch * size, layer.channels, 1, 1) if layer.is_product else (batch, layer.channels, size, size)
    pool = _kernels.ThreadPool(threads)
    rng = np.random.default_rng(1)

    def words(sizes: tuple[int, ...]) -> int:
        n, c, h, w = sizes
        return -(-n * h * w // 16) * 16 * -(-c // 4)

    x, y = aligned(words(shape)), aligned(words(op.output_shape(shape)))
    x.view(np.uint8)[:] = rng.integers(0, 256, x.nbytes, np.uint8)
    positions = math.prod(op.output_shape(shape)) // layer.rows
    return (lambda: op.run(pool, shape, x, y)), 8 * quads.live_quads * positions


def theirs(layer: Layer, weights: np.ndarray, batch: int, threads: int) -> Callable[[], None]:
    """The same layer in onnxruntime."""
    scale, zero = np.float32(1), np.uint8(3)
    constants: dict[str, np.ndarray | np.generic] = {"scale": scale, "zero": zero, "w_scale": np.float32(1e-4)}
    constants |= {"w_zero": np.int8(0), "y_zero": np.uint8(128)}
    if layer.is_product:
        shape: tuple[int, ...] = (batch * layer.size, layer.channels)
        constants["w"] = np.ascontiguousarray(weights[:, :, 0, 0].T)
        node = helper.make_node(
            "QLinearMatMul", ["x", "scale", "zero", "w", "w_scale", "w_zero", "scale", "y_zero"], ["y"]
        )
    else:
        shape = (batch, layer.channels, layer.size, layer.size)
        constants["w"] = weights
        node = helper.make_node(
            "QLinearConv", ["x", "scale", "zero", "w", "w_scale", "w_zero", "scale", "y_zero"], ["y"],
            pads=((layer.kernel - 1) // 2,) * 4, strides=(layer.stride,) * 2,
        )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    x = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding)


def measure(
    layer: Layer, pattern: str, batch: int, threads: int, isa: str, algorithm: str, seconds: float
) -> tuple[str, float, float]:
    """A row of the table, and the least times."""
    weights = pruned(layer, pattern, np.random.default_rng(0))
    own, operations = ours(layer, weights, batch, threads, isa, algorithm)
    runs = (own, theirs(layer, weights, batch, threads))
    times: tuple[list[float], list[float]] = ([], [])
    for run in runs:
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for run, taken in zip(runs, times, strict=True):
            for _ in range(3):
                start = time.perf_counter()
                run()
                taken.append(time.perf_counter() - start)
    (least, median), (dense, dense_median) = ((min(taken), statistics.median(taken)) for taken in times)
    row = (
        f"{layer.name:22} {pattern:>10} {batch:5} {threads:7} {operations / least / 1e9:7.0f} {least * 1e6:9.0f} "
        f"{median * 1e6:9.0f} {dense * 1e6:9.0f} {dense_median * 1e6:9.0f} {least / dense:6.2f}"
    )
    return row, least, dense


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--pattern", nargs="+", default=["0.8", "0.9", "0.95", "block:0.8", "block:0.85"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--isa", default="", help="one of " + ", ".join(_kernels.int8_isas()))
    parser.add_argument("--algorithm", default="auto", choices=["auto", "generated", "lists"])
    parser.add_argument("--seconds", type=float, default=0.3, help="per row")
    given = parser.parse_args()
    print("layer                     pattern batch threads   GOP/s     least    median    onnxruntime (us)     ratio")
    for model in given.model:
        for pattern in given.pattern:
            for batch in given.batch:
                for threads in given.threads:
                    own_sum = dense_sum = 0.0
                    for layer in MODELS[model]:
                        row, own, dense = measure(
                            layer, pattern, batch, threads, given.isa, given.algorithm, given.seconds
                        )
                        print(row, flush=True)
                        own_sum, dense_sum = own_sum + own, dense_sum + dense
                    print(f"{model}, {pattern}: the sum takes {own_sum / dense_sum:.2f} of onnxruntime's", flush=True)


if __name__ == "__main__":
    main()
