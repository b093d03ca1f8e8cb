"""Time of pruned LSTM and GRU layers on the CPU back end, against onnxruntime on the same file, in turns.

Two layers, one above the other, as torch exports them, with random weights. Processor time of one thread, least and
median of all turns.

    python benchmarks/cpu_runtime/recurrent.py --hidden 256 512 --sparsity 0.8 0.9 --batch 1 16 --steps 50
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram

_GATES = {"LSTM": 4, "GRU": 3}


def model(kind: str, hidden: int, sparsity: float, layers: int = 2, both: bool = False) -> onnx.ModelProto:
    """Layers of ``hidden`` units on as many features, [steps, batch, features]."""
    rng = np.random.default_rng(0)
    nodes, constants = [], []
    directions = 2 if both else 1

    def weights(name: str, *shape: int, keeps_all: bool = False) -> str:
        values = rng.standard_normal(shape).astype(np.float32)
        if not keeps_all:
            values *= (rng.random(shape) >= sparsity) / np.float32((1 - sparsity) * shape[-1]) ** 0.5
        constants.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    constants.append(numpy_helper.from_array(np.array([0, 0, -1], np.int64), "joined"))
    x, features = "x", hidden
    for number in range(layers):
        rows = _GATES[kind] * hidden
        operands = [
            weights(f"w{number}", directions, rows, features),
            weights(f"r{number}", directions, rows, hidden),
            weights(f"b{number}", directions, 2 * rows, keeps_all=True),
        ]
        attributes = {"direction": "bidirectional"} if both else {}
        if kind == "GRU":
            attributes["linear_before_reset"] = 1
        nodes.append(helper.make_node(kind, [x, *operands], [f"y{number}"], hidden_size=hidden, **attributes))
        nodes.append(helper.make_node("Transpose", [f"y{number}"], [f"t{number}"], perm=[0, 2, 1, 3]))
        x = f"out{number}" if number < layers - 1 else "out"
        nodes.append(helper.make_node("Reshape", [f"t{number}", "joined"], [x]))
        features = directions * hidden
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "batch", hidden])]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["steps", "batch", features])]
    graph = helper.make_graph(nodes, "recurrent", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def in_turns(runs: list[Callable[[], object]], seconds: float, clock: Callable[[], float]) -> list[list[float]]:
    """Times of each, in milliseconds."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for own, run in zip(times, runs, strict=True):
            start = clock()
            run()
            own.append(1e3 * (clock() - start))
    return times


def main() -> None:
    """Print a row for each model and batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", default=["GRU", "LSTM"], choices=list(_GATES))
    parser.add_argument("--hidden", nargs="+", type=int, default=[256, 512])
    parser.add_argument("--sparsity", nargs="+", type=float, default=[0.8, 0.9])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--both", action="store_true", help="bidirectional")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    options = CompileOptions(threads=args.threads, deterministic=True)
    clock = time.process_time if args.threads == 1 else time.perf_counter
    print("| layers | sparsity | batch | ours, ms | onnxruntime, ms | ratio | placement |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for kind in args.kind:
        for hidden in args.hidden:
            for sparsity in args.sparsity:
                made = model(kind, hidden, sparsity, both=args.both)
                for batch in args.batch:
                    feeds = {"x": np.random.default_rng(1).standard_normal((args.steps, batch, hidden), np.float32)}
                    shaped = CompileOptions(
                        threads=options.threads, deterministic=True, input_shapes={"x": (args.steps, batch, hidden)}
                    )
                    own, other = CpuProgram(made, shaped), OnnxRuntimeProgram(made, options)
                    times = in_turns([lambda: own.run(feeds), lambda: other.run(feeds)], args.seconds, clock)  # noqa: B023
                    places = {p.placement for p in own.placements if p.op == kind}
                    least, medians = [min(t) for t in times], [statistics.median(t) for t in times]
                    print(
                        f"| {kind} 2 x {hidden} | {sparsity:.0%} | {batch} | {least[0]:.2f} ({medians[0]:.2f}) | "
                        f"{least[1]:.2f} ({medians[1]:.2f}) | {least[0] / least[1]:.2f} | {', '.join(places)} |"
                    )


if __name__ == "__main__":
    main()
