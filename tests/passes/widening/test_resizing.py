"""Carrying out a plan of sizes: constants, attributes, recorded shapes, and the check at the end."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from nets import Net, widen
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.analysis import rule_registry
from sift_onnx.analysis.axes.sizes import Axis
from sift_onnx.analysis.axes.solution import Solution, solve
from sift_onnx.analysis.findings import AxisAnalysis, Cause
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import register_axis_rule
from sift_onnx.cli import main
from sift_onnx.errors import ShapeCheckError
from sift_onnx.model import Model
from sift_onnx.passes import Wide
from sift_onnx.passes.shape_check import check_shapes
from sift_onnx.passes.widening.resizing import apply_sizes, resized


@pytest.fixture
def net() -> Net:
    """An empty graph."""
    return Net()


def constant_node(net: Net, name: str, **value: Any) -> str:
    """A Constant node; exporters write the same numbers in several attributes."""
    return str(net.op("Constant", name=name, **value))


def wider(model: Model) -> tuple[AxisAnalysis, Solution]:
    """Every width of ``model`` twice as large."""
    analysis = analyze(model)
    growable = [axis.size for layer in analysis.layers.values() for axis in layer.axes]
    return analysis, solve(analysis.system, Fraction(4), growable, shrink_cause=Cause("", "", ""))


def filled(_: str, constant: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """New values without a draw."""
    return np.full(shape, 0.5, dtype=constant.dtype)


def ops(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


# Shape constants.


def test_a_shape_that_readers_want_different_things_of_is_copied(net: Net) -> None:
    """One ``[1, 5, 12]`` for two reshapes: a width of 12, and 2 heads of 6 that are merged; a third one is fixed."""
    target = net.constant([1, 5, 12], "target")
    h = net.dense(net.tokens(6), 6, 12, name="grows")
    grows = net.op("Reshape", h, target, name="grown")
    fixed = net.op("Reshape", net.input("z", 5, 12), target, name="fixed")
    net.tokens_end(grows, 12)
    net.output(fixed)
    wide = widen(net)
    assert wide.read("grown", 1) == [1, 5, 24]
    assert wide.read("fixed", 1) == [1, 5, 12]
    assert wide.node("fixed").input[1] == "target"


def test_three_wishes_make_three_constants(net: Net) -> None:
    """The same numbers stand for a width, for heads and their size, and for what stays."""
    target = net.constant([1, 4, 4], "target")
    a = net.dense(net.input("x", 1, 4), 4, 16, name="stem")
    wide_last = net.op("Reshape", net.dense(a, 16, 16, name="a"), target, name="last")
    b = net.op("Unsqueeze", net.dense(a, 16, 4, name="b"), net.constant([2]))
    wide_middle = net.op("Reshape", net.op("Mul", b, net.input("m", 1, 1, 4)), target, name="middle")
    fixed = net.op("Reshape", net.input("z", 16), target, name="fixed")
    for i, h in enumerate((wide_last, wide_middle)):
        flat = net.op("Flatten", h)
        net.output(net.dense(net.op("Relu", net.dense(flat, 16, 6, name=f"after{i}")), 6, 2, name=f"head{i}"))
    net.output(fixed)
    wide = widen(net)
    found = {tuple(wide.read(name, 1)) for name in ("last", "middle", "fixed")}
    assert (1, 4, 4) in found
    assert len(found) == 3
    assert len({wide.node(name).input[1] for name in ("last", "middle", "fixed")}) == 3


def test_a_shape_that_all_readers_want_changed_alike_stays_one(net: Net) -> None:
    target = net.constant([5, 12], "target")
    h = net.dense(net.tokens(6), 6, 12, name="grows")
    a, b = (net.op("Reshape", op, target, name=name) for op, name in ((h, "a"), (net.op("Neg", h), "b")))
    net.tokens_end(net.op("Unsqueeze", net.op("Add", a, b), net.constant([0])), 12)
    wide = widen(net)
    assert wide.node("a").input[1] == wide.node("b").input[1] == "target"
    assert wide.read("a", 1) == [5, 24]


def test_readers_that_want_the_same_share_a_copy(net: Net) -> None:
    target = net.constant([5, 12], "target")
    h = net.dense(net.tokens(6), 6, 12, name="grows")
    a, b = (net.op("Reshape", op, target, name=name) for op, name in ((h, "a"), (net.op("Neg", h), "b")))
    net.output(net.op("Reshape", net.input("z", 60), target, name="fixed"))
    net.tokens_end(net.op("Unsqueeze", net.op("Add", a, b), net.constant([0])), 12)
    wide = widen(net)
    assert wide.node("a").input[1] == wide.node("b").input[1] != "target"
    assert (wide.read("a", 1), wide.read("fixed", 1)) == ([5, 24], [5, 12])


@pytest.mark.parametrize("node", [True, False])
def test_a_shape_that_is_an_output_stays_what_it_was(net: Net, node: bool) -> None:
    target = constant_node(net, "target", value_ints=[1, 5, 12]) if node else net.constant([1, 5, 12], "target")
    net.tokens_end(net.op("Reshape", net.dense(net.tokens(6), 6, 12), target, name="grown"), 12)
    if node:
        net.output(target)
    else:
        net.output(net.op("Identity", target, name="told"))
    wide = widen(net)
    assert wide.read("grown", 1) == [1, 5, 24]
    assert wide.after["target" if node else "told"].tolist() == [1, 5, 12]


def test_a_shape_that_a_subgraph_reads_too_is_copied(net: Net) -> None:
    target = net.constant([1, 5, 12], "target")
    branches = {
        f"{side}_branch": helper.make_graph(
            [helper.make_node("Identity", ["target"], [side])], side, [],
            [helper.make_tensor_value_info(side, TensorProto.INT64, [3])],
        )
        for side in ("then", "else")
    }  # fmt: skip
    net.output(net.op("If", net.input("flag", values=np.asarray(True)), name="kept", **branches))
    net.tokens_end(net.op("Reshape", net.dense(net.tokens(6), 6, 12), target, name="grown"), 12)
    wide = widen(net)
    assert wide.read("grown", 1) == [1, 5, 24]
    assert wide.after["kept"].tolist() == [1, 5, 12]


@pytest.mark.parametrize(
    "value",
    [
        {"value": numpy_helper.from_array(np.asarray([1, 5, 12]))},
        {"value_ints": [1, 5, 12]},
    ],
    ids=["value", "value_ints"],
)
@pytest.mark.parametrize("shared", [False, True])
def test_a_shape_in_a_constant_node_becomes_an_initializer_where_it_changes(
    net: Net, value: dict[str, Any], shared: bool
) -> None:
    target = constant_node(net, "target", **value)
    net.tokens_end(net.op("Reshape", net.dense(net.tokens(6), 6, 12), target, name="grown"), 12)
    if shared:
        net.output(net.op("Reshape", net.input("z", 60), target, name="fixed"))
    wide = widen(net)
    assert wide.read("grown", 1) == [1, 5, 24]
    assert ("Constant" in ops(wide.proto)) == shared


def test_a_constant_node_that_nobody_reads_any_more_is_dropped(net: Net) -> None:
    target = constant_node(net, "target", value_ints=[1, 4, 4])
    x = net.dense(net.input("x", 1, 4), 4, 16, name="stem")
    ends = []
    for name, order in (("last", [0, 1, 2]), ("middle", [0, 2, 1])):
        h = net.op("Reshape", net.dense(x, 16, 16, name=f"{name}.in"), target, name=name)
        ends.append(net.op("Flatten", net.op("Transpose", h, perm=order)))
    net.output(net.dense(net.op("Relu", net.dense(net.op("Add", *ends), 16, 6)), 6, 2, name="head"))
    wide = widen(net)
    assert "Constant" not in ops(wide.proto)


# Parameters.


def test_parameters_in_constant_nodes_are_drawn_as_what_they_are(net: Net) -> None:
    """A trained bias and trained statistics become neutral, wherever the file keeps them."""
    rng = np.random.default_rng(0)
    trained = {
        name: constant_node(net, name, value=numpy_helper.from_array(rng.uniform(1, 2, 6).astype(np.float32)))
        for name in ("bias", "gamma", "beta", "mean", "variance")
    }
    weight = constant_node(net, "w", value=numpy_helper.from_array(rng.standard_normal((6, 4, 1, 1)).astype("f4")))
    h = net.op("Conv", net.images(4), weight, trained.pop("bias"), name="conv")
    net.images_end(net.op("BatchNormalization", h, *trained.values(), name="bn"), 6)
    wide = widen(net)
    assert wide.shape("w") == (12, 8, 1, 1)
    assert [set(wide.initializers[name].tolist()) for name in ("bias", "gamma", "beta", "mean", "variance")] == [
        {0.0}, {1.0}, {0.0}, {0.0}, {1.0}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "opset", "attrs", "parameters"),
    [
        ("LayerNormalization", 17, {}, 2),
        ("InstanceNormalization", 17, {}, 2),
        ("GroupNormalization", 21, {"num_groups": 2}, 2),
        ("RMSNormalization", 23, {}, 1),
    ],
)
def test_trained_parameters_of_normalizations_become_neutral(
    op: str, opset: int, attrs: dict[str, int], parameters: int
) -> None:
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip(f"this onnx does not know opset {opset}")
    net = Net(opset=opset)
    rng = np.random.default_rng(0)
    names = [net.constant(rng.uniform(1, 2, 6), name) for name in ("scale", "shift")[:parameters]]
    h = net.images(6)
    if op in ("LayerNormalization", "RMSNormalization"):
        h = net.op("Transpose", h, perm=[0, 2, 3, 1])
        h = net.op("Transpose", net.op(op, h, *names, **attrs), perm=[0, 3, 1, 2])
    else:
        h = net.op(op, h, *names, **attrs)
    net.images_end(h, 6)
    proto = Wide("0.75", budget="layer")(net.model()).model.to_proto()
    found = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    assert found["scale"].tolist() == [1.0] * 12
    assert parameters == 1 or found["shift"].tolist() == [0.0] * 12


def test_what_keeps_its_shape_keeps_its_values(net: Net) -> None:
    net.tokens_end(net.op("Mul", net.tokens(6), net.constant(np.float32(0.3), "scale")), 6)
    proto = net.model()
    model = Model.load(proto).copy()
    apply_sizes(model, *wider(model), filled)
    before = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    after = {t.name: numpy_helper.to_array(t) for t in model.to_proto().graph.initializer}
    assert after["scale"] == before["scale"]
    assert after["before.weight"].shape == (12, 12)
    assert set(after["before.weight"].reshape(-1)) == {0.5}


def test_only_tensors_whose_shape_changes_are_listed(net: Net) -> None:
    net.tokens_end(net.tokens(6), 6)
    shapes = resized(*wider(Model.load(net.model())))
    assert shapes == {
        "stem.weight": (4, 12), "stem": (1, 5, 12), "relu1": (1, 5, 12),
        "before.weight": (12, 12), "before": (1, 5, 12), "after.weight": (12, 12), "after": (1, 5, 12),
        "relu2": (1, 5, 12), "head.weight": (12, 2),
    }  # fmt: skip


# Recorded shapes.


def test_symbols_stay_where_nothing_changes_and_numbers_follow(net: Net) -> None:
    stem = net.dense(net.input("x", 2, 5, 4, declared=["N", "T", 4]), 4, 6, name="stem")
    before = net.dense(net.op("Relu", stem, name="relu"), 6, 6, name="before")
    net.tokens_end(before, 6)
    net.value_infos += [
        helper.make_tensor_value_info("stem", TensorProto.FLOAT, ["N", "T", 6]),
        helper.make_tensor_value_info("relu", TensorProto.FLOAT, ["N", "N * T", "width"]),
    ]
    wide = widen(net, input_shapes={"x": (2, 5, 4)})
    infos = {info.name: info.type.tensor_type.shape.dim for info in wide.proto.graph.value_info}
    recorded = {name: [d.dim_param or d.dim_value or None for d in dims] for name, dims in infos.items()}
    assert recorded["stem"] == ["N", "T", 12]
    # A symbol that was the width says nothing any more.
    assert recorded["relu"] == ["N", "N * T", None]
    (x,) = wide.proto.graph.input
    assert [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] == ["N", "T", 4]


# The check.


@pytest.fixture
def rules() -> Iterator[None]:
    """Rules that a test registers are forgotten after it."""
    before = rule_registry.RULES.snapshot()
    yield
    rule_registry.RULES.restore(before)


def forgets_growth(ctx: RuleContext) -> None:
    """A wrong rule: the output has the sizes of the original."""
    ctx.set_axes(0, ctx.const_axes([ctx.original(axis) for axis in ctx.axes(0) or ()]))


def turns_around(ctx: RuleContext) -> None:
    """A wrong rule, and wrong in the same way for the result."""
    ctx.set_axes(0, (ctx.axes(0) or ())[::-1])


def side_path(net: Net, op: str, domain: str = "") -> onnx.ModelProto:
    """A network in which ``op`` reads a width that grows and ends in a scalar, so that nothing else contradicts."""
    h = net.tokens(6)
    strange = net.op(op, h, domain=domain, name="strange")
    net.output(net.op("ReduceSum", strange, keepdims=0))
    net.tokens_end(h, 6)
    if domain:
        net.value_infos.append(helper.make_tensor_value_info("strange", TensorProto.FLOAT, ["a", "b", "c"]))
    return net.model()


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize(("op", "domain"), [("Neg", ""), ("Strange", "nobody")])
def test_a_shape_that_a_rule_predicted_wrongly_is_reported_with_its_node(net: Net, op: str, domain: str) -> None:
    """By shape inference where ONNX knows the operator, else by analysing the result."""
    register_axis_rule(op, forgets_growth, domain=domain)
    message = rf"node 'strange' \({op}\): .* was to become \[1, 5, 6\], but is \[1, 5, 12\] .*nothing was written"
    with pytest.raises(ShapeCheckError, match=message):
        Wide("0.75", budget="layer")(side_path(net, op, domain))


@pytest.mark.usefixtures("rules")
def test_a_rule_that_is_wrong_before_and_after_is_found_by_inference(net: Net) -> None:
    register_axis_rule("Neg", turns_around)
    with pytest.raises(ShapeCheckError, match=r"'strange' was to become \[12, 5, 1\], but is \[1, 5, 12\]"):
        Wide("0.75", budget="layer")(side_path(net, "Neg"))


@pytest.mark.usefixtures("rules")
def test_a_rewrite_that_contradicts_itself_is_reported_with_its_node(net: Net) -> None:
    register_axis_rule("Neg", forgets_growth)
    h = net.op("Neg", net.dense(net.tokens(6), 6, 7, name="grows"), name="strange")
    net.tokens_end(h, 7)
    with pytest.raises(ShapeCheckError, match=r"contradicts itself: .*node name: after.*nothing was written"):
        Wide("0.75", budget="layer")(net.model())


@pytest.mark.usefixtures("rules")
def test_a_failed_check_leaves_the_model_and_the_target_as_they_were(
    net: Net, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    register_axis_rule("Neg", forgets_growth)
    proto = side_path(net, "Neg")
    before = proto.SerializeToString()
    model = Model.load(proto)
    with pytest.raises(ShapeCheckError):
        Wide("0.75", budget="layer")(model)
    assert model.to_proto() == Model.load(proto).to_proto()
    assert proto.SerializeToString() == before
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(proto, source)
    with pytest.raises(SystemExit) as stop:
        main(args=["transform", str(source), str(target), "--wide", "0.75", "--budget", "layer"])
    assert stop.value.code == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx"]
    assert "'strange'" in capfd.readouterr().err


def test_a_tensor_that_came_out_otherwise_than_planned_is_found(net: Net) -> None:
    """The check itself: the model is not rewritten at all."""
    net.tokens_end(net.tokens(6), 6)
    model = Model.load(net.model())
    analysis, solution = wider(model)
    with pytest.raises(ShapeCheckError, match=r"'stem\.weight' was to become \[4, 12\], but is \[4, 6\]"):
        check_shapes(model, analysis, solution)
    unchanged = solve(analysis.system, Fraction(1), [], shrink_cause=Cause("", "", ""))
    check_shapes(model, analysis, unchanged)


def test_an_axis_too_many_is_found(net: Net) -> None:
    net.tokens_end(net.tokens(6), 6)
    model = Model.load(net.model())
    analysis = analyze(model)
    axes = analysis.axes["stem"]
    assert axes is not None
    analysis.axes["stem"] = (*axes, Axis(axes[0].size))
    unchanged = solve(analysis.system, Fraction(1), [], shrink_cause=Cause("", "", ""))
    with pytest.raises(ShapeCheckError, match=r"node 'stem' \(MatMul\)"):
        check_shapes(model, analysis, unchanged)
