"""What the Wide pass promises, on small graphs."""

from __future__ import annotations

import itertools
import json
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from builders import mask_weights
from nets import Net
from onnx import TensorProto, helper, numpy_helper

import sift_onnx
from sift_onnx.errors import BudgetError, MaskWarning, PreconditionError, UnsupportedError, UsageError
from sift_onnx.model import Model
from sift_onnx.passes import Parallel, Wide
from sift_onnx.passes.base import HISTORY_KEY
from sift_onnx.passes.settings import exact_sparsity


def perceptron(widths: list[int], *, extra_nodes: list[onnx.NodeProto] | None = None) -> onnx.ModelProto:
    """A chain of MatMul and Relu with random weights ``w0``, ``w1``, ...; ``extra_nodes`` run on the first hidden."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i, (rows, columns) in enumerate(itertools.pairwise(widths)):
        last = i == len(widths) - 2
        weight = rng.standard_normal((rows, columns)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], ["y" if last else f"h{i}"], name=f"mul{i}"))
        if not last:
            nodes.append(helper.make_node("Relu", [f"h{i}"], [f"r{i}"], name=f"relu{i}"))
        value = f"r{i}"
        if i == 0 and extra_nodes:
            nodes.extend(extra_nodes)
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, widths[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, widths[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SMALL = [4, 30, 40, 30, 4]


def test_widths_grow_by_the_square_root_and_macs_stay() -> None:
    report = Wide(0.75)(perceptron(SMALL)).report
    assert report["width_factor"] == 2.0
    assert [layer["shape_after"] for layer in report["layers"]] == [[4, 60], [60, 80], [80, 60], [60, 4]]
    assert report["totals"]["weight_macs_after"] == report["totals"]["weight_macs_before"]
    assert [layer["status"] for layer in report["layers"]] == ["dense", "sparse", "sparse", "dense"]


def test_the_budget_of_each_layer_is_its_own_number_of_weights() -> None:
    layers = Wide(0.9, budget="layer")(perceptron(SMALL)).report["layers"]
    assert [layer["nnz"] for layer in layers[1:3]] == [1200, 1200]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        Wide(0.9, seed=seed)(perceptron(SMALL)).model.save(tmp_path / name)
    a, b, c = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert a == b
    assert a != c


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_a_second_run_on_its_own_output_changes_nothing(tmp_path: Path, storage: sift_onnx.model.Storage) -> None:
    first = Wide(0.9)(perceptron(SMALL)).model
    first.save(tmp_path / "first.onnx", storage=storage)
    again = Wide(0.9)(tmp_path / "first.onnx")
    assert not again.changed
    again.model.save(tmp_path / "second.onnx", storage=storage)
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()


def test_transforming_after_a_save_is_transforming_before(tmp_path: Path) -> None:
    Model.load(perceptron(SMALL)).save(tmp_path / "saved.onnx")
    direct, saved = Wide(0.9)(perceptron(SMALL)).model, Wide(0.9)(tmp_path / "saved.onnx").model
    assert direct.to_proto() == saved.to_proto()


def test_other_settings_on_a_widened_model_are_refused() -> None:
    wide = Wide(0.9)(perceptron(SMALL)).model
    with pytest.raises(PreconditionError, match=r"sparsity='0\.9'"):
        Wide(0.5)(wide)


def test_the_settings_are_noted_in_the_model() -> None:
    model = Wide(0.9, seed=7, keep_dense=["w2"], budget="layer")(perceptron(SMALL)).model
    (entry,) = json.loads(model.metadata[HISTORY_KEY])
    assert entry["pass"] == "wide"
    assert entry["seed"] == 7
    assert entry["keep_dense"] == ["w2"]


def test_the_input_is_not_changed() -> None:
    proto = perceptron(SMALL)
    before = proto.SerializeToString()
    Wide(0.9)(proto)
    assert proto.SerializeToString() == before


def test_a_layer_kept_dense_is_repaid_by_the_others() -> None:
    report = Wide(0.75, keep_dense=["w1"])(perceptron([4, 30, 10, 60, 60, 60, 4])).report
    by_name = {layer["name"]: layer for layer in report["layers"]}
    assert by_name["w1"]["status"] == "dense"
    assert by_name["w1"]["reason"] == "kept dense by `keep_dense`"
    # Its input width is touched by dense layers only, so nothing asks for more of it.
    assert by_name["w1"]["shape_after"] == [30, 20]
    assert by_name["w1"]["nnz"] == 600
    assert by_name["w3"]["nnz"] < 60 * 60
    assert report["totals"]["weight_macs_after"] == report["totals"]["weight_macs_before"]


def test_only_selected_layers_make_their_widths_grow() -> None:
    wide = [4, 30, 40, 50, 30, 4]
    report = Wide(0.75, only=["w1"], budget="layer")(perceptron(wide)).report
    shapes = {layer["name"]: layer["shape_after"] for layer in report["layers"]}
    assert shapes == {"w0": [4, 60], "w1": [60, 80], "w2": [80, 50], "w3": [50, 30], "w4": [30, 4]}
    assert [layer["status"] for layer in report["layers"]] == ["dense", "sparse", "dense", "unchanged", "unchanged"]


def test_widths_are_rounded_to_multiples() -> None:
    report = Wide(0.9, round_to=16, budget="layer")(perceptron(SMALL)).report
    assert [layer["shape_after"] for layer in report["layers"]][1] == [96, 128]


def test_a_symbolic_size_that_holds_a_width_does_not_become_a_number() -> None:
    """Rows of ``batch * heads``, as dynamo records them: the number at the analysed batch is wrong at any other."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((6, 6)).astype(np.float32), name)
        for name in ("w0", "w1", "w2", "w3")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("MatMul", ["a", "w1"], ["b"]),
        helper.make_node("Reshape", ["b", "flat"], ["rows"]),
        helper.make_node("Reshape", ["rows", "back"], ["c"]),
        helper.make_node("MatMul", ["c", "w2"], ["d"]),
        helper.make_node("MatMul", ["d", "w3"], ["y"]),
    ]
    shapes = [numpy_helper.from_array(np.array(v), n) for n, v in (("flat", [-1, 1]), ("back", [-1, 6]))]
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        [*weights, *shapes],
        value_info=[
            helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["6*n", 1]),
            helper.make_tensor_value_info("c", TensorProto.FLOAT, ["n", 6]),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    wide = Wide(0.75, budget="layer")(proto).model.to_proto()
    recorded = {info.name: info.type.tensor_type.shape.dim for info in wide.graph.value_info}
    assert not recorded["rows"][0].HasField("dim_value")
    assert [recorded["c"][0].dim_param, recorded["c"][1].dim_value] == ["n", 12]


