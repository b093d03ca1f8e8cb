"""What adapters refuse, keep and leave alone."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir
import pytest
from hosts.cases import PASSES, content, network, outputs
from nets import Net
from onnx import helper
from onnxscript.rewriter import MatchingTracer, RewriteRuleClassBase, RewriteRuleSet, rewrite

import sift_onnx
from sift_onnx.errors import MissingExtraError, PreconditionError, UnsupportedError, UsageError
from sift_onnx.hosts.graphsurgeon import apply, export_onnx
from sift_onnx.hosts.onnx_ir import SiftPass
from sift_onnx.hosts.onnxscript import layer_rules
from sift_onnx.model_files import writer
from sift_onnx.passes import Densify, InferenceMode, Parallel, Prune, Wide


def small(head: int = 4) -> onnx.ModelProto:
    """Three convolutions and a matrix product."""
    net = Net()
    x = net.op("Relu", net.conv(net.input("x", 1, 3, 8, 8), 3, 8, 3, name="a"))
    x = net.op("Relu", net.conv(x, 8, 8, 3, name="b"))
    x = net.op("Relu", net.dense(x, 8, 8, name="c"))
    net.output(net.conv(x, 8, head, name="d"))
    return net.model()


# All adapters.


@pytest.mark.parametrize(
    ("adapter", "module", "package"),
    [("onnx_ir", "onnx_ir", "onnx-ir"), ("onnxscript", "onnxscript.rewriter", "onnxscript"),
     ("qonnx", "qonnx.core.modelwrapper", "qonnx"), ("olive", "olive.passes.onnx.graph_surgeries", "olive-ai")],
)  # fmt: skip
def test_an_adapter_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, adapter: str, module: str, package: str
) -> None:
    monkeypatch.delitem(sys.modules, f"sift_onnx.hosts.{adapter}", raising=False)
    monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"needs {package} \(.*\); pip install {package}") as caught:
        importlib.import_module(f"sift_onnx.hosts.{adapter}")
    assert isinstance(caught.value, ImportError)


# onnx_ir.


def test_other_settings_are_a_precondition_that_fails() -> None:
    model = onnx_ir.from_proto(small())
    SiftPass(Wide("0.75"))(model)
    assert not SiftPass(Wide("0.75"))(model).modified
    with pytest.raises(onnx_ir.passes.PreconditionError, match="has been through 'wide' already"):
        SiftPass(Wide("0.5"))(model)


def test_damaged_notes_are_a_precondition_that_fails() -> None:
    model = onnx_ir.from_proto(small())
    model.metadata_props["sift_onnx"] = "[{"
    with pytest.raises(onnx_ir.passes.PreconditionError, match="metadata entry 'sift_onnx' is damaged"):
        SiftPass(Densify())(model)


def test_a_node_that_reads_what_is_not_there_is_a_postcondition_that_fails() -> None:
    model = onnx_ir.from_proto(small())
    nodes = list(model.graph)
    model.graph.remove(nodes[0])
    model.graph.append(nodes[0])
    with pytest.raises(onnx_ir.passes.PostconditionError, match=r"SiftPass\(wide\): node 'relu1' reads 'a' before"):
        SiftPass(Wide("0.75")).ensures(model)


def test_annotations_and_metadata_stay_with_nodes_and_values_of_the_same_name() -> None:
    model = onnx_ir.from_proto(small())
    model.graph.name, model.metadata_props["owner"] = "mine", "me"
    node = next(node for node in model.graph if node.name == "c")
    node.meta["seen"], node.outputs[0].meta["scale"], node.metadata_props["layer"] = True, 3, "body.c"
    model.graph.initializers["b.weight"].meta["trained"] = 17
    pass_ = SiftPass(Wide("0.75"))
    pass_(model)
    node = next(node for node in model.graph if node.name == "c")
    assert (node.meta["seen"], node.outputs[0].meta["scale"], node.metadata_props["layer"]) == (True, 3, "body.c")
    assert model.graph.initializers["b.weight"].meta["trained"] == 17
    assert (model.graph.name, model.metadata_props["owner"]) == ("mine", "me")
    assert pass_.report["totals"]["weight_macs_ratio"] == pytest.approx(1, abs=0.01)


def test_large_tensors_are_made_when_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "STREAMED_FROM", 64)
    model = onnx_ir.from_proto(small())
    SiftPass(Wide("0.75"))(model)
    lazy = [v.name for v in model.graph.initializers.values() if isinstance(v.const_value, onnx_ir.LazyTensor)]
    assert {"a.weight", "b.weight", "c.weight", "d.weight"} <= set(lazy)
    assert content(onnx_ir.to_proto(model)) == content(Wide("0.75")(small()).model.to_proto())


def test_a_model_that_no_message_holds_comes_back_as_it_went_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "STREAMED_FROM", 64)
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 1000)
    with pytest.raises(UnsupportedError, match="does not fit in one ModelProto"):
        sift_onnx.transform(small(), wide="0.75")
    made = sift_onnx.transform(onnx_ir.from_proto(small()), wide="0.75")
    assert sift_onnx.masks(made).keys() == {"b.weight"}
    onnx.checker.check_model(onnx_ir.to_proto(made), full_check=True)


# onnxscript.


def test_only_members_that_work_layer_by_layer_are_rules() -> None:
    with pytest.raises(UsageError, match=r"wide does not work layer by layer; use sift_onnx.hosts.onnx_ir.SiftPass"):
        layer_rules(Wide("0.75"))


def test_a_model_in_training_mode_is_refused_by_rules() -> None:
    net = Net(17)
    x = net.op("Relu", net.conv(net.input("x", 1, 3, 8, 8), 3, 8, 3, name="a"))
    parameters = [net.constant(np.ones(8), name) for name in ("scale", "shift", "mean", "var")]
    y = net.op("BatchNormalization", net.conv(x, 8, 8, 3, name="b"), *parameters, name="bn", outputs=3, training_mode=1)
    net.output(net.conv(y[0], 8, 4, name="d"))
    proto = net.model()
    with pytest.raises(PreconditionError, match=r"apply passes.InferenceMode first, .* 'bn' \(BatchNormalization\)"):
        layer_rules(Parallel("0.75")).apply_to_model(onnx_ir.from_proto(proto))
    made = InferenceMode()(proto).model.to_proto()
    assert set(sift_onnx.masks(rewrite(made, layer_rules(Parallel("0.75")))))


def test_places_that_share_a_weight_share_what_it_becomes() -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input("x", 1, 3, 8, 8), 3, 8, 3, name="a"))
    weight = net.weight(8, 8, 3, 3, name="shared")
    for i in range(2):
        x = net.op("Relu", net.op("Conv", x, weight, pads=[1] * 4, name=f"b{i}"))
    net.output(net.conv(x, 8, 4, name="d"))
    proto, pass_ = net.model(), Parallel("0.75")
    assert content(rewrite(proto, layer_rules(pass_))) == content(pass_(proto).model.to_proto())


def test_layers_in_a_branch_are_left_as_they_are() -> None:
    proto = small()
    before = helper.make_graph(
        [helper.make_node("Conv", ["relu3", "b.weight"], ["then"], "inner", pads=[1] * 4)], "then", [],
        [helper.make_tensor_value_info("then", 1, [1, 8, 8, 8])],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Identity", ["relu3"], ["else"])], "else", [],
        [helper.make_tensor_value_info("else", 1, [1, 8, 8, 8])],
    )  # fmt: skip
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(False), "condition"))
    proto.graph.node.insert(
        6, helper.make_node("If", ["condition"], ["chosen"], "if", then_branch=before, else_branch=other)
    )
    proto.graph.node[7].input[0] = "chosen"
    pass_ = Parallel("0.75")
    made = rewrite(proto, layer_rules(pass_))
    onnx.checker.check_model(made, full_check=True)
    assert sift_onnx.masks(made).keys() == sift_onnx.masks(pass_(proto).model).keys()
    assert outputs(made)[0].shape == (1, 4, 8, 8)


def test_a_tracer_is_told_why_and_changes_nothing() -> None:
    model = onnx_ir.from_proto(small())
    before = onnx_ir.to_proto(model).SerializeToString(deterministic=True)
    tracer = MatchingTracer()
    rules = layer_rules(Parallel("0.75", keep_dense=["c.*"]))
    rules.apply_to_model(model, tracer=tracer)
    assert onnx_ir.to_proto(model).SerializeToString(deterministic=True) == before
    reasons = {match.match_result.reason for matches in tracer.best_matches_map.values() for match in matches}
    assert "'c.weight': kept dense by `keep_dense`" in reasons
    assert rules.apply_to_model(model) == 1


def test_a_layer_that_another_rule_has_changed_is_left_as_it_is() -> None:
    class Preceded(RewriteRuleClassBase):
        """Puts something in front of one convolution."""

        def pattern(self, op: Any, x: Any) -> Any:
            return op.Conv(x, _allow_other_inputs=True, _outputs=["y"])

        def check(self, op: Any, x: Any, y: Any) -> bool:
            return y.producer().name == "b"

        def rewrite(self, op: Any, x: Any, y: Any) -> Any:
            node = y.producer()
            return op.Conv(op.Identity(x), *node.inputs[1:], **node.attributes)

    # At the first convolution the plan is made, at the second it does not hold any more.
    made = rewrite(small(), RewriteRuleSet([Preceded.rule(), *layer_rules(Parallel("0.75"))]))
    assert outputs(made)[0].shape == (1, 4, 8, 8)
    assert {name.partition(".")[0] for name in sift_onnx.masks(made)} == {"c"}


# graphsurgeon.


def test_the_export_of_graphsurgeon_has_the_zeros_and_ours_the_masks() -> None:
    graph = apply(Prune("0.5"), gs.import_onnx(small()))
    theirs, ours = gs.export_onnx(graph), export_onnx(graph)
    assert content(theirs)["weights"] == content(ours)["weights"]
    assert not sift_onnx.masks(theirs)
    assert sift_onnx.masks(ours).keys() == {"b.weight", "c.weight"}
    assert not apply(PASSES["densify"](), graph).metadata_props.keys() - {"sift_onnx"}


# QONNX.


def test_a_transformation_reports_and_leaves_alone_what_needs_nothing() -> None:
    modelwrapper = pytest.importorskip("qonnx.core.modelwrapper")
    from sift_onnx.hosts.qonnx import SiftTransformation

    model, transformation = modelwrapper.ModelWrapper(network()), SiftTransformation(Prune("0.5"))
    before = model.model
    pruned = model.transform(transformation)
    assert model.model is before
    assert transformation.report["pass"] == "prune"
    kept = pruned.model
    assert transformation.apply(pruned) == (pruned, False)
    assert pruned.model is kept
