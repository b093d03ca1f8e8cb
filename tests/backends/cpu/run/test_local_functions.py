"""Layers inside of local functions run in the kernels, as those of the main graph do."""

from __future__ import annotations

import pytest
from function_nets import layers_in_functions
from sparse_nets import SparseNet, assert_same_at_batches, left_to_onnxruntime, places

from sift_onnx.backends.cpu.run import read_model
from sift_onnx.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("every_region_pays")


def test_the_nodes_of_functions_run_in_the_kernels() -> None:
    program = assert_same_at_batches(layers_in_functions(SparseNet()).model(), [1, 3, 17])
    assert left_to_onnxruntime(program) == {}
    assert len(places(program)) == 5


def test_what_cannot_be_inlined_runs_in_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_model: object) -> None:
        raise UnsupportedError("its local functions cannot be inlined")

    monkeypatch.setattr(read_model, "inline_bodies", refuse)
    program = assert_same_at_batches(layers_in_functions(SparseNet()).model(), [3])
    assert left_to_onnxruntime(program).keys() == {"layer0", "layer1"}
