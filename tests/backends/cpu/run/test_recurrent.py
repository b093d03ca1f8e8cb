"""LSTM, GRU and RNN in the kernels, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrent_nets import RecurrentNet, random
from sparse_nets import ONE_THREAD, assert_same_as_onnxruntime, places, reasons

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.lower import plan
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.errors import UsageError

VARIANTS = [
    ("LSTM", {}),
    ("GRU", {"linear_before_reset": 0}),
    ("GRU", {"linear_before_reset": 1}),
    ("RNN", {}),
    ("RNN", {"activations": ["Relu"]}),
]


@pytest.fixture(autouse=True, scope="module")
def every_region_pays():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "why_not_profitable", lambda *_: "")
        yield


def recurrent_model(kind, attrs, draw, features, hidden):
    """A model of one layer, and a function that feeds it for a number of steps and sequences."""
    directions = draw.draw(st.sampled_from((1, 1, 2)))
    if directions == 1:
        attrs = attrs | {"direction": draw.draw(st.sampled_from(("forward", "reverse")))}
    elif "activations" in attrs:
        attrs = attrs | {"activations": 2 * attrs["activations"]}
    net = RecurrentNet(draw.draw(st.sampled_from((0.0, 0.3, 1.0))), seed=draw.draw(st.integers(0, 9)))
    x = net.input("x", 1, 1, features, declared=["steps", "batch", features])
    names = []
    if draw.draw(st.booleans()):
        names = ["first_h", "first_c"][: 2 if kind == "LSTM" else 1]
        for name in names:
            net.input(name, directions, 1, hidden, declared=[directions, "batch", hidden])
    lengths = draw.draw(st.booleans())
    if lengths:
        net.input("lengths", 1, values=np.ones(1, np.int32), declared=["batch"])
    outputs = draw.draw(st.sampled_from(("y", "h", "yh", "yhc", "c", "hc")))
    if kind != "LSTM":
        outputs = outputs.replace("c", "h")
    made = net.layer(kind, x, features, hidden, directions=directions, has_bias=draw.draw(st.booleans()),
                     lengths="lengths" if lengths else "", first=tuple(names), outputs=outputs, **attrs)  # fmt: skip
    for name in filter(None, made):
        net.output(name)

    def feeds(steps, batch):
        given = {"x": random((steps, batch, features), steps)}
        if lengths:
            given["lengths"] = np.random.default_rng(batch).integers(0, steps + 1, batch).astype(np.int32)
        return given | {name: random((directions, batch, hidden), i) for i, name in enumerate(names)}

    return net.model(), feeds


@pytest.mark.parametrize(("kind", "attrs"), VARIANTS)
@settings(max_examples=8, deadline=None)
@given(draw=st.data(), threads=st.sampled_from((1, 2)))
def test_layers_agree_with_onnxruntime(kind, attrs, draw, threads):
    features, hidden = draw.draw(st.sampled_from((1, 5, 20))), draw.draw(st.sampled_from((1, 7, 16, 33)))
    model, feeds = recurrent_model(kind, attrs, draw, features, hidden)
    program = CpuProgram(model, CompileOptions(threads=threads, deterministic=True))
    assert set(places(program).values()) <= {"kernels"}
    for batch in draw.draw(st.lists(st.sampled_from((1, 2, 3, 5, 15, 16, 17, 20, 32)), min_size=1, max_size=2)):
        # A single state may be the small difference of large terms: it is as exact as these are, which are about one.
        assert_same_as_onnxruntime(model, feeds(draw.draw(st.integers(1, 9)), batch), program, least=1.0)


def test_one_step_in_both_directions_begins_with_the_states_of_both():
    """These are as many values as the result, in another order: a direction must not write what the other reads."""
    net = RecurrentNet()
    x = net.input("x", 1, 32, 6, declared=["steps", "batch", 6])
    first = net.input("first", 2, 32, 9, declared=[2, "batch", 9])
    (y, _) = net.layer("RNN", x, 6, 9, directions=2, first=(first,))
    net.output(y)
    assert_same_as_onnxruntime(net.model(), {"x": random((1, 32, 6)), "first": random((2, 32, 9), 1)})


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("both", [False, True])
def test_stacked_layers_are_one_region(kind, both):
    net = RecurrentNet()
    net.stacked(kind, 12, 20, steps="steps", batch="batch", both=both)
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for steps, batch in ((7, 1), (3, 4), (2, 16), (4, 19)):
        assert_same_as_onnxruntime(model, {"x": random((steps, batch, 12))}, program)
    assert set(places(program).values()) == {"kernels"}


def test_states_that_are_known_to_be_zero_are_not_read():
    net = RecurrentNet()
    x = net.input("x", 4, 2, 6, declared=["steps", "batch", 6])
    none, one, two, nine = (net.constant(np.array([n])) for n in (0, 1, 2, 9))
    batch = net.op("Slice", net.op("Shape", x), one, two)
    shape = net.op("Concat", one, batch, nine, axis=0)
    # Of two layers, as exporters make them at once.
    zeros = net.op("Slice", net.op("ConstantOfShape", net.op("Concat", two, batch, nine, axis=0)), one, two, none)
    also = net.op("Expand", net.constant(np.zeros((1, 1, 1), np.float32)), shape)
    y, h, c = net.layer("LSTM", x, 6, 9, first=(zeros, also), outputs="yhc")
    for name in (y, h, c):
        net.output(name)
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    assert_same_as_onnxruntime(model, {"x": random((4, 3, 6))}, program)
    (part,) = program.parts
    assert part.region.read == ("x",)


@pytest.mark.parametrize("fills", [(0.0, 0.0), (0.0, 0.5)])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_zero_states_of_both_directions_are_not_read(kind, fills):
    """As tf2onnx joins those of Keras's layers, which are as many as there are sequences."""
    net = RecurrentNet()
    x = net.input("x", 2, 5, 6, declared=["batch", "steps", 6])
    zero, one, nine = (net.constant(np.array([n])) for n in (0, 1, 9))

    def states(fill):
        batch = net.op("Slice", net.op("Cast", net.op("Shape", x), to=onnx.TensorProto.INT32), zero, one, zero)
        shape = net.op("Concat", net.op("Cast", batch, to=onnx.TensorProto.INT64), nine, axis=0)
        return net.op("Unsqueeze", net.op("Expand", net.constant(np.float32(fill)), shape), zero)

    first = tuple(net.op("Concat", *map(states, fills), axis=0) for _ in range(2 if kind == "LSTM" else 1))
    y, *_ = net.layer(kind, net.op("Transpose", x, perm=[1, 0, 2]), 6, 9, directions=2, first=first)
    net.output(net.op("Transpose", y, perm=[2, 0, 1, 3]))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, steps in ((1, 5), (3, 7), (2, 1)):
        assert_same_as_onnxruntime(model, {"x": random((batch, steps, 6))}, program)
    read = [part.region.read for part in program.parts if isinstance(part, RegionProgram)]
    assert (read == [("x",)]) == (not any(fills))


