"""What simulation holds of a model: the places of its non-zeros, whatever its file looks like."""

import tracemalloc

import numpy as np
import onnx
import pytest
from dataflow_cases import grid

import sift_onnx
from sift_onnx.graphs.constants import replace_values
from sift_onnx.model import Model
from sift_onnx.model_files import writer as model_file
from sift_onnx.weights.sparse import SparseWeight

WIDTH, LAYERS = 3000, 2
NNZ = 200_000


@pytest.fixture(scope="module")
def model():
    """Layers one behind the other, each nearly empty."""
    nodes = [onnx.helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], f"mm{i}") for i in range(LAYERS)]
    graph = onnx.helper.make_graph(
        nodes,
        "layers",
        [onnx.helper.make_tensor_value_info("x0", onnx.TensorProto.FLOAT, ["N", WIDTH])],
        [onnx.helper.make_tensor_value_info(f"x{LAYERS}", onnx.TensorProto.FLOAT, ["N", WIDTH])],
        [onnx.numpy_helper.from_array(np.zeros((WIDTH, WIDTH), np.float32), f"w{i}") for i in range(LAYERS)],
    )
    model = Model.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))
    rng = np.random.default_rng(0)
    for constant in model.initializers().values():
        indices = np.sort(rng.choice(WIDTH * WIDTH, NNZ, replace=False)).astype(np.int32)
        values = rng.standard_normal(NNZ).astype(np.float32)
        replace_values(constant, SparseWeight((WIDTH, WIDTH), indices, values))
    return model


@pytest.mark.parametrize("beside", [False, True], ids=["one file", "data beside it"])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_no_weight_is_ever_dense_in_memory(model, tmp_path, monkeypatch, storage, beside):
    if beside:
        monkeypatch.setattr(model_file, "PROTOBUF_LIMIT", 1_500_000)
    model.save(tmp_path / "m.onnx", storage=storage)
    assert (len(list(tmp_path.iterdir())) == 2) == beside
    sift_onnx.simulate(tmp_path / "m.onnx", grid(8, 8), batch=64)  # what is imported and made once
    tracemalloc.start()
    try:
        simulation = sift_onnx.simulate(tmp_path / "m.onnx", grid(8, 8), batch=64)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [layer.nnz for layer in simulation.layers] == [NNZ] * LAYERS
    assert peak < (0.8 if storage == "dense" else 0.4) * WIDTH * WIDTH * 4, "less than one dense weight"
