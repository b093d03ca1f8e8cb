"""Einsum of values and constants in regions, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from attention_nets import AttentionNet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, assert_same_at_batches, left_to_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")

BATCHES = (1, 3, 17)
SIZES = {"b": 2, "t": 6, "d": 8, "n": 4, "k": 5, "m": 3}


def dims_of(term: str) -> list[int]:
    return [SIZES[label] for label in term]


def einsum(net: SparseNet, equation: str, constants: str = "") -> str:
    """An Einsum of computed operands of a batch, and of constants where ``constants`` has their place."""
    names = []
    for place, term in enumerate(equation.partition("->")[0].split(",")):
        if str(place) in constants:
            names.append(net.weight(*dims_of(term), fan_in=SIZES[term[-1]]))
            continue
        sizes = dims_of(term)
        x = net.input(f"x{place}", *sizes, declared=["n" if label == "b" else SIZES[label] for label in term])
        names.append(net.op("Tanh", net.dense(x, sizes[-1], sizes[-1])))
    return str(net.op("Einsum", *names, equation=equation))


@pytest.mark.parametrize(("equation", "constants"), [
    ("btd,btn,btd->btdn", ""),  # what enters the states of a selective scan
    ("bd,kdn,bn->bk", "1"),  # a bilinear layer
    ("bd,dn,bn->b", "1"),
    ("btd,dn->btdn", "1"),  # decays of states
    ("dn,btd->btdn", "0"),
    ("btd,d->btd", "1"),
    ("btd,btd->btd", ""),
    ("btd,dbt->dtb", ""),
    ("btd,bd->btd", ""),
    ("bt,btd->bdt", ""),
    ("btd,btd->bt", ""),
    ("btd,bnd,bnk->btk", ""),
    ("bt,bd,bn->btdn", ""),
    # A constant matrix for each head, or each position, as of relative positions.
    ("btnd,knd->bntk", "1"),
    ("btnd,tkd->bntk", "1"),
    ("btnd,tkd->bkn", "1"),
    ("tkd,btd->bkt", "0"),
    ("btd,td->bt", "1"),
    ("btd,dtn->btn", "1"),
    ("btnd,mtdkn->btkm", "1"),
    # Axes that are summed over around another one.
    ("btdn,dkn->btk", "1"),
    ("nkd,btdn->bkt", "0"),
])  # fmt: skip
def test_an_einsum_between_layers(equation: str, constants: str) -> None:
    net = SparseNet()
    x = einsum(net, equation, constants)
    net.output(x)
    width = SIZES[equation[-1]]
    if equation[-1] != "b":
        net.output(net.dense(net.op("Relu", x), width, 3) if len(equation.partition("->")[2]) > 1 else x)
    program = assert_same_at_batches(net.model(), BATCHES)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


def test_an_operand_that_comes_twice() -> None:
    net = SparseNet()
    x = net.op("Tanh", net.dense(net.input("x", 2, 6, 8, declared=["n", 6, 8]), 8, 8))
    for equation in ("btd,btd->bt", "btd,btd,btd->bd", "btd,bsd->bts"):
        net.output(net.op("Einsum", *[x] * (1 + equation.count(",")), equation=equation))
    program = assert_same_at_batches(net.model(), BATCHES)
    assert left_to_onnxruntime(program) == {}


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, str]:
    count = draw(st.integers(2, 3))
    own = st.sets(st.sampled_from("tdnk"), min_size=1, max_size=3)
    terms = ["b" + "".join(draw(st.permutations(sorted(draw(own))))) for _ in range(count)]
    labels = sorted(set("".join(terms)) - {"b"})
    kept = draw(st.permutations(sorted(draw(st.sets(st.sampled_from(labels), min_size=1)))))
    result = "b" + "".join(kept)
    constants = draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    terms = [term[1:] if place in constants else term for place, term in enumerate(terms)]
    return f"{','.join(terms)}->{result}", "".join(map(str, constants))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=equations(), batch=st.sampled_from(BATCHES))
def test_any_equation(drawn: tuple[str, str], batch: int) -> None:
    """In kernels or not, the result is onnxruntime's."""
    net = SparseNet()
    net.output(einsum(net, *drawn))
    program = CpuProgram(net.model(), ONE_THREAD)
    rng = np.random.default_rng(batch)
    shapes = {spec.name: [batch if isinstance(size, str) else size for size in spec.shape] for spec in program.inputs}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    # Sums of many terms may be near zero: errors are read against the terms then.
    assert_same_as_onnxruntime(net.model(), feeds, program, least=0.5)


def product_of_tf2onnx(net: AttentionNet, first: str, second: str) -> str:
    """A product of [n, heads, rows, columns], whose batches are one axis in between."""
    sizes = [net.op("Shape", value) for value in (first, second)]
    batches = [net.op("Gather", shape, net.constant([0, 1])) for shape in sizes]
    flat = [
        net.op("Reshape", value, net.op("Concat", net.op("ReduceProd", own), net.op("Gather", shape, rest), axis=0))
        for value, shape, own in zip((first, second), sizes, batches, strict=True)
        for rest in [net.constant([2, 3])]
    ]
    ends = [net.op("Gather", shape, net.constant([axis])) for shape, axis in zip(sizes, (2, 3), strict=True)]
    target = net.op("Concat", net.op("Max", *batches), *ends, axis=0)
    return str(net.op("Reshape", net.op("MatMul", *flat), target))


def test_attention_of_tf2onnx_is_one_region() -> None:
    net = AttentionNet()
    q, k, v = net.projections()
    scores = product_of_tf2onnx(net, net.parted(q), net.parted(k, turned=True))
    net.ends(net.joined(product_of_tf2onnx(net, net.op("Softmax", scores, axis=-1), net.parted(v))))
    program = assert_same_at_batches(net.model(), (3, 1, 16))
    assert len(program.parts) == 1
    assert not left_to_onnxruntime(program)