def test_batch_first_models():
    net = RecurrentNet()
    x = net.op("Transpose", net.input("x", 2, 5, 8, declared=["batch", "steps", 8]), perm=[1, 0, 2])
    y, h = net.layer("GRU", x, 8, 10, outputs="yh", linear_before_reset=1)
    net.output(net.op("Transpose", net.op("Squeeze", y, net.constant(np.array([1]))), perm=[1, 0, 2]))
    net.output(h)
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch in (1, 5, 16):
        assert_same_as_onnxruntime(model, {"x": random((batch, 5, 8))}, program)


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"clip": 2.0}, "clip=2.0"),
        ({"activations": ["HardSigmoid", "Tanh", "Tanh"]}, "hardsigmoid"),
        ({"input_forget": 1}, "input_forget=1"),
    ],
)
def test_variants_are_refused_by_name(attrs, reason):
    net = RecurrentNet()
    (y, *_) = net.layer("LSTM", net.input("x", 3, 1, 6), 6, 8, **attrs)
    net.output(y)
    program = CpuProgram(net.model(), ONE_THREAD)
    assert reason in reasons(program)[y]


def test_peepholes_are_refused_by_name():
    net = RecurrentNet()
    (y, *_) = net.layer("LSTM", net.input("x", 3, 1, 6), 6, 8)
    net._nodes[-1].input.extend(["", "", net.constant(np.zeros((1, 24), np.float32))])
    net.output(y)
    assert "peepholes" in reasons(CpuProgram(net.model(), ONE_THREAD))[y]


