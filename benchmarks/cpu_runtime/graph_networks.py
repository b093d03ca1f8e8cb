"""Time of pruned networks on graphs on the CPU back end, against onnxruntime on the same file, in turns.

Layers as exporters of PyTorch Geometric's write them, with random weights, on random graphs: `sums` adds up what a
node's neighbours have (GIN), `extremes` takes the largest of it (GraphSAGE), and `attention` weighs it by a softmax
over the edges to a node, for four heads (GATv2). Wall-clock time, medians of all turns; the largest difference of
results, relative to the largest one.

    python benchmarks/cpu_runtime/graph_networks.py --nodes 100 1000 20000 --edges-per-node 5 --width 256 --layers 3
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import onnx
from generated import Graph
from onnx import TensorProto, helper
from recurrent import in_turns

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.session import InferenceSession
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram

_KINDS = ("sums", "extremes", "attention")
_HEADS = 4
_LOWEST = float(np.finfo(np.float32).min)


class _Network(Graph):
    """Layers on nodes ``x`` of ``[nodes, width]`` and edges ``[2, edges]``, from their sources to their targets."""

    def begin(self) -> None:
        """Places of the edges."""
        source, target = (self.op("Gather", "edges", self.constant(i, np.int64), axis=0) for i in range(2))
        self.source, self.target = source, target
        self.nodes_count = self.op("Shape", "x", start=0, end=1)

    def scattered(self, values: str, sizes: tuple[int, ...], reduction: str) -> str:
        """What comes to each node."""
        column = self.op("Reshape", self.target, self.constant([-1, *[1] * len(sizes)], np.int64))
        rest = self.constant(sizes, np.int64)
        edges = self.op("Shape", self.target)
        places = self.op("Expand", column, self.op("Concat", edges, rest, axis=0))
        begun = self.op("ConstantOfShape", self.op("Concat", self.nodes_count, rest, axis=0))
        if reduction == "max":
            lowest = onnx.numpy_helper.from_array(np.array([_LOWEST], np.float32))
            below = self.op("ConstantOfShape", self.op("Shape", values), value=lowest)
            begun = self.op("ScatterElements", begun, places, below, axis=0, reduction="min")
        return self.op("ScatterElements", begun, places, values, axis=0, reduction=reduction)

    def neighbours(self, x: str, width: int, kind: str) -> str:
        """What a layer makes of a node's neighbours."""
        if kind != "attention":
            messages = self.op("Gather", x, self.source, axis=0)
            return self.scattered(messages, (width,), "add" if kind == "sums" else "max")
        size = width // _HEADS
        parted = self.constant([-1, _HEADS, size], np.int64)
        left, right = (self.op("Reshape", self.dense(x, width, width), parted) for _ in range(2))
        sent, received = self.op("Gather", left, self.source, axis=0), self.op("Gather", right, self.target, axis=0)
        activated = self.op("LeakyRelu", self.op("Add", sent, received), alpha=0.2)
        weight = self.constant(self.rng.standard_normal((1, _HEADS, size)) / size)
        scores = self.op("ReduceSum", self.op("Mul", activated, weight), self.constant([-1], np.int64), keepdims=0)
        largest = self.op("Gather", self.scattered(scores, (_HEADS,), "max"), self.target, axis=0)
        raised = self.op("Exp", self.op("Sub", scores, largest))
        total = self.op("Gather", self.scattered(raised, (_HEADS,), "add"), self.target, axis=0)
        shares = self.op("Unsqueeze", self.op("Div", raised, total), self.constant([-1], np.int64))
        added = self.scattered(self.op("Mul", sent, shares), (_HEADS, size), "add")
        return self.op("Reshape", added, self.constant([-1, width], np.int64))


def model(kind: str, width: int, layers: int, sparsity: float) -> onnx.ModelProto:
    """Layers of ``width`` channels, of which ``kind`` says how neighbours come together."""
    made = _Network(sparsity)
    made.begin()
    x = "x"
    for _ in range(layers):
        x = made.dense(made.op("Add", made.neighbours(x, width, kind), x), width, width, "Relu")
    made.nodes.append(helper.make_node("Identity", [x], ["y"], name="last"))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["nodes", width]),
        helper.make_tensor_value_info("edges", TensorProto.INT64, [2, "edges"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["nodes", width])]
    graph = helper.make_graph(made.nodes, kind, inputs, outputs, made.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def main() -> None:
    """Print a row for each kind and number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", default=list(_KINDS), choices=_KINDS)
    parser.add_argument("--nodes", nargs="+", type=int, default=[100, 1000, 20000])
    for name, value in (("edges-per-node", 5), ("width", 256), ("layers", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--sparsity", type=float, default=0.8)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    options = CompileOptions(threads=args.threads, deterministic=True)
    print("| network | nodes | edges | ours, ms | onnxruntime, ms | ratio | difference |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for kind in args.kind:
        made = model(kind, args.width, args.layers, args.sparsity)
        own, other = InferenceSession(made, args.threads), OnnxRuntimeProgram(made, options)
        for nodes in args.nodes:
            rng = np.random.default_rng(0)
            edges = args.edges_per_node * nodes
            feeds = {
                "x": rng.standard_normal((nodes, args.width), np.float32), "edges": rng.integers(0, nodes, (2, edges)),
            }  # fmt: skip
            ours, wanted = own.run(None, feeds)[0], other.run(feeds)["y"]
            difference = np.abs(ours - wanted).max() / np.abs(wanted).max()
            runs = [lambda: own.run(None, feeds), lambda: other.run(feeds)]  # noqa: B023
            mine, others = in_turns(runs, args.seconds, time.perf_counter)
            ratio = statistics.median(a / b for a, b in zip(mine, others, strict=True))
            times = f"{statistics.median(mine):.2f} | {statistics.median(others):.2f} | {ratio:.2f}"
            print(f"| {kind} | {nodes:,} | {edges:,} | {times} | {difference:.1e} |", flush=True)


if __name__ == "__main__":
    main()
