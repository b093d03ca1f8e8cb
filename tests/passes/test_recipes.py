"""Recipes as transforms: members on different layers, repeated from what a model notes, refused with their place."""

from __future__ import annotations

from typing import ClassVar

import onnx
import pytest
from nets import Net, run

import sift_onnx
from sift_onnx.analysis.cost import inspect
from sift_onnx.errors import PreconditionError, SiftError, UsageError
from sift_onnx.model import Model
from sift_onnx.passes import LowRank, Parallel, Prune, Wide, base, recipe_of, run_recipe
from sift_onnx.passes.base import get_pass, history
from sift_onnx.recipe import Recipe

MIXED = """\
version: 1
passes:
  - wide: {sparsity: 0.75, only: ["a.*", "b.*"], seed: 2}
  - parallel: {sparsity: 0.75, only: ["c.*"], activation: relu}
  - factorized: {sparsity: 0.5, only: ["d.*"], init: svd}
  - doped: {sparsity: 1/3, only: ["e.*"], activation: none, pattern: 'unstructured'}
"""


def network(*batch: object) -> Net:
    net = Net(opset=17)
    x = net.conv(net.input("x", 1, 3, 8, 8, declared=[*batch, 3, 8, 8] if batch else None), 3, 16, 3, name="stem")
    for name in "abcde":
        x = net.conv(net.op("Relu", x), 16, 16, 3, name=name)
    net.output(net.conv(net.op("Relu", x), 16, 4, name="head"), *([1, 4, 8, 8] if batch else []))
    return net


def apply(text: str, model: onnx.ModelProto | Model, **more: object):
    return run_recipe(Model.load(model), Recipe.parse(text, "r.yaml"), **more)


def bytes_of(model: Model) -> bytes:
    return model.to_proto().SerializeToString()


def test_members_are_mixed_in_one_model() -> None:
    net = network()
    result = apply(MIXED, net.model())
    proto = result.model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    assert run(proto, net.feeds)["head"].shape == (1, 4, 8, 8)
    kinds = {layer["name"][0]: [part["role"] for part in layer.get("parts", [])] for layer in result.report["layers"]}
    assert kinds["a"] == kinds["b"] == []
    assert (kinds["c"], kinds["d"], kinds["e"]) == (["branch"] * 4, ["U", "V"], ["U", "V", "sparse"])
    assert [step["pass"] for step in result.report["steps"]] == ["wide", "parallel", "factorized", "doped"]
    totals, counted = result.report["totals"], inspect(result.model).to_dict()["totals"]
    assert totals["weight_macs_before"] == inspect(net.model()).to_dict()["totals"]["macs"]
    assert totals["weight_macs_after"] == counted["effective_macs"]
    assert abs(totals["weight_macs_ratio"] - 1) < 1e-3
    assert totals["nnz_after"] == counted["nnz"]
    assert totals["search_space"] == counted["search_space"]


def test_what_a_model_notes_repeats_it() -> None:
    model = network().model()
    once = apply(MIXED, model).model
    noted = recipe_of(once)
    assert [step.name for step in noted.steps] == ["wide", "parallel", "factorized", "doped"]
    assert bytes_of(apply(noted.dump(), model).model) == bytes_of(once)
    assert recipe_of(network().model()).steps == ()


@pytest.mark.parametrize(
    "text",
    [
        MIXED,
        "version: 1\npasses: [low-rank: {width: 1.41}]",
        # The second prunes nothing that the first named, and the first would find nothing any more.
        "version: 1\npasses: [prune: {sparsity: 0.5, keep_dense: [c.*]}, parallel: {sparsity: 0.5, only: [c.weight]}]",
        "version: 1\npasses: [unshare-initializers, wide: {sparsity: 0.5, init: embed}]",
        "version: 1\npasses: [parallel: {sparsity: 0.5, only: [b.*]}, parallel: {sparsity: 0.75, only: [c.*]}]",
    ],
)
def test_a_recipe_on_its_own_output_changes_nothing(text: str) -> None:
    first = apply(text, network().model())
    assert first.changed
    second = apply(text, first.model.to_proto())
    assert not second.changed
    assert bytes_of(second.model) == bytes_of(first.model)
    totals = second.report["totals"]
    assert totals["weight_macs_before"] == totals["weight_macs_after"] == first.report["totals"]["weight_macs_after"]
    assert totals["search_space"] == first.report["totals"]["search_space"]
    assert bytes_of(apply(recipe_of(first.model).dump(), first.model).model) == bytes_of(first.model)


