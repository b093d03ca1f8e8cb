"""How fast sparse weights come from memory: products of one row, layer after layer, beside a plain read loop.

    python benchmarks/decode/decode_bytes.py [--width 4096] [--layers 32] [--threads 2] [--seconds 2]
        [--sparsity 0.5 0.7 0.9] [--folder DIR] [--results FILE]
    python benchmarks/decode/page.py

A model is a chain of square products with ReLU between them, larger than the caches. Per sparsity: the file on the CPU
back end with weights as fp32, bf16 and int8, and on onnxruntime as it is and with weights of 8 and 4 bits (MatMulNBits,
blocks of 32), all in turns in one process; and a loop that reads as many bytes as each of ours holds, on the same
threads, in turns with it. Appends to a file of results.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.pool import pool_of
from sift_onnx.backends.cpu.run.program import CpuProgram

RESULTS = Path(__file__).parent / "results"
VALUES = ("fp32", "bf16", "int8")
_BLOCK = 32


def write_chain(path: Path, width: int, layers: int, sparsity: float) -> None:
    """A chain of products by one random matrix, its rows in another order in each layer; weights in a file beside."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((width, width), np.float32) * np.float32((2 / width / (1 - sparsity)) ** 0.5)
    first *= rng.random((width, width), np.float32) >= sparsity
    data = path.with_suffix(".data")
    tensors, nodes = [], []
    with data.open("wb") as file:
        for layer in range(layers):
            weights = np.roll(first, layer, axis=0)
            tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[width, width])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", file.tell()), ("length", weights.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            file.write(weights.data)
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"y{layer}"]))
            nodes.append(helper.make_node("Relu", [f"y{layer}"], [f"x{layer + 1}"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)


def onnxruntime_session(path: Path, threads: int) -> ort.InferenceSession:
    """The file on onnxruntime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(path, options, ["CPUExecutionProvider"])


def weight_only(path: Path, target: Path, bits: int) -> bool:
    """The file with weights of few bits for onnxruntime; whether its quantizer can be had."""
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    except ImportError as error:
        print(f"  no weights of {bits} bits: {error}")
        return False
    quantizer = MatMulNBitsQuantizer(onnx.load(path), bits=bits, block_size=_BLOCK, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target), use_external_data_format=True)
    return True


def ways_to_run(path: Path, threads: int, x: np.ndarray) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    """Each way to run the file, with read loops, and the bytes of weights that ours hold."""
    runs: dict[str, Callable[[], object]] = {}
    held: dict[str, int] = {}
    kernels = pool_of(threads, None).kernels
    for values in VALUES:
        program = CpuProgram(path, CompileOptions(threads, deterministic=True, weight_values=values))
        runs[values] = lambda program=program: program.run({"x0": x})
        runs[values]()
        held[values] = program.weight_bytes
    memory = np.ones(max(held.values()) // 8, np.uint64)
    for values, nbytes in held.items():
        runs[f"{values}, read"] = lambda n=nbytes // 8: _kernels.read_memory(kernels, memory[:n])
    whole = onnxruntime_session(path, threads)
    runs["onnxruntime"] = lambda: whole.run(None, {"x0": x})
    for bits in (8, 4):
        target = path.with_name(f"bits{bits}.onnx")
        if weight_only(path, target, bits):
            session = onnxruntime_session(target, threads)
            runs[f"onnxruntime, {bits} bits"] = lambda session=session: session.run(None, {"x0": x})
    return runs, held


def in_turns(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each, run one after the other until that takes ``seconds`` for each of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end or len(next(iter(times.values()))) < 3:
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return times


def main() -> None:
    """Measure, print, and append to a file."""
    logging.getLogger("onnxruntime").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each way to run a file")
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.5, 0.7, 0.9])
    parser.add_argument("--folder", type=Path, help="for the models; they are removed at the end  [default: temporary]")
    parser.add_argument("--results", type=Path, default=RESULTS / "xeon.json")
    arguments = parser.parse_args()
    x = np.abs(np.random.default_rng(1).standard_normal((1, arguments.width), np.float32))
    rows = []
    for sparsity in arguments.sparsity:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            path = Path(folder) / "chain.onnx"
            write_chain(path, arguments.width, arguments.layers, sparsity)
            runs, held = ways_to_run(path, arguments.threads, x)
            times = in_turns(runs, arguments.seconds)
            del runs
        found = {
            name: {"ms": statistics.median(own), "least_ms": min(own)} | ({"bytes": held[name]} if name in held else {})
            for name, own in times.items()
        }
        dense = found["onnxruntime"]["least_ms"]
        for name, row in found.items():
            rate = f"{1e-6 * row['bytes'] / row['least_ms']:6.1f} GB/s" if "bytes" in row else ""
            print(
                f"{sparsity:.0%} {name:22} {row['least_ms']:8.2f} ms  {row['least_ms'] / dense:5.2f}  {rate}",
                flush=True,
            )
            rows.append({"sparsity": sparsity, "width": arguments.width, "layers": arguments.layers,
                         "threads": arguments.threads, "name": name} | row)  # fmt: skip
    arguments.results.parent.mkdir(exist_ok=True)
    pages.write(arguments.results, rows)


if __name__ == "__main__":
    main()
