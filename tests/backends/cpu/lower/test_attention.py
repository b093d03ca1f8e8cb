"""Attention as exporters spell it: what the kernels take, what they leave alone, and that both are right."""

from __future__ import annotations

import numpy as np
import pytest
from attention_nets import BATCH, HEADS, TOKENS, AttentionNet, attentions_of
from attention_spellings import SPELLINGS, dynamic_net
from sparse_nets import ONE_THREAD, assert_same_as_onnxruntime, assert_same_at_batches, places

from sift_onnx.backends.cpu.lower import plan
from sift_onnx.backends.cpu.lower.profitability import is_sparse
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Attention
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")


def test_sizes_that_only_a_run_knows() -> None:
    model = dynamic_net().model()
    program = CpuProgram(model, ONE_THREAD)
    assert len(attentions_of(program)) == 1
    for batch, tokens, heads, queries in ((1, 5, 1, 1), (2, 40, HEADS, 1), (3, 17, 1, 17), (2, 1, 1, 1)):
        rng = np.random.default_rng(tokens)
        shapes = {"x": (batch, tokens, 5), "mask": (batch, heads, queries, tokens)}
        feeds = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
        assert_same_as_onnxruntime(model, feeds, program)
        feeds["mask"] = feeds["mask"][..., :1]
        assert_same_as_onnxruntime(model, feeds, program)


def test_a_mask_larger_than_the_scores_is_refused_in_the_run() -> None:
    program = CpuProgram(dynamic_net().model(), ONE_THREAD)
    feeds = {"x": np.ones((1, 7, 5), np.float32), "mask": np.ones((2, 1, 1, 7), np.float32)}
    with pytest.raises(UsageError, match=r"mask of attention is \[2, 1, 1, 7\], the scores .* are \[1, 3, 7, 7\]"):
        program.run(feeds)


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_runs_in_the_kernels(name: str) -> None:
    program = assert_same_at_batches(SPELLINGS[name]().model(), [1, 2, 3, 16])
    assert len(attentions_of(program)) == 1
    assert places(program)["softmax" if "scaled" not in name else "joined"] == "kernels"


def test_no_sequences() -> None:
    assert len(attentions_of(assert_same_at_batches(SPELLINGS["mask by key"]().model(), [0, 2]))) == 1


def test_sequences_share_blocks_of_lanes() -> None:
    for tokens in (1, 3, 16, 17, 40):
        net = AttentionNet(tokens=tokens)
        q, k, v = net.projections()
        net.ends(net.joined(net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v))))
        assert len(attentions_of(assert_same_at_batches(net.model(), [1, 2, 5, 33]))) == 1


def test_what_makes_a_mask_does_not_part_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a region of its own, and the layers one before it and one behind it, each to be judged by itself."""
    judged: list[int] = []

    def why_not_profitable(steps: list[Step], *_: object) -> str:
        judged.append(len(steps))
        return "" if any(is_sparse(step) for step in steps) else "no sparse layer near it runs in the kernels"

    monkeypatch.setattr(plan, "why_not_profitable", why_not_profitable)
    net = AttentionNet()
    q, k, v = net.projections()
    given = net.input("given", BATCH, 1, 1, TOKENS, declared=["n", 1, 1, TOKENS])
    mask = net.op("Mul", net.op("Sub", net.constant(1.0), given), net.constant(-10.0))
    net.ends(net.joined(net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v), mask)))
    program = assert_same_at_batches(net.model(), [1, 3])
    assert len([part for part in program.parts if isinstance(part, RegionProgram)]) == 1
    assert len(attentions_of(program)) == 1
    assert judged[0] == 1  # subtraction and product, in one
    assert len(judged) == 2


def test_a_long_chain_of_numbers_is_one_scale() -> None:
    """A chain of any length is no reason to recurse as deep."""
    net = AttentionNet()
    q, k, v = net.projections()
    turned = net.parted(q)
    for _ in range(1200):
        turned = net.op("Mul", turned, net.constant(1.0))
    net.ends(net.joined(net.attend(turned, net.parted(k, turned=True), net.parted(v))))
    (attention,) = attentions_of(CpuProgram(net.model(), ONE_THREAD))
    assert attention.scale == 1


def test_attention_that_is_given_up_takes_its_mask_of_constants_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that is a table of weights behind nodes, as relative positions are."""
    net = AttentionNet()
    net.x = net.op("Atan", net.x)
    q, k, v = net.projections()
    mask = net.op("Unsqueeze", net.weight(HEADS, TOKENS, TOKENS, fan_in=1), net.constant([0], dtype=np.int64))
    joined = net.joined(net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v), mask))
    net.ends(net.op("Atan", joined))

    def why_not_profitable(steps: list[Step], *_: object) -> str:
        return "given up" if any(isinstance(step.spec, Attention) for step in steps) else ""

    monkeypatch.setattr(plan, "why_not_profitable", why_not_profitable)
    program = assert_same_at_batches(net.model(), [1, 3])
    assert places(program)["stem"] == places(program)["head"] == "kernels"
    assert places(program)["softmax"] == "onnxruntime"
