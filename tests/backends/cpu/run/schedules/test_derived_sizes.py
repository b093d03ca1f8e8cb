"""Sizes that are derived are those that a walk over the steps finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from attention_nets import DEPTH, HEADS, WIDTH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_nets import ONE_THREAD, SparseNet

from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.schedules.derived_sizes import DerivedSizes
from sift_onnx.backends.cpu.run.schedules.region_sizes import sizes_of_values
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

Sizes = dict[str, int]


def integers(net: SparseNet, *values: int) -> str:
    return net.constant(values, dtype=np.int64)


def attention(net: SparseNet) -> None:
    x = net.dense(net.input("x", 2, 7, 5, declared=["n", "t", 5]), 5, WIDTH)
    heads = integers(net, 0, 0, HEADS, DEPTH)
    q, k, v = (
        net.op("Transpose", net.op("Reshape", net.dense(x, WIDTH, WIDTH), heads), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    weights = net.op("Softmax", net.op("MatMul", q, k), axis=-1)
    joined = net.op("Transpose", net.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    joined = net.op("Reshape", joined, integers(net, 0, 0, WIDTH))
    net.output(net.dense(net.op("Add", x, joined), WIDTH, 3))


def cut_tokens(net: SparseNet) -> None:
    x = net.dense(net.input("x", 2, 7, 5, declared=["n", "t", 5]), 5, 4)
    rest = net.op("Slice", x, *(integers(net, value) for value in (1, 2**31, 1)))
    first = net.op("Slice", x, *(integers(net, value) for value in (0, 1, 1)))
    net.output(net.dense(net.op("Relu", rest), 4, 3))
    net.output(net.dense(net.op("Relu", first), 4, 3))


def broadcast(net: SparseNet) -> None:
    """Tokens that are as many as the others, or one."""
    x = net.dense(net.input("x", 2, 7, 5, declared=["n", "t", 5]), 5, 4)
    y = net.dense(net.input("y", 2, 7, 5, declared=["n", "s", 5]), 5, 4)
    net.output(net.dense(net.op("Relu", net.op("Add", x, y)), 4, 3))


def images(net: SparseNet) -> None:
    x = net.input("x", 1, 3, 9, 9, declared=["n", 3, "h", "w"])
    x = net.op("Relu", net.conv(x, 3, 4, 3, stride=2))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.conv(x, 4, 4, 1))


NETS: list[Callable[[SparseNet], None]] = [attention, cut_tokens, broadcast, images]


def region_of(build: Callable[[SparseNet], None]) -> Region:
    net = SparseNet(18)
    build(net)
    (program,) = CpuProgram(net.model(), ONE_THREAD).parts
    assert isinstance(program, RegionProgram)
    return program.region


def inputs_of(region: Region, sizes: Sizes) -> list[tuple[int, ...]]:
    return [
        tuple(axis if isinstance(axis, int) else sizes[str(axis)] for axis in region.symbols[name])
        for name, _ in region.inputs
    ]


def walked(region: Region, sizes: Sequence[tuple[int, ...]]) -> dict[str, Any] | None:
    try:
        return sizes_of_values(region, sizes)
    except UsageError:
        return None


@pytest.mark.parametrize("build", NETS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_derived_is_what_a_walk_finds(build: Callable[[SparseNet], None], data: st.DataObject) -> None:
    region = region_of(build)
    names = sorted({str(axis) for dims in region.symbols.values() for axis in dims if not isinstance(axis, int)})
    # Often the same size twice, and one, and none.
    several = st.fixed_dictionaries({name: st.sampled_from([0, 1, 2, 3, 4, 5, 7, 16, 33]) for name in names})
    example, others = data.draw(several), data.draw(st.lists(several, min_size=1, max_size=4))
    if walked(region, inputs_of(region, example)) is None:
        return
    derived = DerivedSizes.derive(region, inputs_of(region, example))
    if derived is None:
        return
    for sizes in [example, *others]:
        found = derived.of(inputs_of(region, sizes))
        assert found is None or found == walked(region, inputs_of(region, sizes))


@pytest.mark.parametrize(
    ("build", "example", "others"),
    [
        (attention, {"n": 1, "t": 7}, [{"n": 1, "t": 16}, {"n": 1, "t": 2}]),
        (attention, {"n": 2, "t": 7}, [{"n": 3, "t": 16}, {"n": 4, "t": 4}]),
        (cut_tokens, {"n": 1, "t": 7}, [{"n": 1, "t": 9}]),
        (images, {"n": 1, "h": 9, "w": 9}, [{"n": 1, "h": 33, "w": 33}]),
    ],
)
def test_sizes_of_the_same_kind_need_no_walk(
    build: Callable[[SparseNet], None], example: Sizes, others: list[Sizes]
) -> None:
    region = region_of(build)
    derived = DerivedSizes.derive(region, inputs_of(region, example))
    assert derived is not None
    for sizes in others:
        assert derived.of(inputs_of(region, sizes)) == sizes_of_values(region, inputs_of(region, sizes))


@pytest.mark.parametrize(
    ("build", "example", "other"),
    [
        (attention, {"n": 1, "t": 7}, {"n": 2, "t": 7}),
        (attention, {"n": 2, "t": 7}, {"n": 2, "t": 1}),
        (attention, {"n": 7, "t": 7}, {"n": 3, "t": 7}),
        (images, {"n": 1, "h": 9, "w": 9}, {"n": 1, "h": 9, "w": 8}),
    ],
)
def test_sizes_of_another_kind_are_walked(build: Callable[[SparseNet], None], example: Sizes, other: Sizes) -> None:
    region = region_of(build)
    derived = DerivedSizes.derive(region, inputs_of(region, example))
    assert derived is not None
    assert derived.of(inputs_of(region, other)) is None


def test_nothing_is_derived_of_what_a_run_decides_by_numbers() -> None:
    net = SparseNet(18)
    x = net.dense(net.input("x", 2, 7, 5, declared=["n", "t", 5]), 5, 4)
    net.output(net.op("TopK", x, integers(net, 3), axis=1, outputs=2)[0])
    region = next(
        program.region
        for program in CpuProgram(net.model(), ONE_THREAD).parts
        if isinstance(program, RegionProgram) and any("TopK" in op for op in program.region.ops)
    )
    assert DerivedSizes.derive(region, inputs_of(region, {"n": 2, "t": 7})) is None
