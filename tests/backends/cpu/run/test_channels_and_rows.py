"""Regions that cut and join channels of images and move values to rows, and what both have in common."""

from __future__ import annotations

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_at_batches, places

from sift_onnx.backends.lowering.specs import Joined, Sliced, Transposed

pytestmark = pytest.mark.usefixtures("every_region_pays")

BATCHES = [1, 3, 16, 17]


def integers(net: SparseNet, *values: int) -> str:
    return str(net.constant(values, dtype=np.int64))


def images(net: SparseNet, channels: int, height: int = 5, width: int = 7) -> str:
    x = net.input("x", 2, 4, height, width, declared=["n", 4, height, width])
    return str(net.conv(x, 4, channels, 3))


def channel_norm(net: SparseNet, x: str, channels: int) -> str:
    """LayerNormalization over channels, with the layer behind it, as ConvNeXt has them."""
    y = net.op(
        "LayerNormalization", net.op("Transpose", x, perm=[0, 2, 3, 1]), net.constant(np.linspace(1, 2, channels))
    )
    return str(net.op("Transpose", net.dense(y, channels, channels), perm=[0, 3, 1, 2]))


def test_channels_lie_in_place_where_other_values_move() -> None:
    net = SparseNet()
    x = images(net, 8)
    a, b = net.op("Split", x, integers(net, 3, 5), outputs=2, axis=1)
    joined = net.op("Concat", net.conv(b, 5, 4, 3), net.conv(a, 3, 2, 3), axis=1)
    net.output(net.conv(channel_norm(net, joined, 6), 6, 4, 3))
    program = assert_same_at_batches(net.model(), BATCHES, {"x": (1, 4, 5, 7)})
    (part,) = program.parts
    for batch in (1, 16):
        slab, schedule = part.prepare([(batch, 4, 5, 7)]).slabs[0]
        assert slab.count == batch
        made = {type(part.region.steps[i].spec) for i in schedule.steps if i is not None}
        assert Transposed in made
        assert not {Joined, Sliced} & made


def test_a_split_is_read_as_images_and_as_rows() -> None:
    net = SparseNet()
    a, b = net.op("Split", images(net, 8), integers(net, 4, 4), outputs=2, axis=1)
    y = net.op("Concat", a, channel_norm(net, b, 4), b, axis=1)
    net.output(net.conv(y, 12, 4, 1))
    program = assert_same_at_batches(net.model(), BATCHES, {"x": (1, 4, 5, 7)})
    assert len(program.parts) == 1


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_constants_along_the_width_are_not_folded_into_channels(op: str) -> None:
    """As many as there are channels."""
    net = SparseNet()
    x = net.op(op, images(net, 6, 5, 6), net.constant(np.linspace(-1, 2, 6)))
    net.output(net.conv(x, 6, 4, 3))
    assert_same_at_batches(net.model(), BATCHES, {"x": (1, 4, 5, 6)})


def test_a_layer_whose_result_is_repeated_takes_no_sum_in() -> None:
    net = SparseNet()
    x = net.dense(net.input("x", 2, 5, 3, declared=["n", 5, 3]), 3, 4)
    y = net.dense(net.op("Gather", x, net.constant(0, dtype=np.int64), axis=1), 4, 4)
    y = net.op("Unsqueeze", y, integers(net, 1))
    net.output(net.dense(net.op("Relu", net.op("Add", y, x)), 4, 3))
    program = assert_same_at_batches(net.model(), BATCHES, {"x": (1, 5, 3)})
    assert len(program.parts) == 1


@pytest.mark.parametrize("places_taken", [(-1, 0), (-2, -1), (4, 5), (5, 4), (0,)])
def test_channels_by_places_from_either_end(places_taken: tuple[int, ...]) -> None:
    net = SparseNet()
    x = net.op("Gather", images(net, 6), integers(net, *places_taken), axis=1)
    net.output(net.conv(x, len(places_taken), 4, 3))
    program = assert_same_at_batches(net.model(), BATCHES, {"x": (1, 4, 5, 7)})
    assert set(places(program).values()) <= {"kernels", "folded"}
