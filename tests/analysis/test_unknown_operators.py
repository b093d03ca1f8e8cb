"""Operators that no rule covers, rules that users bring along, and rules that are wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nets import Net, widen
from onnx import TensorProto, helper

import sift_onnx
from sift_onnx.analysis import rule_registry
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule, register_axis_rule
from sift_onnx.errors import ShapeCheckError, UnsupportedError
from sift_onnx.model import Model
from sift_onnx.passes import Wide

DOMAIN = "custom.example"


@pytest.fixture(autouse=True)
def rules() -> Iterator[None]:
    """Forget the rules that a test registers."""
    before = rule_registry.RULES.snapshot()
    yield
    rule_registry.RULES.restore(before)


def strange(net: Net, *, kind: str = "Mystery", width: int = 8) -> Net:
    """A custom operator, which ONNX and onnxruntime do not know, between two layers; further layers beside it."""
    h = net.tokens(6)
    free = net.dense(net.op("Relu", net.dense(h, 6, 10, name="free")), 10, 6, name="free2")
    h = net.dense(net.op("Add", h, free), 6, 8, name="read")
    h = net.op(kind, h, name="strange", domain=DOMAIN)
    net.value_infos.append(helper.make_tensor_value_info("strange", TensorProto.FLOAT, [1, 5, width]))
    h = net.dense(net.op("Relu", net.dense(h, width, 6, name="after")), 6, 2, name="head")
    net.output(h, 1, 5, 2)
    return net


def shapes(net: Net, **settings: object) -> dict[str, list[int]]:
    report = Wide("0.75", budget="layer", **settings)(net.model()).report  # type: ignore[arg-type]
    return {layer["name"]: layer["shape_after"] for layer in report["layers"]}


def test_what_an_unknown_operator_touches_stays_and_the_rest_grows(net: Net) -> None:
    report = Wide("0.75", budget="layer")(strange(net).model()).report
    shapes = {layer["name"]: layer["shape_after"] for layer in report["layers"]}
    assert shapes["read.weight"] == [12, 8]
    assert shapes["free.weight"] == [12, 20]
    assert report["unknown"] == [f"{DOMAIN}::Mystery (node 'strange')"]
    (pinned,) = [p for p in report["pinned"] if p["node"] == "strange"]
    assert pinned["size"] == 8
    assert pinned["layers"] == ["read.weight"]
    assert pinned["reason"] == f"no rule covers {DOMAIN}::Mystery"


def test_an_unknown_operator_of_unknown_shape_ends_the_analysis_behind_it(net: Net) -> None:
    """Without a recorded shape nothing is known of what follows; it stays, and the rest grows."""
    net = strange(net)
    net.value_infos.clear()
    found = shapes(net)
    assert found["free.weight"] == [12, 20]
    assert found["read.weight"] == [12, 8]


def test_strict_refuses_an_unknown_operator_and_says_what_to_do(net: Net) -> None:
    with pytest.raises(UnsupportedError, match=rf"no rule covers {DOMAIN}::Mystery \(node 'strange'\).*register"):
        Wide("0.75", strict=True)(strange(net).model())


def test_an_operator_of_the_standard_that_no_rule_covers(net: Net) -> None:
    h = net.tokens(5, length=5)
    net.output(net.op("Det", h, name="determinant"))
    net.tokens_end(net.dense(h, 5, 10, name="free"), 10)
    wide = widen(net)
    assert wide.shape("before") == (1, 5, 5)
    assert wide.shape("free") == (1, 5, 20)
    assert wide.report["unknown"] == ["ai.onnx::Det (node 'determinant')"]
    with pytest.raises(UnsupportedError, match=r"Det.*'determinant'"):
        Wide("0.75", strict=True)(net.model())


def test_a_rule_that_a_user_registers_is_used(net: Net) -> None:
    def same_shape(ctx: RuleContext) -> None:
        ctx.set_axes(0, ctx.axes(0))

    register_axis_rule("Mystery", same_shape, domain=DOMAIN)
    assert shapes(strange(net), strict=True)["after.weight"] == [16, 12]


def test_a_rule_may_state_equations_and_attributes(net: Net) -> None:
    """A custom layer with a weight and an attribute that says how wide it is."""

    @axis_rule("Layer", domain=DOMAIN)
    def layer(ctx: RuleContext) -> None:
        x, w = ctx.axes(0), ctx.axes(1)
        parameter = ctx.parameter(1)
        assert x is not None
        assert w is not None
        assert parameter is not None
        ctx.equate(x[-1], w[0], "input features")
        ctx.set_attribute("width", w[1].size)
        ctx.set_axes(0, (*x[:-1], w[1]))
        ctx.weight(parameter, "matmul", 1, [axis.size for axis in x[:-1]])

    h = net.op("Layer", net.tokens(6), net.weight(6, 8, name="w"), name="layer", domain=DOMAIN, width=8)
    h = net.dense(net.op("Relu", net.dense(h, 8, 6, name="after")), 6, 2, name="head")
    net.output(h, 1, 5, 2)
    result = Wide("0.75", budget="layer", strict=True)(net.model())
    (entry,) = [e for e in result.report["layers"] if e["name"] == "w"]
    assert entry["shape_after"] == [12, 16]
    assert entry["status"] == "sparse"
    assert entry["nnz"] == 48
    (node,) = [n for n in result.model.to_proto().graph.node if n.op_type == "Layer"]
    assert node.attribute[0].i == 16


def test_a_rule_of_ones_own_takes_the_place_of_a_built_in_one(net: Net) -> None:
    def keep(ctx: RuleContext) -> None:
        ctx.pin_all(ctx.axes(0), "our runtime wants eight of them")
        ctx.set_axes(0, ctx.axes(0))

    register_axis_rule("Softplus", keep)
    h = net.op("Softplus", net.tokens(8))
    net.tokens_end(net.dense(net.dense(h, 8, 10, name="free"), 10, 8), 8)
    wide = widen(net)
    assert wide.shape("before") == (1, 5, 8)
    assert wide.reason("before.weight") == "our runtime wants eight of them"


def test_domains_of_the_standard_are_one(net: Net) -> None:
    seen: list[str] = []
    register_axis_rule("Softplus", lambda ctx: (seen.append("mine"), ctx.set_axes(0, ctx.axes(0)))[1], domain="ai.onnx")
    net.tokens_end(net.op("Softplus", net.tokens(8)), 8)
    widen(net)
    assert seen


@pytest.mark.parametrize("fault", ["a size too many", "an axis too few"])
def test_a_rule_that_is_wrong_is_found_out_before_anything_is_written(net: Net, fault: str) -> None:
    def wrong(ctx: RuleContext) -> None:
        x = ctx.axes(0)
        assert x is not None
        if fault == "a size too many":
            # Says that the features stay, while they grow.
            ctx.set_axes(0, (*x[:-1], *ctx.const_axes([8])))
        else:
            ctx.set_axes(0, x[1:])

    register_axis_rule("Softplus", wrong)
    h = net.op("Softplus", net.tokens(8), name="misjudged")
    net.tokens_end(net.op("ReduceMean", h, net.constant([-1])), 1)
    with pytest.raises(ShapeCheckError, match=r"misjudged.*nothing was written"):
        Wide("0.75", budget="layer")(net.model())


def test_a_graph_that_contradicts_itself_is_refused_by_the_name_of_the_node(net: Net) -> None:
    """ONNX infers no shapes of a product with transposed operands, and does not see that this one cannot be."""
    w = net.weight(6, 9, name="w")
    net.output(net.op("FusedMatMul", net.tokens(8), w, name="broken", domain="com.microsoft", transB=1), 1, 5, 6)
    with pytest.raises(UnsupportedError, match=r"node 'broken' \(FusedMatMul\).*sizes 8 and 9"):
        analyze(Model.load(net.model()))
    with pytest.raises(UnsupportedError, match="'broken'"):
        sift_onnx.transform(net.model(), wide=0.75)


def test_a_contradiction_that_inference_finds_names_the_operator_of_the_model(net: Net) -> None:
    h = net.op("FusedMatMul", net.tokens(8), net.weight(9, 6, name="w"), name="broken", domain="com.microsoft")
    net.output(h, 1, 5, 6)
    with pytest.raises(UnsupportedError, match=r"node name: broken \(FusedMatMul\).*Incompatible dimensions"):
        analyze(Model.load(net.model()))
