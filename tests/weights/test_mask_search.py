"""Masks are found again whatever was done to their weights, or said to be lost; never are they another's."""

from __future__ import annotations

import numpy as np
import pytest
from builders import mask_weights, model_of, random_weight
from onnx import helper, numpy_helper

from sift_onnx.errors import MaskWarning, ModelReadError
from sift_onnx.graphs.constants import replace_values
from sift_onnx.model import Model
from sift_onnx.weights import mask_storage
from sift_onnx.weights.sparse import SparseWeight

SHAPES = {"a": (12, 9, 3, 3), "b": (12, 9, 3, 3), "c": (24, 24), "d": (7, 40)}


def constants(arrays):
    """Each initializer is an output, through an Identity."""
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    nodes = [helper.make_node("Identity", [t.name], [f"{t.name}.out"]) for t in tensors]
    outputs = [helper.make_tensor_value_info(f"{t.name}.out", t.data_type, list(t.dims)) for t in tensors]
    return model_of(helper.make_graph(nodes, "constants", [], outputs, tensors), opset=21, ir_version=10)


@pytest.fixture(params=["bits", "digest"])
def model(request, monkeypatch):
    if request.param == "digest":
        monkeypatch.setattr(mask_storage, "_EXPLICIT_UP_TO", 0)
    arrays = {name: random_weight(*shape, seed=i) for i, (name, shape) in enumerate(SHAPES.items())}
    masked = Model.load(constants(arrays))
    for i, (name, constant) in enumerate(masked.initializers().items()):
        mask = np.random.default_rng(i).random(SHAPES[name]) < 0.3
        replace_values(constant, SparseWeight.from_dense(arrays[name] * mask))
    masked.bits = request.param == "bits"
    return masked


def rewritten(model, change, lost=()):
    """The masks that are found after ``change`` has made other arrays by name out of those of the model."""
    proto = model.to_proto()
    arrays = change({tensor.name: numpy_helper.to_array(tensor).copy() for tensor in proto.graph.initializer})
    other = constants(arrays)
    other.metadata_props.extend(proto.metadata_props)
    if not lost:
        return found_in(other)
    with pytest.warns(MaskWarning) as warnings:
        found = found_in(other)
    said = [str(warning.message) for warning in warnings if warning.category is MaskWarning]
    assert len(said) == len(lost)
    for name, reason in lost.items():
        assert any(name in text and reason in text for text in said), said
    return found


def found_in(proto):
    return {name: constant.weight.mask() for name, constant in Model.load(proto).masked().items()}


