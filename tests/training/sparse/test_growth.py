"""A model that starts wide with the original in it learns to use what was added, and grows again."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from nets import Net, run

import sift_onnx
from sift_onnx.passes import Wide
from sift_onnx.training.sparse import RigL, attach

WIDTH, TOKENS, HEADS, STEPS = 8, 6, 2, 40


def norm(net: Net, x: str, kind: str) -> str:
    scale = net.constant(np.linspace(0.5, 1.5, WIDTH, dtype=np.float32))
    if kind == "rms":
        return net.op("RMSNormalization", x, scale, axis=-1)
    return net.op("LayerNormalization", x, scale, net.weight(WIDTH, fan_in=9), axis=-1)


def block(net: Net, x: str, kind: str) -> str:
    """Attention, and a gated perceptron behind RMS norms, as in Llama, a plain one behind others."""
    h = norm(net, x, kind)
    q, k, v = (net.dense(h, WIDTH, WIDTH, name=name) for name in "qkv")
    h = net.op("Attention", q, k, v, q_num_heads=HEADS, kv_num_heads=HEADS)
    x = net.op("Add", x, net.dense(h, WIDTH, WIDTH, name="out"))
    if kind == "post":
        x = norm(net, x, kind)
    h = norm(net, x, kind)
    up = net.dense(h, WIDTH, 12, name="up")
    if kind == "rms":
        up = net.op("Mul", up, net.op("Sigmoid", net.dense(h, WIDTH, 12, name="gate")))
    return net.op("Add", x, net.dense(net.op("Gelu", up), 12, WIDTH, name="down"))


def language_model(kind: str) -> onnx.ModelProto:
    net = Net(opset=23)
    net.input("x", 1, TOKENS, values=np.array([[3, 1, 4, 1, 5, 2]], dtype=np.int64))
    x = net.op("Gather", net.weight(9, WIDTH, fan_in=1, name="table"), "x")
    x = block(net, net.op("Add", x, net.weight(1, TOKENS, WIDTH, fan_in=1, name="positions")), kind)
    net.output(net.dense(norm(net, x, kind), WIDTH, 9, name="head"), 1, TOKENS, 9)
    return net.model()


def trained(model: onnx.ModelProto) -> onnx.ModelProto:
    """By RigL: each token is to be followed by the next number."""
    module = sift_onnx.to_torch(model).train()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    attach(RigL(update={"freq": 2}), module, optimizer)
    random = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        tokens = torch.randint(0, 9, (1, TOKENS), generator=random)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(tokens)[0], (tokens[0] + 1) % 9).backward()
        optimizer.step()
    return sift_onnx.write_back(model, module.eval())


@pytest.mark.parametrize("kind", ["layer", "rms", "post"])
def test_weights_grow_into_added_features_and_out_of_them(kind: str) -> None:
    wide = Wide("0.75", init="embed")(language_model(kind)).model.to_proto()
    before, after = sift_onnx.masks(wide), sift_onnx.masks(trained(wide))
    layers = [name for name in before if name.endswith(".weight")]
    assert len(layers) == (8 if kind == "rms" else 7)
    for name in layers:
        old = np.ix_(before[name].any(axis=1), before[name].any(axis=0))
        assert after[name].sum() == before[name].sum()
        assert after[name].sum() > after[name][old].sum(), f"{name} uses no feature that was added"
    read = np.logical_or.reduce([after[f"{name}.weight"].any(axis=1) for name in ("q", "k", "v", "up")])
    written = np.logical_or.reduce([after[f"{name}.weight"].any(axis=0) for name in ("out", "down")])
    added = ~before["out.weight"].any(axis=0)
    assert (read & added).any()
    assert (written & added).any()


@pytest.mark.parametrize("kind", ["layer", "rms", "post"])
def test_what_has_grown_and_was_trained_grows_again(kind: str) -> None:
    once = trained(Wide("0.5", init="embed")(language_model(kind)).model.to_proto())
    result = Wide("0.5", init="embed", seed=1)(once)
    twice = result.model.to_proto()
    feeds = {"x": np.array([[8, 0, 2, 7, 5, 6]], dtype=np.int64)}
    expected, found = run(once, feeds), run(twice, feeds)
    np.testing.assert_allclose(found["head"], expected["head"], rtol=1e-4, atol=1e-4 * np.abs(expected["head"]).max())
    before, after = sift_onnx.masks(once), sift_onnx.masks(twice)
    for name, mask in before.items():
        assert after[name].sum() == mask.sum()
        assert after[name].size > mask.size
    assert result.report["totals"]["weight_macs_after"] == result.report["totals"]["weight_macs_before"]


def test_the_same_growth_once_more_changes_nothing() -> None:
    once = Wide("0.5", init="embed")(language_model("rms"))
    assert not Wide("0.5", init="embed")(once.model).changed
    assert Wide("0.75", init="embed")(once.model).changed