@pytest.mark.parametrize("lengths", [[3, 5], [2, -1], [1, 2, 3]])
def test_lengths_that_do_not_fit_are_refused(lengths):
    net = RecurrentNet()
    x = net.input("x", 4, 2, 6, declared=["steps", "batch", 6])
    net.input("lengths", 2, values=np.array(lengths, np.int32), declared=["sequences"])
    (y, *_) = net.layer("LSTM", x, 6, 8, lengths="lengths")
    net.output(y)
    with pytest.raises(UsageError, match="length"):
        CpuProgram(net.model(), ONE_THREAD).run(net.feeds)


def test_lengths_that_are_known_to_be_the_steps_are_not_read():
    net = RecurrentNet()
    x = net.input("x", 4, 2, 6, declared=["steps", "batch", 6])
    steps, batch = (net.op("Slice", net.op("Shape", x), *(net.constant(np.array([n])) for n in (i, i + 1)))
                    for i in (0, 1))  # fmt: skip
    lengths = net.op("Cast", net.op("Expand", steps, batch), to=onnx.TensorProto.INT32)
    (y, *_) = net.layer("GRU", x, 6, 8, lengths=lengths)
    net.output(y)
    program = CpuProgram(net.model(), ONE_THREAD)
    assert_same_as_onnxruntime(net.model(), {"x": random((3, 5, 6))}, program)
    regions = [part.region for part in program.parts if isinstance(part, RegionProgram)]
    assert {step.mask for region in regions for step in region.steps} == {""}


def test_first_states_may_be_constants():
    net = RecurrentNet()
    first = tuple(net.constant(random((2, 3, 8), i)) for i in range(2))
    (y, *_) = net.layer("LSTM", net.input("x", 4, 3, 6), 6, 8, directions=2, first=first)
    net.output(y)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert places(program)[y] == "kernels"


def test_first_states_of_another_batch_are_refused():
    net = RecurrentNet()
    x = net.input("x", 3, 2, 6, declared=["steps", "batch", 6])
    (y, *_) = net.layer("GRU", x, 6, 8, first=(net.input("first", 1, 2, 8, declared=[1, "other", 8]),))
    net.output(y)
    program = CpuProgram(net.model(), ONE_THREAD)
    with pytest.raises(UsageError, match="cannot make"):
        program.run({"x": random((3, 2, 6)), "first": random((1, 3, 8))})


def test_no_steps_are_refused():
    net = RecurrentNet()
    (y, *_) = net.layer("GRU", net.input("x", 3, 2, 6, declared=["steps", 2, 6]), 6, 8)
    net.output(y)
    program = CpuProgram(net.model(), ONE_THREAD)
    with pytest.raises(UsageError, match="cannot make"):
        program.run({"x": random((0, 2, 6))})


def test_gates_that_nodes_put_in_order_are_the_layers_weights():
    net = RecurrentNet()
    x, hidden, weights = net.input("x", 4, 2, 5), 6, []
    for columns in (5, hidden):
        rows = net.sparse(3 * hidden, columns)
        order = [net.op("Slice", rows, *(net.constant(np.array([n])) for n in (i * hidden, (i + 1) * hidden, 0)))
                 for i in (1, 0, 2)]  # fmt: skip
        weights.append(net.op("Unsqueeze", net.op("Concat", *order, axis=0), net.constant(np.array([0]))))
    bias = [net.constant(random((3 * hidden,), i)) for i in range(2)]
    both = net.op("Unsqueeze", net.op("Concat", *bias, axis=0), net.constant(np.array([0])))
    y, _ = net.op("GRU", x, *weights, both, hidden_size=hidden, outputs=2, name="gru")
    net.output(y)
    model = net.model()
    program = assert_same_as_onnxruntime(model, {"x": random((4, 2, 5))})
    assert places(program)["gru"] == "kernels"