def test_an_unknown_operator_keeps_what_it_touches_and_is_reported() -> None:
    extra = [helper.make_node("Mystery", ["r0"], ["m"], name="strange", domain="nobody")]
    proto = perceptron([4, 30, 40, 50, 30, 4], extra_nodes=extra)
    proto.opset_import.add(domain="nobody", version=1)
    report = Wide(0.75)(proto).report
    assert [layer["shape_after"] for layer in report["layers"]][:2] == [[4, 30], [30, 80]]
    assert report["unknown"] == ["nobody::Mystery (node 'strange')"]
    (entry,) = [e for e in report["pinned"] if e["size"] == 30 and "w0" in e["layers"]]
    assert "no rule covers nobody::Mystery" in entry["reason"]
    with pytest.raises(UnsupportedError, match="nobody::Mystery"):
        Wide(0.75, strict=True)(proto)


def test_a_budget_that_cannot_be_met_names_the_layers_and_the_way_out() -> None:
    with pytest.raises(BudgetError, match=r"'w0' \(first layer\).*`budget='layer'`"):
        Wide(0.9)(perceptron([1000, 8, 8, 1000]))


def test_a_budget_that_cannot_be_met_does_not_name_layers_that_cost_what_they_did() -> None:
    net = Net()
    ids = net.input("ids", values=np.asarray([[1, 4, 2]]))
    h = net.dense(net.op("Gather", net.weight(7, 6, name="table"), ids), 6, 6, name="hidden")
    net.output(net.dense(net.op("Relu", h), 6, 1000, name="head"))
    with pytest.raises(BudgetError, match=r"'head.weight' \(last layer\)") as caught:
        Wide(0.9)(net.model())
    assert "table" not in str(caught.value)


@pytest.mark.parametrize("widths", [[8, 4], [8, 20, 4]])
def test_a_model_of_first_and_last_layers_has_nothing_to_widen(widths: list[int]) -> None:
    with pytest.raises(UnsupportedError, match="nothing to widen"):
        Wide(0.9)(perceptron(widths))


@pytest.mark.parametrize("sparsity", [1, 1.5, -0.1, "abc", float("nan")])
def test_a_sparsity_out_of_range_is_refused(sparsity: float | str) -> None:
    with pytest.raises(UsageError):
        Wide(sparsity)


def test_sparsity_is_the_decimal_that_was_written() -> None:
    assert exact_sparsity(0.9) == Fraction(9, 10)
    assert exact_sparsity("0.95") == Fraction(19, 20)
    with pytest.raises(UsageError, match=r"less than 1; write 0\.9 for 90 %$"):
        exact_sparsity(90)


def test_transform_gives_the_kind_of_model_that_it_was_given(tmp_path: Path) -> None:
    import onnx_ir

    proto = perceptron(SMALL)
    onnx.save(proto, tmp_path / "m.onnx")
    assert isinstance(sift_onnx.transform(proto, wide=0.9), onnx.ModelProto)
    assert isinstance(sift_onnx.transform(gs.import_onnx(proto), wide=0.9), gs.Graph)
    assert isinstance(sift_onnx.transform(onnx_ir.from_proto(proto), wide=0.9), onnx_ir.Model)
    assert isinstance(sift_onnx.transform(tmp_path / "m.onnx", wide=0.9), Model)


