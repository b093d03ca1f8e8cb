"""Copies and pickles: models go through them whole, what runs models does not."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import pytest
from builders import branches, linear, mask_weights, random_weight
from onnx import TensorProto, helper

import sift_onnx
import sift_onnx.backend
from sift_onnx.backends.base import available_backends, get_backend
from sift_onnx.compat.deepsparse import compile_model
from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.passes import Prune

WAYS = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model))}


def masked():
    model = mask_weights(Model.load(linear({"a": random_weight(64, 32), "b": random_weight(32, 64, seed=1)})))
    model.metadata["who"] = "me"
    return model


def in_file(path, storage, external_from=None):
    masked().save(path, storage=storage, external_from=external_from)
    return Model.load(path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("external_from", [None, 1024])
def test_a_model_from_a_file_goes_through(way, storage, external_from, tmp_path):
    model = in_file(tmp_path / "m.onnx", storage, external_from)
    twin = WAYS[way](model)

    assert twin is not model
    assert twin.to_proto(storage) == model.to_proto(storage)
    assert (twin.path, twin.metadata) == (model.path, model.metadata)
    masks, theirs = sift_onnx.masks(model), sift_onnx.masks(twin)
    assert masks.keys() == theirs.keys() == {"a", "b"}
    assert all(np.array_equal(mask, theirs[name]) for name, mask in masks.items())


def test_a_pickle_needs_no_file(tmp_path):
    model = in_file(tmp_path / "m.onnx", "dense", 1024)
    expected, pickled = model.to_proto(), pickle.dumps(model)
    for file in tmp_path.iterdir():
        file.unlink()

    assert pickle.loads(pickled).to_proto() == expected


@pytest.mark.parametrize("way", WAYS)
def test_subgraphs_go_through(way):
    model = Model.load(branches(random_weight(1, 4), random_weight(1, 4, seed=1)))

    assert WAYS[way](model).to_proto() == model.to_proto()


def with_function():
    body = [
        helper.make_node("Constant", [], ["two"], value=onnx.numpy_helper.from_array(np.float32([2, 2]), "two")),
        helper.make_node("Mul", ["x", "two"], ["y"], "twice"),
    ]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    function = helper.make_function("mine", "Twice", ["x"], ["y"], body, sets[:1])
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], "call", domain="mine")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    return Model.load(helper.make_model(graph, functions=[function], opset_imports=sets, ir_version=8))


@pytest.mark.parametrize("way", WAYS)
def test_edits_of_a_copy_do_not_reach_the_model(way):
    for model in (masked(), with_function()):
        before, twin = model.to_proto(), WAYS[way](model)
        for level in (twin.graph, *twin.graph.functions):
            for node in level.nodes:
                node.name += "_edited"
        twin.metadata["who"] = "you"

        assert model.to_proto() == before
        assert twin.to_proto() != before


def test_arrays_of_a_deep_copy_are_its_own():
    model = Model.load(linear({"a": random_weight(2, 2)}))
    model.initializers()["a"].values = np.ones((2, 2), np.float32)
    twin = copy.deepcopy(model)
    twin.initializers()["a"].values[:] = 5

    assert model.initializers()["a"].values.tolist() == [[1, 1], [1, 1]]


def test_results_of_passes_go_through():
    matrices = {name: random_weight(32, 32, seed=i) for i, name in enumerate("abc")}
    result = Prune(0.5)(Model.load(linear(matrices)))
    for through in WAYS.values():
        assert through(result).model.to_proto() == result.model.to_proto()


def programs():
    model = linear({"a": random_weight(4, 4)})
    yield sift_onnx.InferenceSession(model)
    yield sift_onnx.backend.prepare(model)
    yield compile_model(model, 1)
    for name in available_backends():
        yield get_backend(name).compile(model)


@pytest.mark.parametrize("way", WAYS)
def test_what_runs_models_is_refused_with_the_way_out(way):
    for program in programs():
        with pytest.raises(UsageError, match=r"pickle the path or the bytes of its model"):
            WAYS[way](program)
