"""Transformed decoders keep their cache: names, order and open axes, with sizes that fit."""

from __future__ import annotations

import onnx
import pytest
from decoder_nets import SPELLINGS, decoder

from sift_onnx.backends.decoding.decoder import Decoder
from sift_onnx.model import Model
from sift_onnx.passes import Prune, Wide


def ends(model: onnx.ModelProto) -> list[tuple[str, list[str | None]]]:
    """Inputs and outputs with the names of their open axes."""
    return [
        (info.name, [dim.dim_param or None for dim in info.type.tensor_type.shape.dim])
        for info in (*model.graph.input, *model.graph.output)
    ]


def tokens_of(model: onnx.ModelProto) -> list[list[int]]:
    return list(Decoder(model, 1, backend="onnxruntime").generate([[3, 5, 7], [1, 4]], 5))


@pytest.mark.parametrize(
    "spelling", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in SPELLINGS if name != "llama")]
)
def test_an_embedded_decoder_says_what_it_said(spelling: str) -> None:
    model = decoder(spelling)
    wider = Wide(0.75, init="embed")(Model.load(model)).model.to_proto()
    assert ends(wider) == ends(model)
    assert sum(t.ByteSize() for t in wider.graph.initializer) > 2 * sum(t.ByteSize() for t in model.graph.initializer)
    assert tokens_of(wider) == tokens_of(model)


@pytest.mark.parametrize("change", [Wide(0.75), Prune(0.6)])
def test_a_decoder_with_other_weights_generates(change: Wide | Prune) -> None:
    model = decoder("gpt2")
    made = change(Model.load(model)).model.to_proto()
    assert ends(made) == ends(model)
    assert len(tokens_of(made)) == 5
