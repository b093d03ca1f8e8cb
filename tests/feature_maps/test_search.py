"""Where the rules find old features, and which spellings of an operator they refuse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from embedded_models import embedded, kept_for
from nets import Net, run

from sift_onnx.feature_maps import search
from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.registry import FeatureMapRule, feature_map_rule_for
from sift_onnx.passes import Wide
from sift_onnx.weights.sparse import SparseWeight


def active_inputs(net: Net, layer: str = "after.weight") -> list[int]:
    """The input features that a layer of the wide model, twice as wide, has active weights for."""
    result = Wide("0.75", init="embed")(net.model())
    before, after = run(net.model(), net.feeds), run(result.model.to_proto(), net.feeds)
    np.testing.assert_allclose(after["head"], before["head"], rtol=1e-4, atol=1e-4 * np.abs(before["head"]).max())
    weight: SparseWeight = result.model.masked()[layer].weight
    return [int(i) for i in np.flatnonzero(weight.mask().any(axis=(0, 2, 3)))]


def test_a_plain_layer_keeps_its_features_in_front() -> None:
    net = Net()
    net.images_end(net.images(4), 4)
    assert active_inputs(net) == [0, 1, 2, 3]


def test_the_features_of_a_group_stay_in_it() -> None:
    net = Net()
    net.images_end(net.conv(net.images(4), 4, 6, group=2), 6)
    assert active_inputs(net) == [0, 1, 2, 6, 7, 8]


def test_both_halves_of_a_split_keep_theirs_in_front() -> None:
    net = Net()
    a, b = net.op("Split", net.images(6), axis=1, outputs=2, num_outputs=2)
    net.images_end(net.op("Concat", b, a, axis=1), 6)
    assert active_inputs(net) == [0, 1, 2, 6, 7, 8]


def test_a_sum_with_a_concatenation_moves_the_features_of_the_other_summand() -> None:
    net = Net()
    x = net.images(4)
    joined = net.op("Concat", net.conv(x, 4, 2), net.conv(x, 4, 2), axis=1)
    net.images_end(net.op("Add", net.conv(x, 4, 4, name="plain"), joined), 4)
    assert active_inputs(net) == [0, 1, 4, 5]


def test_tiles_are_placed_alike() -> None:
    net = Net()
    net.images_end(net.op("Tile", net.images(3), net.constant([1, 2, 1, 1])), 6)
    assert active_inputs(net) == [0, 1, 2, 6, 7, 8]


def test_space_to_depth_puts_channels_innermost() -> None:
    net = Net()
    net.images_end(net.op("SpaceToDepth", net.images(2), blocksize=2), 8)
    assert active_inputs(net) == [0, 1, 4, 5, 8, 9, 12, 13]


def test_a_shuffle_keeps_groups_apart() -> None:
    net = Net()
    x = net.op("Reshape", net.images(6), net.constant([1, 2, 3, 8, 8]))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1, 3, 4]), net.constant([1, 6, 8, 8]))
    net.images_end(x, 6)
    assert active_inputs(net, "before.weight") == list(range(6))
    assert active_inputs(net) == list(range(6))


def reversed_channels(net: Net) -> None:
    bounds = [net.constant([value]) for value in (-1, -(2**63) + 1, 1, -1)]
    net.images_end(net.op("Slice", net.images(6), *bounds, name="mixer"), 6)


def reflected_channels(net: Net) -> None:
    pads = net.constant([0, 2, 0, 0, 0, 2, 0, 0])
    net.images_end(net.op("Pad", net.images(6), pads, mode="reflect", name="mixer"), 10)


def root_of_features(net: Net) -> None:
    exponent = net.constant(np.float32(0.5))
    net.images_end(net.op("Pow", net.op("Abs", net.images(6)), exponent, name="mixer"), 6)


def sum_along_channels(net: Net) -> None:
    net.images_end(net.op("CumSum", net.images(6), net.constant(1), name="mixer"), 6)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (reversed_channels, "reverses or skips"),
        (reflected_channels, "crops, reflects or repeats"),
        (root_of_features, "raises features that are added to a power"),
        (sum_along_channels, "sums along an axis that grows"),
    ],
)
def test_what_has_no_place_keeps_its_size_by_name(block: Callable[[Net], None], reason: str) -> None:
    net = Net()
    block(net)
    result = embedded(net.model(), net.feeds)
    assert reason in kept_for(result, "mixer")


def test_what_a_rule_stumbles_over_keeps_its_size_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbling(ctx: FeatureMapContext) -> None:
        raise IndexError("no such axis")

    def rule_for(op: str, domain: str | None) -> FeatureMapRule | None:
        return stumbling if op == "Softsign" else feature_map_rule_for(op, domain)

    monkeypatch.setattr(search, "feature_map_rule_for", rule_for)
    net = Net()
    net.images_end(net.op("Softsign", net.images(6), name="mixer"), 6)
    assert "no such axis" in kept_for(embedded(net.model(), net.feeds), "mixer")