def test_masks_that_a_recipe_gave_and_took_are_not_given_again() -> None:
    text = "version: 1\npasses: [prune: {sparsity: 0.5}, densify]"
    first = apply(text, network().model())
    second = apply(text, first.model)
    assert (first.changed, second.changed) == (True, False)
    assert bytes_of(second.model) == bytes_of(first.model)


@pytest.mark.parametrize("sparsity", ["1/3", "2/3", "0.123456789012345678"])
def test_sparsities_are_noted_as_they_were(sparsity: str) -> None:
    once = sift_onnx.transform(Model.load(network().model()), factorized=sparsity)
    again = sift_onnx.transform(Model.load(network().model()), recipe=recipe_of(once))
    assert bytes_of(again) == bytes_of(once)


def test_shapes_of_dynamic_inputs_are_noted_and_repeated() -> None:
    """Budgets depend on them: a layer's multiply-accumulates follow the size of the image."""
    net = Net(opset=17)
    x = net.dense(net.input("x", 1, 5, 8, declared=[1, "length", 8]), 8, 16, name="stem")
    x = net.dense(net.op("Relu", net.dense(x, 16, 16, name="a")), 16, 16, name="b")
    net.output(net.dense(x, 16, 4, name="head"), 1, 5, 4)
    proto = net.model()
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "length"
    shapes = {"x": [1, 7, 8]}
    once = Wide("0.75", input_shapes=shapes)(proto).model
    assert history(once)[0]["input_shapes"] == shapes
    assert bytes_of(apply(recipe_of(once).dump(), proto).model) == bytes_of(once)
    # They tell no transform from another.
    assert not Wide("0.75", input_shapes={"x": [1, 9, 8]})(once).changed
    given = apply("version: 1\npasses: [wide: {sparsity: 0.75}]", proto, input_shapes=shapes)
    assert bytes_of(given.model) == bytes_of(once)
    same = sift_onnx.transform(
        proto, recipe=Recipe.parse("version: 1\npasses: [wide: {sparsity: 0.75}]"), input_shapes=shapes
    )
    assert same == once.to_proto()


def test_widening_comes_first() -> None:
    parallel = Parallel("0.5", only=["c.*"])(network().model()).model
    with pytest.raises(PreconditionError, match="widen the original first, and apply the others to the result"):
        Wide("0.5")(parallel)
    with pytest.raises(PreconditionError, match=r"r\.yaml, pass 2, wide: .* widen the original first"):
        apply("version: 1\npasses: [parallel: {sparsity: 0.5}, wide: {sparsity: 0.5}]", network().model())
    assert not Wide(0)(parallel).changed
    with pytest.raises(SiftError, match="widen the original first"):
        LowRank(2)(parallel)