def masks_of(model):
    return {name: constant.weight.mask() for name, constant in model.masked().items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, mask in expected.items():
        assert np.array_equal(found[name], mask), name


@pytest.mark.filterwarnings("error::sift_onnx.errors.MaskWarning")
def test_masks_of_weights_that_were_renamed_are_found(model):
    found = rewritten(model, lambda arrays: {f"fused_{i}": array for i, array in enumerate(arrays.values())})
    assert_same(found, {f"fused_{i}": mask for i, mask in enumerate(masks_of(model).values())})


@pytest.mark.filterwarnings("error::sift_onnx.errors.MaskWarning")
@pytest.mark.parametrize("explicit", [1 << 20, 0])
def test_masks_of_whole_windows_that_were_renamed_are_found(explicit, monkeypatch):
    monkeypatch.setattr(mask_storage, "_EXPLICIT_UP_TO", explicit)
    masked = Model.load(constants({"a": random_weight(12, 9, 3, 3)}))
    mask = np.repeat(np.random.default_rng(0).random((12, 9, 1, 1)) < 0.3, 9).reshape(12, 9, 3, 3)
    (constant,) = masked.initializers().values()
    replace_values(constant, SparseWeight.from_dense(random_weight(12, 9, 3, 3) * mask))
    # Rows and columns of the window could be exchanged.
    assert_same(rewritten(masked, lambda arrays: {"b": arrays["a"]}), {"b": mask})


@pytest.mark.filterwarnings("error::sift_onnx.errors.MaskWarning")
def test_masks_of_weights_that_were_exchanged_are_found(model):
    assert_same(
        rewritten(model, lambda arrays: {**arrays, "a": arrays["b"], "b": arrays["a"]}),
        {**masks_of(model), "a": masks_of(model)["b"], "b": masks_of(model)["a"]},
    )


@pytest.mark.filterwarnings("error::sift_onnx.errors.MaskWarning")
@pytest.mark.parametrize("prefix", ["", "t."])
def test_masks_of_weights_whose_axes_were_permuted_are_found(model, prefix):
    orders = {"a": (2, 3, 1, 0), "b": (1, 0, 2, 3), "c": (1, 0), "d": (1, 0)}
    assert_same(
        rewritten(model, lambda arrays: {prefix + n: v.transpose(orders[n]).copy() for n, v in arrays.items()}),
        {prefix + n: v.transpose(orders[n]) for n, v in masks_of(model).items()},
    )


@pytest.mark.filterwarnings("error::sift_onnx.errors.MaskWarning")
def test_masks_of_weights_of_another_form_are_found(model):
    forms = {"a": (12, 81), "b": (1, 12, 9, 9), "c": (24, 24, 1, 1), "d": (280,)}
    assert_same(
        rewritten(model, lambda arrays: {f"r.{n}": v.reshape(forms[n]) for n, v in arrays.items()}),
        {f"r.{n}": v.reshape(forms[n]) for n, v in masks_of(model).items()},
    )


@pytest.mark.filterwarnings("error::sift_onnx.errors.MaskWarning")
def test_masks_of_weights_that_were_scaled_and_renamed_are_found(model):
    scale = random_weight(12, seed=9)[:, None, None, None]
    assert_same(
        rewritten(model, lambda arrays: {"folded": arrays.pop("b") * scale, **arrays, "a": arrays["a"] * scale}),
        {**{n: v for n, v in masks_of(model).items() if n != "b"}, "folded": masks_of(model)["b"]},
    )


@pytest.mark.filterwarnings("error::sift_onnx.errors.MaskWarning")
def test_masks_of_weights_that_were_cast_are_found(model):
    assert_same(
        rewritten(model, lambda arrays: {f"h.{n}": v.astype(np.float16) for n, v in arrays.items()}),
        {f"h.{n}": v for n, v in masks_of(model).items()},
    )


def test_weights_that_became_zero_stay_active_and_are_reported(model):
    def fold(arrays):
        arrays["a"].reshape(-1)[np.flatnonzero(arrays["a"])[:5]] = 0
        arrays["q.c"] = np.round(arrays.pop("c") * 2).astype(np.int8)
        return arrays

    if not model.bits:
        lost = {"a": "its weight has other zeros now, and its bits are not in the file", "c": "its weight is gone"}
        assert rewritten(model, fold, lost).keys() == {"b", "d"}
        return
    found = rewritten(model, fold, {"a": "5 of 270 active weights have become zero", "c": "have become zero"})
    expected = masks_of(model)
    assert_same(found, {"a": expected["a"], "b": expected["b"], "q.c": expected["c"], "d": expected["d"]})


def test_mask_with_a_weight_outside_is_lost(model):
    def train(arrays):
        arrays["a"].reshape(-1)[np.flatnonzero(arrays["a"] == 0)[7]] = 1e-30
        arrays["e"] = arrays.pop("b") + np.float32(1e-30)
        return arrays

    reasons = ["its weight has non-zeros where it has none", "its weight is gone, and no other tensor fits"]
    if not model.bits:
        reasons[0] = "its weight has other zeros now"
    assert rewritten(model, train, {"a": reasons[0], "b": reasons[1]}).keys() == {"c", "d"}


def test_mask_that_two_tensors_fit_is_lost(model):
    found = rewritten(model, lambda a: {"x": a["a"], "y": a.pop("a"), **a}, {"a": "2 tensors fit it"})
    assert found.keys() == {"b", "c", "d"}


def test_branches_that_were_folded_to_zero_are_found_by_a_name_only(model):
    def fold(arrays):
        return {"fused_a_1": 0 * arrays.pop("a"), "e": 0 * arrays.pop("c"), **arrays}

    if model.bits:
        found = rewritten(model, fold, {"a": "have become zero", "c": "its weight is gone"})
        assert_same({"fused_a_1": found["fused_a_1"]}, {"fused_a_1": masks_of(model)["a"]})
    else:
        found = rewritten(model, fold, {"a": "its weight is gone", "c": "its weight is gone"})
    assert found.keys() - {"fused_a_1"} == {"b", "d"}


@pytest.mark.filterwarnings("error::sift_onnx.errors.MaskWarning")
def test_active_zeros_move_with_the_weight(monkeypatch):
    for limit in (0, 1 << 30):
        monkeypatch.setattr(mask_storage, "_EXPLICIT_UP_TO", limit)
        masked = mask_weights(Model.load(constants({"w": random_weight(30, 20)})), 0.3, zeros=11)
        found = rewritten(masked, lambda arrays: {"t": np.ascontiguousarray(arrays["w"].T)})
        assert_same(found, {"t": masks_of(masked)["w"].T})


def test_search_of_a_file_that_names_masks_without_end_ends(model):
    proto = model.to_proto()
    records = mask_storage.mask_records(proto.metadata_props[0].value)
    proto.metadata_props[0].value = mask_storage.text_of_records({f"x{i}": records["a"] for i in range(2000)})
    with pytest.warns(MaskWarning):
        assert Model.load(proto).masked().keys() <= {"a", "b"}


def test_mask_whose_counts_are_wrong_is_damage():
    proto = mask_weights(Model.load(constants({"w": random_weight(30, 20)})), 0.3).to_proto()
    record = mask_storage.mask_records(proto.metadata_props[0].value)["w"]
    wrong = mask_storage.MaskRecord(record.shape, record.nnz + 1, record.nonzeros, record.bits)
    proto.metadata_props[0].value = mask_storage.text_of_records({"w": wrong})
    with pytest.raises(ModelReadError, match="the mask of initializer 'w' is damaged: it has"):
        Model.load(proto)
