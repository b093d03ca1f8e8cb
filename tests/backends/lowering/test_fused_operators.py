"""What onnxruntime's optimizer for transformers fuses computes the same in ONNX's own operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from nets import MICROSOFT, Net

from sift_onnx.backends.lowering.fused_operators import with_separate_operators
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.model import Model

BATCH, LENGTH, CHANNELS, HEADS = 3, 5, 8, 2
LENGTHS = (5, 2, 4)
MASK = (np.arange(LENGTH) < np.array(LENGTHS)[:, None]).astype(np.int32)


def foreign_left(net: Net) -> set[str]:
    """The fused operators of the rewritten graph, which computes in onnxruntime what the original does."""
    model = net.model()
    view = with_separate_operators(GraphView(Model.load(model)))
    assert all(index in range(len(view.nodes)) for _, index in view.origin)
    wanted, found = (
        onnxruntime.InferenceSession(own.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, net.feeds)
        for own in (model, view.proto)
    )
    for array, other in zip(wanted, found, strict=True):
        assert array.dtype == other.dtype
        np.testing.assert_allclose(other, array, rtol=1e-5, atol=1e-5)
    return {node.op_type for node in view.nodes if node.domain == MICROSOFT}


def tokens(net: Net, *, values: np.ndarray[Any, Any] | None = None, name: str = "x", scale: float = 1.0) -> str:
    if scale != 1:
        values = (np.random.default_rng(0).standard_normal((BATCH, LENGTH, CHANNELS)) * scale).astype(np.float32)
        return net.input(name, values=values, declared=["batch", "length", CHANNELS])
    shape = (BATCH, LENGTH) if values is not None else (BATCH, LENGTH, CHANNELS)
    return net.input(name, *shape, values=values, declared=["batch", "length", *shape[2:]])


def attention(net: Net, x: str, *more: str, columns: int = 3 * CHANNELS, has_bias: bool = True, **attrs: Any) -> str:
    weight = net.weight(CHANNELS, columns)
    bias = net.constant(np.linspace(-1, 1, columns)) if has_bias else ""
    return str(net.op("Attention", x, weight, bias, *more, domain=MICROSOFT, num_heads=HEADS, **attrs))


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("has_bias", [True, False])
def test_attention_to_everything(opset: int, has_bias: bool) -> None:
    net = Net(opset)
    net.output(attention(net, tokens(net), has_bias=has_bias), BATCH, LENGTH, CHANNELS)
    assert not foreign_left(net)


@pytest.mark.parametrize("filtered", [None, -3.5])
@pytest.mark.parametrize("kind", ["row", "table", "lengths"])
def test_masks(kind: str, filtered: float | None) -> None:
    net = Net(17)
    x = tokens(net)
    if kind == "table":
        table = np.tril(np.ones((LENGTH, LENGTH), np.int32))[None] * MASK[:, None]
        mask = net.input("mask", values=table, declared=["batch", "length", "length"])
    else:
        mask = tokens(net, values=MASK, name="mask")
    if kind == "lengths":
        mask = str(net.op("ReduceSum", mask, net.constant([1], dtype=np.int64), keepdims=0))
    attrs = {} if filtered is None else {"mask_filter_value": filtered}
    for _ in range(2):
        x = attention(net, x, mask, **attrs)
    net.output(x, BATCH, LENGTH, CHANNELS)
    assert not foreign_left(net)


def test_a_bias_of_scores_a_scale_and_values_of_another_size() -> None:
    net = Net(17)
    x = tokens(net)
    added = net.input("added", 1, HEADS, LENGTH, LENGTH, declared=[1, HEADS, "length", "length"])
    sizes = [4, 4, 6]
    net.output(
        attention(net, x, "", "", added, columns=sum(sizes), qkv_hidden_sizes=sizes, scale=0.3), BATCH, LENGTH, sizes[2]
    )
    assert not foreign_left(net)


@pytest.mark.parametrize("filtered", [None, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("masked", ["", "row", "table"])
@pytest.mark.parametrize("kind", ["Attention", "MultiHeadAttention"])
def test_no_later_positions(kind: str, masked: str, filtered: float | None) -> None:
    """Scores beyond the filter show that later positions count for nothing; a row may see nothing at all."""
    net = Net(17)
    x = tokens(net, scale=1e3)
    early = (np.arange(LENGTH) >= LENGTH - np.array(LENGTHS)[:, None]).astype(np.int32)
    mask = ""
    if masked:
        values = early if masked == "row" else early[:, None].repeat(LENGTH, 1)
        mask = net.input("mask", values=values, declared=["batch", "length", "length"][: values.ndim])
    attrs = {"unidirectional": 1, **({} if filtered is None else {"mask_filter_value": filtered})}
    y = attention(net, x, mask, **attrs) if kind == "Attention" else heads(net, x, x, x, "", mask, **attrs)
    net.output(y, BATCH, LENGTH, CHANNELS)
    assert not foreign_left(net)


def heads(net: Net, *operands: str, **attrs: Any) -> str:
    """MultiHeadAttention."""
    return str(net.op("MultiHeadAttention", *operands, domain=MICROSOFT, num_heads=HEADS, **attrs))


@pytest.mark.parametrize("kind", ["", "row", "table", "lengths"])
@pytest.mark.parametrize("is_divided", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_heads_of_other_tokens(has_bias: bool, is_divided: bool, kind: str) -> None:
    """Keys and values of other tokens, of which some are masked; a bias is added to what has no heads yet."""
    net = Net(17)
    others, width = 7, CHANNELS if is_divided else 6
    mask = (np.arange(others) < np.array((7, 3, 1))[:, None]).astype(np.int32)
    if kind == "table":
        mask = np.tril(np.ones((LENGTH, others), np.int32), 2)[None] * mask[:, None]
    sizes = [[BATCH, HEADS, others, n // HEADS] if is_divided else [BATCH, others, n] for n in (CHANNELS, width)]
    names = [
        net.input(name, *size, declared=["batch", *["others" if n == others else n for n in size[1:]]])
        for name, size in zip("kv", sizes, strict=True)
    ]
    bias = net.constant(np.linspace(-1, 1, 2 * CHANNELS + width)) if has_bias else ""
    more = []
    if kind:
        declared = ["batch", "others"] if kind != "table" else ["batch", "length", "others"]
        more = [net.input("mask", values=mask, declared=declared)]
        if kind == "lengths":
            more = [str(net.op("ReduceSum", *more, net.constant([1], dtype=np.int64), keepdims=0))]
    net.output(heads(net, tokens(net), *names, bias, *more), BATCH, LENGTH, width)
    assert not foreign_left(net)


def test_heads_with_a_bias_of_scores_and_a_scale() -> None:
    net = Net(17)
    x = tokens(net)
    added = net.input("added", 1, HEADS, LENGTH, LENGTH, declared=[1, HEADS, "length", "length"])
    net.output(heads(net, x, x, x, "", "", added, scale=0.3), BATCH, LENGTH, CHANNELS)
    assert not foreign_left(net)


def test_heads_with_a_cache_stay() -> None:
    net = Net(17)
    x = tokens(net)
    past = [net.input(name, BATCH, HEADS, 2, CHANNELS // HEADS) for name in ("past_k", "past_v")]
    operands = [x, x, x, "", "", "", *past]
    for made in net.op("MultiHeadAttention", *operands, outputs=3, domain=MICROSOFT, num_heads=HEADS):
        net.output(made, *((BATCH, HEADS, LENGTH + 2, CHANNELS // HEADS) if "." in made else (BATCH, LENGTH, CHANNELS)))
    assert foreign_left(net) == {"MultiHeadAttention"}


@pytest.mark.parametrize("kind", ["bias of a run", "earlier tokens of others"])
def test_heads_that_stay(kind: str) -> None:
    net = Net(17)
    x = tokens(net)
    operands, attrs = [x, x, x], {}
    if kind == "bias of a run":
        operands.append(net.input("bias", 3 * CHANNELS))
    elif kind == "earlier tokens of others":
        other = net.input("others", BATCH, 7, CHANNELS, declared=["batch", "others", CHANNELS])
        operands, attrs = [x, other, other], {"unidirectional": 1}
    net.output(heads(net, *operands, **attrs), BATCH, LENGTH, CHANNELS)
    assert foreign_left(net) == {"MultiHeadAttention"}


def test_a_mask_of_starts_and_ends_stays() -> None:
    net = Net(17)
    x = tokens(net)
    ends = net.input("ends", values=np.array([5, 2, 4, 0, 1, 2], np.int32), declared=["two"])
    net.output(attention(net, x, ends), BATCH, LENGTH, CHANNELS)
    assert foreign_left(net) == {"Attention"}


def test_a_mask_of_one_position_that_was_summed_is_no_list_of_lengths() -> None:
    net = Net(17)
    x = net.input("x", BATCH, 1, CHANNELS, declared=["batch", 1, CHANNELS])
    mask = tokens(net, values=MASK * (np.arange(BATCH) > 0)[:, None].astype(np.int32), name="mask")
    summed = str(net.op("ReduceSum", mask, net.constant([1], dtype=np.int64), keepdims=1))
    net.output(attention(net, x, summed), BATCH, 1, CHANNELS)
    assert not foreign_left(net)


@pytest.mark.parametrize("has_positions", [True, False])
@pytest.mark.parametrize("has_segments", [True, False])
@pytest.mark.parametrize("has_mask", [True, False])
def test_embeddings(has_positions: bool, has_segments: bool, has_mask: bool) -> None:
    net = Net(17)
    ids = tokens(net, values=np.arange(BATCH * LENGTH, dtype=np.int32).reshape(BATCH, LENGTH), name="ids")
    inputs = [ids, ""]
    if has_segments:
        inputs[1] = tokens(
            net, values=np.arange(BATCH * LENGTH, dtype=np.int32).reshape(BATCH, LENGTH) % 2, name="kinds"
        )
    inputs += [net.weight(20, CHANNELS), net.weight(9, CHANNELS), net.weight(2, CHANNELS) if has_segments else ""]
    inputs += [net.constant(np.linspace(0.5, 1.5, CHANNELS)), net.constant(np.linspace(-1, 1, CHANNELS))]
    inputs += [tokens(net, values=MASK, name="mask")] if has_mask else [""] if has_positions else []
    if has_positions:
        inputs.append(tokens(net, values=np.tile(np.arange(LENGTH, dtype=np.int32)[::-1], (BATCH, 1)), name="places"))
    made, lengths, total = net.op("EmbedLayerNormalization", *inputs, outputs=3, domain=MICROSOFT, epsilon=1e-5)
    net.output(attention(net, made, lengths) if has_mask else made, BATCH, LENGTH, CHANNELS)
    net.output(total, BATCH, LENGTH, CHANNELS)
    assert not foreign_left(net)


@pytest.mark.parametrize("alpha", [1.702, -0.5])
def test_gelu_by_a_sigmoid(alpha: float) -> None:
    net = Net(17)
    net.output(net.op("QuickGelu", tokens(net), domain=MICROSOFT, alpha=alpha), BATCH, LENGTH, CHANNELS)
    assert not foreign_left(net)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("repeated", [True, False])
def test_normalized_sums(repeated: bool, has_bias: bool) -> None:
    """Of operands of the same sizes, the kernels know the fused operator."""
    net = Net(17)
    other = net.constant(np.linspace(-1, 2, LENGTH * CHANNELS).reshape(1, LENGTH, CHANNELS))
    x = tokens(net)
    vectors = [net.constant(np.linspace(0.5, 1.5, CHANNELS)) for _ in range(3 if has_bias else 2)]
    operands = [x, other if repeated else x, *vectors]
    made = net.op("SkipLayerNormalization", *operands, outputs=4, domain=MICROSOFT, epsilon=1e-5)
    for name in (made[0], made[3]):
        net.output(name, BATCH, LENGTH, CHANNELS)
    model = net.model()
    (node,) = model.graph.node
    del node.output[1:3]
    node.output[1:] = ["", "", made[3]]
    net.model = lambda: model  # type: ignore[method-assign]
    assert foreign_left(net) == (set() if repeated else {"SkipLayerNormalization"})


ACTIVATIONS = {
    "": (), "Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": (0.2,), "HardSigmoid": (0.3, 0.4), "Clip": (-0.5, 0.75),
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("adds", [False, True])
def test_convolutions_of_the_optimizer(activation: str, adds: bool) -> None:
    net = Net(17)
    x = net.input("x", 2, 4, 6, 6, declared=["batch", 4, 6, 6])
    bias = net.constant(np.linspace(-1, 1, 8))
    more = [net.input("z", 2, 8, 3, 3, declared=["batch", 8, 3, 3])] if adds else []
    fused: dict[str, Any] = {"activation": activation} if activation else {}
    if ACTIVATIONS[activation]:
        fused["activation_params"] = list(ACTIVATIONS[activation])
    weight = net.weight(8, 4, 3, 3)
    net.output(net.op("FusedConv", x, weight, bias, *more, domain=MICROSOFT, pads=[1] * 4, strides=[2, 2], **fused), 2)
    assert not foreign_left(net)


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"])
def test_products_of_the_optimizer_with_an_activation(activation: str) -> None:
    net = Net(17)
    numbers = {"LeakyRelu": {"activation_alpha": 0.2}, "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4}}
    x = net.input("x", 5, 12, declared=["batch", 12])
    bias, weight = net.constant(np.linspace(-1, 1, 9)), net.weight(9, 12)
    own = numbers.get(activation, {})
    net.output(
        net.op("FusedGemm", x, weight, bias, domain=MICROSOFT, transB=1, alpha=0.5, activation=activation, **own), 5
    )
    assert not foreign_left(net)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("alpha", [1.0, 0.125])
def test_products_of_the_optimizer(first: int, second: int, alpha: float) -> None:
    net = Net(17)
    shapes = (2, 3, *((4, 5) if first else (5, 4))), (2, 3, *((6, 4) if second else (4, 6)))
    x = net.input("x", *shapes[0], declared=["batch", *shapes[0][1:]])
    y = net.input("y", *shapes[1], declared=["batch", *shapes[1][1:]])
    net.output(net.op("FusedMatMul", x, y, domain=MICROSOFT, transA=first, transB=second, alpha=alpha), 2)
    assert not foreign_left(net)


def test_products_whose_first_axes_are_turned_stay() -> None:
    net = Net(17)
    x, y = net.input("x", 5, 2, 4), net.input("y", 5, 4, 6)
    net.output(net.op("FusedMatMul", x, y, domain=MICROSOFT, transBatchA=1, transA=0), 2)
    view = with_separate_operators(GraphView(Model.load(net.model())))
    assert [node.op_type for node in view.nodes] == ["FusedMatMul"]