def test_members_leave_each_other_s_layers() -> None:
    once = Parallel("0.5", only=["c.*"])(network().model()).model
    report = sift_onnx.passes.Doped("0.5")(Prune("0.5", only=["d.*"])(once).model).report
    reasons = {layer["name"]: layer["reason"] for layer in report["layers"] if layer["status"] == "unchanged"}
    assert reasons["c.branch0.weight"] == reasons["c.branch1.weight"] == "made by a transform"
    assert reasons["d.weight"] == "it is sparse already"
    assert sum("parts" in layer for layer in report["layers"]) == 3


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("nope", "pass 1, nope: there is no pass 'nope'; the passes are densify, doped"),
        ("wide", "pass 1, wide: wide needs the setting 'sparsity'; write 'sparsity: ...'"),
        ("wide: {sparsity: 0.5, bug: 1}", "wide has no setting 'bug'; its settings are sparsity, budget"),
        ("inline-functions: {x: 1}", "inline-functions has no setting 'x'; it has none"),
        ("wide: {sparsity: two}", "pass 1, wide: sparsity 'two' is not a number"),
        ("wide: {sparsity: 2}", "out of range"),
        ("wide: {sparsity: true}", "'sparsity' of wide is True; write a number"),
        ("wide: {sparsity: null}", "'sparsity' of wide is None; write a number"),
        ("wide: {sparsity: [1]}", "write a number"),
        ("wide: {sparsity: 0.5, only: layer1.*}", "'only' of wide is 'layer1.\\*'; write a list of names"),
        ("wide: {sparsity: 0.5, only: [1]}", "write a list of names"),
        ("wide: {sparsity: 0.5, seed: abc}", "write a whole number, 0 or more"),
        ("wide: {sparsity: 0.5, seed: -1}", "write a whole number, 0 or more"),
        ("wide: {sparsity: 0.5, seed: true}", "write a whole number, 0 or more"),
        ("wide: {sparsity: 0.5, round_to: 0}", "use 1 to 65536"),
        ("wide: {sparsity: 0.5, strict: maybe}", "write true or false"),
        ("wide: {sparsity: 0.5, pattern: 2}", "write a text"),
        ("wide: {sparsity: 0.5, pattern: 2:x}", "pattern"),
        ("wide: {sparsity: 0.5, budget: {a: 1}}", "write a text"),
        ("wide: {sparsity: 0.5, budget: all}", "choose one of model, layer, total"),
        ("wide: {sparsity: 0.5, input_shapes: {x: 3}}", "write a mapping from inputs to sizes"),
        ("wide: {sparsity: 0.5, input_shapes: 5}", "write a mapping from inputs to sizes"),
        ("parallel: {sparsity: 0.5, activation: swish}", "activation 'swish' is unknown"),
        ("low-rank: {width: 1e999999999}", "is not a number"),
        ("prune: {sparsity: 0.5, only: [zzz]}", "`only` 'zzz' matches no weight"),
    ],
)
def test_mistakes_are_told_with_their_place(step: str, message: str) -> None:
    model = network().model()
    with pytest.raises(UsageError, match=message) as caught:
        apply(f"version: 1\npasses: [{step}]", model)
    assert str(caught.value).startswith("r.yaml, pass 1, ")
    assert len(str(caught.value).splitlines()) == 1


def test_every_pass_is_made_before_the_first_is_applied() -> None:
    with pytest.raises(UsageError, match="pass 2"):
        apply("version: 1\npasses: [wide: {sparsity: 0.5, only: [zzz]}, doped: {sparsity: 7}]", network().model())


def test_a_recipe_without_weights_to_count_has_totals_too() -> None:
    report = apply("version: 1\npasses: [unshare-initializers]", network().model()).report
    assert report["totals"]["weight_macs_ratio"] == 1
    assert report["totals"]["search_space"] == 0


def test_options_beside_a_recipe_are_refused() -> None:
    with pytest.raises(UsageError, match="drop seed"):
        sift_onnx.transform(network().model(), recipe=Recipe.parse(MIXED), seed=3)


@pytest.fixture
def stamp(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A pass of a user's own, which notes nothing: it gives nodes a prefix, once. What it was called with."""
    seen: list[str] = []
    monkeypatch.setattr(base, "_REGISTERED", dict(base._REGISTERED))

    @base.register_pass
    class Stamp(base.Pass):
        name: ClassVar[str] = "stamp"

        def call(self, model: Model) -> base.PassResult:
            first = model.graph.nodes[0].name
            seen.append(first)
            if first.startswith("stamped_"):
                return base.PassResult(model, False)
            copy = model.copy()
            for node in copy.graph.nodes:
                node.name = f"stamped_{node.name}"
            return base.PassResult(copy, True)

    return seen


def test_a_pass_that_notes_nothing_has_no_settings() -> None:
    assert get_pass("unshare-initializers")().settings() is None
    assert get_pass("wide")(0.5).settings() is not None


@pytest.mark.parametrize("order", [("wide: {sparsity: 0.75}", "stamp"), ("stamp", "wide: {sparsity: 0.75}")])
def test_a_pass_of_a_user_s_own_is_applied_whatever_was_before(stamp: list[str], order: tuple[str, str]) -> None:
    text = f"version: 1\npasses: [{', '.join(order)}]"
    widened = apply("version: 1\npasses: [wide: {sparsity: 0.75}]", network().model()).model
    result = apply(text, widened)
    assert result.changed
    assert all(node.name.startswith("stamped_") for node in result.model.graph.nodes)
    assert [entry["pass"] for entry in history(result.model)] == ["wide"]

    again = apply(text, result.model)
    assert len(stamp) == 2
    assert not again.changed
    assert bytes_of(again.model) == bytes_of(result.model)


def test_what_follows_a_pass_that_notes_nothing_and_changes_the_model_is_applied_too() -> None:
    text = "version: 1\npasses: [unshare-initializers, prune: {sparsity: 0.5}, densify]"
    first = apply(text, network().model())
    assert not first.model.masked()
    assert not apply(text, first.model).changed
