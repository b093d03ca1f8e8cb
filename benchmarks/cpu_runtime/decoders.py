"""Time of a token of pruned decoders on the CPU back end, against onnxruntime on the same file, in turns.

A decoder in the shape of Llama, as onnxruntime-genai's builder writes it, with random weights: onnxruntime has its own
operators for attention and normalization there, so that it is at its best.

    python benchmarks/cpu_runtime/decoders.py --sparsity 0.5 0.7 0.9 --json decoders.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from sift_onnx.backends.base import get_backend
from sift_onnx.cli.comparison import subjects_of
from sift_onnx.cli.decode_comparison import compare_decoders
from sift_onnx.records.record import json_of
from sift_onnx.reports.benchmark import decodes_table

POSITIONS = 2048


class Builder:
    """A decoder under construction."""

    def __init__(self, args: argparse.Namespace, sparsity: float) -> None:
        """Begin with nothing."""
        self.args, self.sparsity = args, sparsity
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, values: np.ndarray, name: str) -> str:
        """An initializer."""
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def op(self, kind: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: object) -> str:
        """A node; the name of its first output."""
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], domain=domain, **attributes))
        return outputs[0]

    def linear(self, x: str, inputs: int, outputs: int, name: str) -> str:
        """A product with a pruned weight."""
        values = self.rng.standard_normal((inputs, outputs), np.float32)
        values *= self.rng.random((inputs, outputs), np.float32) >= self.sparsity
        values *= np.float32(((1 - self.sparsity) * inputs) ** -0.5)
        return self.op("MatMul", [x, self.constant(values, f"{name}.weight")], [name])

    def model(self) -> onnx.ModelProto:
        """The decoder."""
        a = self.args
        depth, cache = a.width // a.heads, ["batch", a.key_heads, "past", a.width // a.heads]
        one = self.constant(np.array([1], np.int64), "one")
        self.op("Shape", ["attention_mask"], ["mask_shape"], start=1, end=2)
        self.op("Squeeze", ["mask_shape"], ["total64"])
        self.op("Cast", ["total64"], ["total"], to=TensorProto.INT32)
        self.op("ReduceSum", ["attention_mask", one], ["count"], keepdims=0)
        self.op("Sub", ["count", one], ["last64"])
        self.op("Cast", ["last64"], ["last"], to=TensorProto.INT32)
        angles = np.outer(np.arange(POSITIONS), 1e4 ** -(np.arange(0, depth, 2) / depth))
        cos, sin = (self.constant(f(angles).astype(np.float32), f.__name__) for f in (np.cos, np.sin))
        table = self.constant(self.rng.standard_normal((a.vocabulary, a.width), np.float32), "embedding")
        x = self.op("Gather", [table, "input_ids"], ["embedded"])
        ones = self.constant(np.ones(a.width, np.float32), "scale")
        h = self.op("SimplifiedLayerNormalization", [x, ones], ["norm"], axis=-1, epsilon=1e-6, stash_type=1)
        for i in range(a.layers):
            q = self.linear(h, a.width, a.width, f"q{i}")
            k, v = (self.linear(h, a.width, a.key_heads * depth, f"{kind}{i}") for kind in "kv")
            pasts = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
            presents = [f"present.{i}.{kind}" for kind in ("key", "value")]
            self.op(
                "GroupQueryAttention", [q, k, v, *pasts, "last", "total", cos, sin], [f"attention{i}", *presents],
                "com.microsoft", num_heads=a.heads, kv_num_heads=a.key_heads, do_rotary=1,
            )  # fmt: skip
            h, x = self.added(x, self.linear(f"attention{i}", a.width, a.width, f"o{i}"), ones)
            gate = self.linear(h, a.width, a.hidden, f"gate{i}")
            silu = self.op("Mul", [gate, self.op("Sigmoid", [gate], [f"sigmoid{i}"])], [f"silu{i}"])
            gated = self.op("Mul", [silu, self.linear(h, a.width, a.hidden, f"up{i}")], [f"gated{i}"])
            h, x = self.added(x, self.linear(gated, a.hidden, a.width, f"down{i}"), ones)
        self.linear(h, a.width, a.vocabulary, "logits")
        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
        mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"])
        ends = [
            (f"past_key_values.{i}.{kind}", f"present.{i}.{kind}") for i in range(a.layers) for kind in ("key", "value")
        ]
        pasts = [helper.make_tensor_value_info(past, TensorProto.FLOAT, cache) for past, _ in ends]
        made = [*cache[:2], "total", cache[3]]
        presents = [helper.make_tensor_value_info(present, TensorProto.FLOAT, made) for _, present in ends]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", a.vocabulary])
        graph = helper.make_graph(
            self.nodes, "decoder", [ids, mask, *pasts], [logits, *presents], self.constants
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def added(self, x: str, more: str, scale: str) -> tuple[str, str]:
        """The norm of a sum, and the sum."""
        outputs = [f"{more}.norm", "", "", f"{more}.sum"]
        self.op("SkipSimplifiedLayerNormalization", [x, more, scale], outputs, "com.microsoft", epsilon=1e-6)
        return outputs[0], outputs[3]


def main() -> None:
    """Make the files, time them, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.5, 0.7, 0.9])
    for name, value in (
        ("layers", 12), ("width", 768), ("heads", 12), ("key-heads", 4), ("hidden", 2048), ("vocabulary", 32000),
        ("prompt", 64), ("tokens", 32), ("batch", 1), ("threads", 2),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=5.0, help="to measure each for")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    backends = {name: get_backend(name) for name in ("cpu", "onnxruntime")}
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for sparsity in args.sparsity:
            paths.append(str(Path(folder) / f"decoder-{sparsity:g}.onnx"))
            onnx.save(Builder(args, sparsity).model(), paths[-1])
        decode = (args.prompt, args.tokens)
        reports = [
            compare_decoders(
                subjects_of([path], None, {}), backends, args.threads, [args.batch], decode, args.seconds, 0, -1
            )
            for path in paths
        ]
    for report in reports:
        own, other = report.decodes or ()
        Console(width=160).print(decodes_table((own, other)))
        print(
            f"{own.label}: {own.token_ms / other.token_ms:.2f} of onnxruntime's time a token (fastest rounds "
            f"{own.min_token_ms / other.min_token_ms:.2f}), {own.first_ms / other.first_ms:.2f} to the first token"
        )
    if args.json is not None:
        args.json.write_text(json.dumps([json_of(report) for report in reports], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
