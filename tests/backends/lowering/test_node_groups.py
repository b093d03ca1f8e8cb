"""The lowering for a back end that is none of ours: it counts weights with numpy, and has no kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from sparse_nets import SparseNet

from sift_onnx.backends.lowering.fusion import fuse
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.node_groups import NodeGroup, find_node_groups
from sift_onnx.backends.lowering.partition import partition
from sift_onnx.backends.lowering.specs import RELU, Conv
from sift_onnx.backends.lowering.weights import WeightMatrix
from sift_onnx.model import Model


def count_with_numpy(matrices: Sequence[WeightMatrix]) -> None:
    for matrix in matrices:
        values = matrix.stored()
        matrix.record(int(np.count_nonzero(values)), bool(np.isfinite(values).all()))


def groups_of(model: onnx.ModelProto) -> list[NodeGroup]:
    groups, _ = find_node_groups(GraphView(Model.load(model)), count_with_numpy)
    return groups


def small_net(*values: float) -> SparseNet:
    weight = np.zeros((4, 4, 3, 3), np.float32)
    weight.flat[: len(values)] = values
    net = SparseNet()
    x = net.op("Conv", net.input("x", 1, 4, 8, 8), net.constant(weight, "w"), name="conv")
    x = net.op("MaxPool", net.op("Relu", x, name="act"), kernel_shape=[2, 2], name="pool")
    net.output(x)
    return net


@pytest.mark.parametrize(("values", "density"), [((1.0, 2.0, 3.0), 3 / 144), ((), 1.0)])
def test_weights_are_counted_by_the_back_end(values: tuple[float, ...], density: float) -> None:
    """Nothing but zeros, without a mask, is what training begins with: dense."""
    step = groups_of(small_net(*values).model())[0].step
    assert step is not None
    assert isinstance(step.spec, Conv)
    assert step.spec.weights.density == pytest.approx(density)


def test_weights_that_are_not_finite_are_left_out() -> None:
    first, *others = groups_of(small_net(1.0, np.nan).model())
    assert first.step is None
    assert first.reason == "the weights 'w' hold NaN or infinity"
    assert all(group.step is not None for group in others)


@pytest.mark.parametrize(("pools", "count"), [(True, 1), (False, 2)])
def test_pooling_joins_a_convolution_where_the_back_end_has_that(pools: bool, count: int) -> None:
    net = small_net(1.0)
    (part,) = partition(groups_of(net.model()), ["pool"])
    steps = fuse([group.step for group in part.groups if group.step], part.outputs, lambda conv, pool: pools)
    assert len(steps) == count
    assert isinstance(steps[0].spec, Conv)
    assert steps[0].spec.activation == RELU
    assert (steps[0].spec.pool is not None) == pools


@pytest.mark.parametrize(
    ("gamma", "reason"),
    [
        (None, "gamma 'gamma' is an input of the model; the kernels take stored constants"),
        (np.ones(4), "gamma 'gamma' is float64 of shape [4]; the kernels take float32, one for each of 4 channels"),
        (np.full(4, np.inf, np.float32), "gamma 'gamma' holds NaN or infinity"),
    ],
)
def test_a_refused_vector_is_named_with_what_it_is_and_what_kernels_take(gamma: np.ndarray | None, reason: str) -> None:
    net = SparseNet()
    x = net.input("x", 1, 4, 8, 8)
    scale = net.input("gamma", 4) if gamma is None else net.constant(gamma, "gamma", gamma.dtype)
    others = [net.constant(np.ones(4, np.float32), name) for name in ("beta", "mean", "variance")]
    net.output(net.op("BatchNormalization", x, scale, *others, name="norm"))
    (group,) = groups_of(net.model())
    assert group.reason == reason
