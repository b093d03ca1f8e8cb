"""What viewers show of a node: how sparse its weight is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import small_and_large
from saved_files import masked_twice

import sift_onnx
from sift_onnx.graphs.sparsity_notes import NONZEROS_KEY, SPARSITY_KEY
from sift_onnx.model import Model


def notes(model: onnx.ModelProto) -> dict[str, dict[str, str]]:
    """By the weight that a node reads."""
    keys = (SPARSITY_KEY, NONZEROS_KEY)
    return {
        name: {entry.key: entry.value for entry in node.metadata_props if entry.key in keys}
        for node in model.graph.node
        for name in node.input
        if any(entry.key in keys for entry in node.metadata_props)
    }


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_nodes_say_how_sparse_their_weights_are(tmp_path, storage):
    model = masked_twice(small_and_large())
    weight = model.masked()["w"].weight
    size = int(np.prod(weight.shape))
    expected = {SPARSITY_KEY: f"{1 - weight.nnz / size:.2%}", NONZEROS_KEY: f"{weight.nnz:,} of {size:,}"}

    assert notes(model.to_proto(storage))["w"] == expected
    model.save(tmp_path / "m.onnx", storage=storage)
    assert notes(onnx.load(tmp_path / "m.onnx", load_external_data=False))["w"] == expected
    assert notes(sift_onnx.passes.Densify()(model).model.to_proto()) == {}


def test_notes_follow_the_mask_and_appear_once():
    model = masked_twice(small_and_large())
    again = Model.load(model.to_proto())
    assert again.to_proto().SerializeToString() == Model.load(again.to_proto()).to_proto().SerializeToString()
    keys = [entry.key for node in again.to_proto().graph.node for entry in node.metadata_props]
    assert keys.count(SPARSITY_KEY) == len(model.masked())


def test_the_mask_takes_one_line_of_a_viewers_pane():
    """Viewers fold a long value to one line, unless it has line breaks."""
    proto = masked_twice(small_and_large()).to_proto()
    assert all("\n" not in entry.value for entry in proto.metadata_props)