def test_masks_are_boolean_arrays_of_the_sparse_weights() -> None:
    result = Wide(0.9)(perceptron(SMALL))
    masks = sift_onnx.masks(result.model)
    counts = {layer["name"]: layer["nnz"] for layer in result.report["layers"] if layer["status"] == "sparse"}
    assert {name: int(mask.sum()) for name, mask in masks.items()} == counts
    assert all(mask.dtype == np.bool_ for mask in masks.values())


@pytest.mark.parametrize(
    ("widths", "settings"),
    [
        (SMALL, {}),
        ([4, 8, 8, 8, 4], {}),
        ([4, 32, 40, 32, 4], {"round_to": 8}),
        ([4, 32, 32, 32, 4], {"pattern": "block:4x4"}),
        ([4, 30, 40, 30, 4], {"init": "embed"}),
    ],
)
def test_a_sparsity_that_rounds_every_width_to_itself_names_the_smallest_that_widens(widths, settings):
    model = perceptron(widths)
    settings = {"budget": "layer", **settings}
    with pytest.raises(UnsupportedError, match=r"round to themselves at a sparsity of 0\.0001") as refusal:
        Wide("0.0001", **settings)(Model.load(model))
    named = Fraction(re.search(r"from (0\.\d+) on", str(refusal.value))[1])

    assert "are fixed" not in str(refusal.value)
    assert Wide(named, **settings)(Model.load(model)).changed
    with pytest.raises(UnsupportedError, match="round to themselves"):
        Wide(named - Fraction(1, 10_000), **settings)(Model.load(model))


def test_a_step_beyond_any_width_is_refused():
    with pytest.raises(UsageError, match="use 1 to 65536"):
        Wide("0.5", round_to=10**20)


def test_sizes_that_are_fixed_are_said_to_be_so():
    with pytest.raises(UnsupportedError, match="every weight layer is fixed"):
        Wide("0.9", keep_dense=["w*"])(Model.load(perceptron(SMALL)))


def test_where_no_width_can_grow_the_members_are_named_that_keep_all_widths() -> None:
    net = Net()
    x = net.input("x", 1, 5, 4)
    for i in range(3):
        x = net.op("Relu", net.dense(x, 4, 4, name=f"w{i}"))
        net.output(x)
    model = net.model()
    with pytest.raises(UnsupportedError, match=r"every weight layer is fixed.*; parallel, factorized and doped keep"):
        Wide(0.75)(model)
    with pytest.raises(UnsupportedError, match=r"; parallel with `init='embed'` and `activation='none'` keeps all"):
        Wide(0.75, init="embed")(model)
    assert Parallel(0.75, init="embed", activation="none")(model).changed


def test_a_layer_that_rounds_to_itself_beside_others_that_grow_is_said_to_round():
    report = Wide("0.1", budget="layer")(Model.load(perceptron([4, 2, 2, 2, 300, 300, 4]))).report
    reasons = {layer["name"]: layer["reason"] for layer in report["layers"] if layer["status"] == "unchanged"}
    assert reasons["w1"] == reasons["w2"] == "its sizes round to themselves"


def test_masks_that_widening_cannot_keep_are_named(recwarn):
    model = mask_weights(Model.load(perceptron(SMALL)), names=["w0", "w1"])
    report = Wide("0.75", budget="layer")(model).report
    (warning,) = report["warnings"]
    assert report["masks_dropped"] == ["w0", "w1"]
    assert "'w0', 'w1'" in warning
    assert "`init='embed'`" in warning

    kept = Wide("0.75", init="embed")(model)
    assert (kept.report["masks_dropped"], kept.report["warnings"]) == ([], [])
    assert kept.model.masked().keys() >= {"w0", "w1"}
    again = Wide("0.75", budget="layer")(Wide("0.75", budget="layer")(model).model)
    assert (again.report["masks_dropped"], again.report["warnings"]) == ([], [])


def test_masks_of_layers_that_keep_their_sizes_are_kept():
    model = mask_weights(Model.load(perceptron([4, 30, 40, 30, 30, 4])), names=["w1", "w3"])
    result = Wide("0.75", budget="layer", only=["w1"])(model)
    fixed = [name for name, was in model.masked().items() if result.model.masked()[name].shape == was.shape]
    assert result.report["masks_dropped"] == [name for name in ("w1", "w3") if name not in fixed]


@pytest.mark.parametrize("settings", [{"wide": 0.75, "budget": "layer"}, {"recipe": "wide"}])
def test_a_call_that_drops_masks_warns(settings):
    recipe = {"version": 1, "passes": [{"wide": {"sparsity": 0.75, "budget": "layer"}}]}
    settings = {"recipe": recipe} if "recipe" in settings else settings
    model = mask_weights(Model.load(perceptron(SMALL)), names=["w1"])
    with pytest.warns(MaskWarning, match="'w1'"):
        sift_onnx.transform(model, **settings)
