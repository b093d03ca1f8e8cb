"""Decoders in the shape of Llama with random pruned weights, as onnxruntime-genai's builder writes them.

onnxruntime has operators of its own for attention and normalization there, so that it is at its best. Weights are
written to a file beside the model one by one: a decoder need not fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["SHAPES", "LlamaShape", "write_decoder"]

_POSITIONS = 2048
# Elements of tensors that stay in the model.
_SMALL = 1024


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of a decoder.

    Attributes:
        layers: how many there are.
        width: channels of a token.
        heads: of queries.
        key_heads: of keys and values.
        hidden: channels between the products of SwiGLU.
        vocabulary: tokens.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int

    @property
    def weights(self) -> int:
        """Weights of all products."""
        of_keys = 2 * self.width * self.key_heads * self.width // self.heads
        layer = 2 * self.width**2 + of_keys + 3 * self.width * self.hidden
        return self.layers * layer + self.width * self.vocabulary

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of keys and values of a sequence in float32."""
        return 2 * 4 * self.layers * self.key_heads * tokens * self.width // self.heads


SHAPES = {
    "110m": LlamaShape(12, 768, 12, 4, 2048, 32000),
    "1.1b": LlamaShape(22, 2048, 32, 4, 5632, 32000),  # TinyLlama
}


def write_decoder(path: Path, shape: LlamaShape, sparsity: float) -> None:
    """Write a decoder; its weights are in a file beside it."""
    with path.with_suffix(".data").open("wb") as file:
        onnx.save(_Builder(shape, sparsity, file).model(), path)


class _Builder:
    """A decoder under construction."""

    def __init__(self, shape: LlamaShape, sparsity: float, file: BinaryIO) -> None:
        self.shape, self.sparsity, self.file = shape, sparsity, file
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.drawn: dict[tuple[int, int], npt.NDArray[np.float32]] = {}

    def constant(self, values: npt.NDArray[np.generic], name: str) -> str:
        """An initializer, in the file if it is large."""
        if values.size < _SMALL:
            self.constants.append(numpy_helper.from_array(values, name))
            return name
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(values.dtype), dims=values.shape)
        tensor.data_location = TensorProto.EXTERNAL
        ends = (("location", Path(self.file.name).name), ("offset", self.file.tell()), ("length", values.nbytes))
        for key, value in ends:
            tensor.external_data.add(key=key, value=str(value))
        self.file.write(np.ascontiguousarray(values).data)
        self.constants.append(tensor)
        return name

    def op(self, kind: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: object) -> str:
        """A node; the name of its first output."""
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], domain=domain, **attributes))
        return outputs[0]

    def linear(self, x: str, inputs: int, outputs: int, name: str) -> str:
        """A product with a pruned weight; those of one shape are one draw, its rows in another order each time."""
        size = (inputs, outputs)
        if size not in self.drawn:
            values = self.rng.standard_normal(size, np.float32)
            values *= self.rng.random(size, np.float32) >= self.sparsity
            values *= np.float32(((1 - self.sparsity) * inputs) ** -0.5)
            self.drawn[size] = values
        turned = np.roll(self.drawn[size], int(self.rng.integers(inputs)), axis=0)
        return self.op("MatMul", [x, self.constant(turned, f"{name}.weight")], [name])

    def norm(self, x: str, more: str, scale: str) -> tuple[str, str]:
        """The norm of a sum, and the sum."""
        outputs = [f"{more}.norm", "", "", f"{more}.sum"]
        self.op("SkipSimplifiedLayerNormalization", [x, more, scale], outputs, "com.microsoft", epsilon=1e-6)
        return outputs[0], outputs[3]

    def model(self) -> onnx.ModelProto:
        """The decoder."""
        s = self.shape
        depth = s.width // s.heads
        one = self.constant(np.array([1], np.int64), "one")
        self.op("Shape", ["attention_mask"], ["mask_shape"], start=1, end=2)
        self.op("Squeeze", ["mask_shape"], ["total64"])
        self.op("Cast", ["total64"], ["total"], to=TensorProto.INT32)
        self.op("ReduceSum", ["attention_mask", one], ["count"], keepdims=0)
        self.op("Sub", ["count", one], ["last64"])
        self.op("Cast", ["last64"], ["last"], to=TensorProto.INT32)
        angles = np.outer(np.arange(_POSITIONS), 1e4 ** -(np.arange(0, depth, 2) / depth))
        tables = [self.constant(f(angles).astype(np.float32), f.__name__) for f in (np.cos, np.sin)]
        table = self.constant(self.rng.standard_normal((s.vocabulary, s.width), np.float32), "embedding")
        x = self.op("Gather", [table, "input_ids"], ["embedded"])
        ones = self.constant(np.ones(s.width, np.float32), "scale")
        h = self.op("SimplifiedLayerNormalization", [x, ones], ["norm"], axis=-1, epsilon=1e-6, stash_type=1)
        for i in range(s.layers):
            q = self.linear(h, s.width, s.width, f"q{i}")
            k, v = (self.linear(h, s.width, s.key_heads * depth, f"{kind}{i}") for kind in "kv")
            pasts = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
            presents = [f"present.{i}.{kind}" for kind in ("key", "value")]
            self.op(
                "GroupQueryAttention", [q, k, v, *pasts, "last", "total", *tables], [f"attention{i}", *presents],
                "com.microsoft", num_heads=s.heads, kv_num_heads=s.key_heads, do_rotary=1,
            )  # fmt: skip
            h, x = self.norm(x, self.linear(f"attention{i}", s.width, s.width, f"o{i}"), ones)
            gate = self.linear(h, s.width, s.hidden, f"gate{i}")
            silu = self.op("Mul", [gate, self.op("Sigmoid", [gate], [f"sigmoid{i}"])], [f"silu{i}"])
            gated = self.op("Mul", [silu, self.linear(h, s.width, s.hidden, f"up{i}")], [f"gated{i}"])
            h, x = self.norm(x, self.linear(gated, s.hidden, s.width, f"down{i}"), ones)
        self.linear(h, s.width, s.vocabulary, "logits")
        inputs = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        ]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", s.vocabulary])]
        for listed, end, length in ((inputs, "past_key_values", "past"), (outputs, "present", "total")):
            listed += [
                helper.make_tensor_value_info(
                    f"{end}.{i}.{kind}", TensorProto.FLOAT, ["batch", s.key_heads, length, depth]
                )
                for i in range(s.layers)
                for kind in ("key", "value")
            ]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)
