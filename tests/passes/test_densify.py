"""What Densify promises: no masks, and every value as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import Net
from onnx import numpy_helper

import sift_onnx
from sift_onnx.model import MASKS_KEY, Model
from sift_onnx.passes import Densify, Prune
from sift_onnx.passes.base import HISTORY_KEY


def pruned() -> Model:
    net = Net()
    net.tokens_end(net.dense(net.tokens(8), 8, 8, name="mid"), 8)
    return Prune("0.75")(net.model()).model


@pytest.mark.parametrize("storage", ["dense", "sparse", None])
def test_masks_are_dropped_and_values_stay(tmp_path: Path, storage: Any) -> None:
    model = pruned()
    if storage is not None:
        model.save(tmp_path / "m.onnx", storage=storage)
        model = Model.load(tmp_path / "m.onnx")
    before = {name: constant.values.copy() for name, constant in model.masked().items()}
    result = Densify()(model)
    assert result.changed
    assert set(before) == set(sift_onnx.masks(model)), "the input keeps its masks"
    assert sift_onnx.masks(result.model) == {}
    proto = result.model.to_proto()
    assert not proto.graph.sparse_initializer
    assert MASKS_KEY not in {entry.key for entry in proto.metadata_props}
    after = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    assert all(np.array_equal(after[name], values) for name, values in before.items())
    result.model.save(tmp_path / "dense.onnx")
    assert sift_onnx.masks(tmp_path / "dense.onnx") == {}


def test_the_report_counts_zeros_as_weights() -> None:
    report = Densify()(pruned()).report
    layers = {layer["name"]: layer for layer in report["layers"]}
    assert (layers["mid.weight"]["status"], layers["mid.weight"]["nnz"], layers["mid.weight"]["sparsity"]) == (
        "dense", 64, 0.0
    )  # fmt: skip
    assert layers["mid.weight"]["macs_after"] == 4 * layers["mid.weight"]["macs_before"]
    assert (layers["stem.weight"]["status"], layers["stem.weight"]["reason"]) == ("unchanged", "it has no mask")
    assert report["totals"]["nnz_after"] == sum(np.prod(layer["shape_after"]) for layer in layers.values())


def test_a_model_without_masks_is_handed_back() -> None:
    dense = Densify()(pruned()).model
    again = Densify()(dense)
    assert not again.changed
    assert again.model is dense


def test_what_was_densified_can_be_pruned_anew() -> None:
    result = Prune("0.5")(Densify()(pruned()).model)
    assert result.changed
    assert sift_onnx.masks(result.model)["mid.weight"].sum() == 32
    assert [e["pass"] for e in json.loads(result.model.metadata[HISTORY_KEY])] == ["prune", "densify", "prune"]
