"""Wide with ``init="embed"``: tables of tokens, and what else exporters write around layers of transformers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from embedded_models import embedded, net_of
from nets import MICROSOFT, Net
from normalized_nets import LENGTH, WIDTH, around_one, bias, layer_norm, layer_norm_without_bias

from sift_onnx.graphs.constants import array_of


def looked_up(net: Net) -> None:
    net.input("x", 1, LENGTH, values=np.array([[3, 1, 4, 1, 5]], dtype=np.int64))
    x = net.op("Gather", net.weight(9, WIDTH, fan_in=1, name="table"), "x")
    net.tokens_end(layer_norm(net, net.dense(x, WIDTH, WIDTH)), WIDTH)


def tied(net: Net) -> None:
    net.input("x", 1, LENGTH, values=np.array([[3, 1, 4, 1, 5]], dtype=np.int64))
    table = net.weight(9, WIDTH, fan_in=1, name="table")
    x = net.op("Gather", table, "x")
    x = net.op("Add", x, net.dense(net.op("Gelu", net.dense(layer_norm(net, x), WIDTH, 12)), 12, WIDTH))
    net.output(net.op("MatMul", layer_norm_without_bias(net, x), net.op("Transpose", table, perm=[1, 0])))


def class_token(net: Net) -> None:
    x = net.op("Concat", net.weight(1, 1, WIDTH, fan_in=1), net.tokens(WIDTH, LENGTH), axis=1)
    x = net.op("Add", x, net.weight(1, LENGTH + 1, WIDTH, fan_in=1))
    x = net.op("Gather", layer_norm(net, x), net.constant(0), axis=1)
    net.tokens_end(net.op("Unsqueeze", x, net.constant([1])), WIDTH)


def number_of_channels(net: Net) -> None:
    x = net.images(WIDTH)
    count = net.op("Cast", net.op("Shape", x, start=1, end=2), to=onnx.TensorProto.FLOAT)
    net.images_end(net.op("Mul", x, count), WIDTH)


def first_state(net: Net) -> None:
    """Zeros as many as there are features, as exporters write the state that a recurrence starts from."""
    x = net.op("Add", net.tokens(WIDTH, LENGTH), bias(net, WIDTH))
    state = net.op("ConstantOfShape", net.constant([1, 1, WIDTH]))
    x = net.op("Concat", state, x, net.op("Expand", net.constant(0.0), net.constant([1, 2, WIDTH])), axis=1)
    net.tokens_end(layer_norm(net, x), WIDTH)


def merged_patches(net: Net) -> None:
    """Every other token beside its neighbour, as Swin transformers merge patches; and all of them from the end."""
    x = net.op("Concat", net.weight(1, 1, WIDTH, fan_in=1), net.tokens(WIDTH, LENGTH), axis=1)
    x = net.op("Slice", x, net.constant([-1]), net.constant([-100]), net.constant([1]), net.constant([-1]))
    ends = [net.constant([n]) for n in (100, 1, 2)]
    pairs = [net.op("Slice", x, net.constant([first]), *ends) for first in (0, 1)]
    joined = net.op("Concat", *pairs, axis=2)
    scale, shift = around_one(net, 2 * WIDTH), bias(net, 2 * WIDTH)
    net.tokens_end(net.op("LayerNormalization", joined, scale, shift, axis=-1), 2 * WIDTH)


@pytest.mark.parametrize("block", [looked_up, merged_patches, tied, class_token, number_of_channels, first_state])
def test_a_block_keeps_its_outputs(block: Callable[[Net], None]) -> None:
    net = net_of(block)
    embedded(net.model(), net.feeds)


@pytest.mark.parametrize("opset", [12, 16, 20])
@pytest.mark.parametrize("kind", ["plain", "summed", "places"])
def test_embeddings_that_onnxruntime_normalizes_grow(kind: str, opset: int) -> None:
    net = Net(opset)
    ids = net.input("ids", 2, LENGTH, values=np.array([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]], np.int32))
    segments = net.input("segments", 2, LENGTH, values=np.array([[0, 0, 0, 1, 1]] * 2, np.int32))
    mask = net.input("mask", 2, LENGTH, values=np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32))
    tables = [net.weight(rows, WIDTH, fan_in=1) for rows in (9, 7, 2)]
    read = [ids, segments, *tables, around_one(net, WIDTH), bias(net, WIDTH), mask]
    if kind == "places":
        places = net.input("places", 2, LENGTH, values=np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]], np.int32))
        read.append(places)
    count = 3 if kind == "summed" else 2
    outputs = net.op("EmbedLayerNormalization", *read, domain=MICROSOFT, outputs=count, epsilon=0.1, name="embedded")
    h = net.op("Gelu" if opset == 20 else "Relu", net.dense(outputs[0], WIDTH, 12))
    x = net.op("Add", outputs[0] if count == 2 else outputs[2], net.dense(h, 12, WIDTH))
    net.output(net.op("Add", net.dense(x, WIDTH, 3, name="after"), bias(net, 3)))
    net.output(net.op("Cast", outputs[1], to=onnx.TensorProto.FLOAT), 2)
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["after.weight"]).shape[0] == 2 * WIDTH
