"""A small decoder with a cache, exported by torch: past keys and values as inputs, present ones as outputs."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import torch
from torch import nn

__all__ = ["exported_decoder"]

VOCABULARY, WIDTH, HEADS, KV_HEADS, DEPTH, HIDDEN = 40, 32, 4, 2, 8, 48
BATCH, NEW, PAST = 2, 3, 4
INPUTS = ["input_ids", "attention_mask", "position_ids", "past_key_values.0.key", "past_key_values.0.value"]
OUTPUTS = ["logits", "present.0.key", "present.0.value"]


class Decoder(nn.Module):
    """One layer in Llama's shape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        sizes = {"q": HEADS * DEPTH, "k": KV_HEADS * DEPTH, "v": KV_HEADS * DEPTH, "gate": HIDDEN, "up": HIDDEN}
        self.layers = nn.ModuleDict({name: nn.Linear(WIDTH, size, bias=False) for name, size in sizes.items()})
        self.o, self.down = nn.Linear(HEADS * DEPTH, WIDTH, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)
        self.scales = nn.ParameterList(1 + 0.1 * torch.randn(WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("frequencies", 100 ** -(torch.arange(0, DEPTH, 2) / DEPTH))

    def forward(self, ids, mask, positions, past_key, past_value):
        x = self.embedding(ids)
        angles = positions[:, :, None].float() * self.frequencies
        turns = [f(torch.cat((angles, angles), -1))[:, None] for f in (torch.cos, torch.sin)]
        h = self._norm(x, 0)
        query, key, value = (self._parted(self.layers[name](h)) for name in ("q", "k", "v"))
        query, key = _rotated(query, *turns), _rotated(key, *turns)
        key, value = torch.cat((past_key, key), 2), torch.cat((past_value, value), 2)
        new, total = ids.shape[1], mask.shape[1]
        places = torch.arange(total)
        visible = (places[None] <= torch.arange(total - new, total)[:, None])[None, None] & (mask[:, None, None] > 0)
        keys, values = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (key, value))
        scores = query @ keys.transpose(2, 3) / math.sqrt(DEPTH) + torch.where(visible, 0.0, -1e9)
        made = (torch.softmax(scores, -1) @ values).transpose(1, 2).flatten(2)
        x = x + self.o(made)
        h = self._norm(x, 1)
        x = x + self.down(nn.functional.silu(self.layers["gate"](h)) * self.layers["up"](h))
        return self.head(x), key, value

    def _norm(self, x, place):
        return self.scales[place] * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def _parted(self, x):
        return x.unflatten(2, (-1, DEPTH)).transpose(1, 2)


def _rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def exported_decoder(folder: Path, dynamo: bool) -> onnx.ModelProto:
    """The decoder in a file of ``folder``, by torch's newer exporter or by TorchScript; and as a proto."""
    path = folder / "decoder.onnx"
    ids, mask = torch.ones(BATCH, NEW, dtype=torch.long), torch.ones(BATCH, PAST + NEW, dtype=torch.long)
    past = torch.randn(BATCH, KV_HEADS, PAST, DEPTH)
    arguments = ids, mask, torch.arange(PAST, PAST + NEW).repeat(BATCH, 1), past, past.clone()
    net = Decoder().eval()
    if dynamo:
        batch, new, length = (torch.export.Dim(name) for name in ("batch", "sequence", "past"))
        shapes = ({0: batch, 1: new}, {0: batch, 1: torch.export.Dim.DYNAMIC}, {0: batch, 1: new})
        program = torch.onnx.export(
            net, arguments, input_names=INPUTS, output_names=OUTPUTS, opset_version=18, dynamo=True,
            dynamic_shapes=(*shapes, {0: batch, 2: length}, {0: batch, 2: length}), verbose=False,
        )  # fmt: skip
        program.save(path)
    else:
        axes = {"input_ids": {0: "batch", 1: "sequence"}, "position_ids": {0: "batch", 1: "sequence"}}
        axes |= {"attention_mask": {0: "batch", 1: "total"}, "logits": {0: "batch", 1: "sequence"}}
        axes |= {name: {0: "batch", 2: "past" if "past" in name else "total"} for name in (*INPUTS[3:], *OUTPUTS[1:])}
        torch.onnx.export(
            net, arguments, path, input_names=INPUTS, output_names=OUTPUTS, dynamic_axes=axes, opset_version=17,
            dynamo=False,
        )  # fmt: skip
    return onnx.load(path)
