"""Which layers may run in bands of rows."""

from __future__ import annotations

import pytest
from sparse_nets import SparseNet

from sift_onnx.backends.base import CompileOptions, get_backend
from sift_onnx.backends.cpu.lower.bands import Chain
from sift_onnx.backends.cpu.run.region_program import RegionProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")


def chains(net: SparseNet) -> list[tuple[str, ...]]:
    """The names of the layers of each chain."""
    program = get_backend("cpu").compile(net.model(), CompileOptions(1, deterministic=True))
    (region,) = (part.region for part in program.parts if isinstance(part, RegionProgram))
    return [tuple(region.names[step] for step in chain.steps) for chain in region.chains]


def block(net: SparseNet, x: str, name: str, inner: int = 16, outputs: int = 8, **depthwise: object) -> str:
    """An inverted bottleneck for 8 channels."""
    x = net.op("Relu", net.conv(x, 8, inner, 1, name=f"{name}.before"))
    x = net.op("Relu", net.conv(x, inner, inner, 3, name=f"{name}.depthwise", group=inner, **depthwise))
    return net.conv(x, inner, outputs, 1, name=f"{name}.after")


def layers(name: str, *kinds: str) -> tuple[str, ...]:
    return tuple(f"{name}.{kind}" for kind in kinds or ("before", "depthwise", "after"))


def test_a_chain_has_a_depthwise_layer_and_the_pointwise_layers_next_to_it() -> None:
    net = SparseNet()
    x = net.input("x", 1, 8, 12, 12)
    y = net.op("Add", block(net, x, "a"), x)
    net.output(block(net, y, "b", strides=[2, 2]))
    assert chains(net) == [layers("a"), layers("b")]


def test_a_layer_is_in_one_chain() -> None:
    net = SparseNet()
    x = net.conv(net.input("x", 1, 3, 12, 12), 3, 8, 3, name="first")
    for name in "ab":
        x = net.conv(net.op("Relu", x), 8, 8, 3, name=f"{name}.depthwise", group=8)
        x = net.conv(net.op("Relu", x), 8, 8, 1, name=f"{name}.after")
    net.output(x)
    assert chains(net) == [layers("a", "depthwise", "after"), layers("b", "depthwise", "after")]


def test_results_that_others_read_are_between_chains() -> None:
    net = SparseNet()
    x = net.input("x", 1, 8, 12, 12)
    inner = net.op("Relu", net.conv(x, 8, 16, 1, name="a.before"))
    filtered = net.op("Relu", net.conv(inner, 16, 16, 3, name="a.depthwise", group=16))
    net.output(net.conv(filtered, 16, 8, 1, name="a.after"))
    net.output(net.op("GlobalAveragePool", inner))
    assert chains(net) == [layers("a", "depthwise", "after")]
    net.output(filtered)
    assert chains(net) == []


def test_a_gate_ends_a_chain() -> None:
    net = SparseNet()
    x = net.input("x", 1, 8, 12, 12)
    x = net.op("Relu", net.conv(x, 8, 16, 1, name="a.before"))
    x = net.op("Relu", net.conv(x, 16, 16, 5, name="a.depthwise", group=16))
    gate = net.op("Relu", net.conv(net.op("GlobalAveragePool", x), 16, 4, 1, name="squeeze"))
    gate = net.op("Sigmoid", net.conv(gate, 4, 16, 1, name="excite"))
    net.output(net.conv(net.op("Mul", x, gate), 16, 8, 1, name="a.after"))
    assert chains(net) == [layers("a", "before", "depthwise")]


@pytest.mark.parametrize("change", [{"strides": [2, 2]}, {"group": 2}])
def test_layers_that_are_not_pointwise_are_in_no_chain(change: dict[str, object]) -> None:
    net = SparseNet()
    x = net.conv(net.input("x", 1, 8, 12, 12), 8, 16, 1, name="a.before", **change)
    x = net.conv(net.op("Relu", x), 16, 16, 3, name="a.depthwise", group=16)
    net.output(net.conv(net.op("Relu", x), 16, 8, 3, name="square"))
    assert chains(net) == []


def test_the_steps_of_a_chain() -> None:
    assert Chain(1, 3, 4).steps == (1, 3, 4)
    assert Chain(None, 0, 1).steps == (0, 1)
    assert Chain(0, 1, None).steps == (0, 1)
