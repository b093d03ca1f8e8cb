"""Masks in dense storage, after tools that know nothing of them have rewritten the model."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import mask_weights, model_of, random_weight
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.errors import MaskWarning
from sift_onnx.model import Model


def network(zero_gamma=False):
    """Convolutions with normalizations, a transposed product, and a Gemm: what tools fold and rename."""
    arrays = {
        "conv1.weight": random_weight(16, 3, 3, 3),
        "conv2.weight": random_weight(16, 16, 3, 3, seed=1),
        "fc1.weight": random_weight(24, 16, seed=2),
        "fc2.weight": random_weight(24, 24, seed=3),
    }
    for layer in ("bn1", "bn2"):
        gamma = np.abs(random_weight(16, seed=4)) + 0.5
        arrays[f"{layer}.weight"] = gamma * 0 if zero_gamma and layer == "bn2" else gamma
        for part in ("bias", "mean", "var"):
            arrays[f"{layer}.{part}"] = np.abs(random_weight(16, seed=5)) + 0.5
    normalization = [f".{part}" for part in ("weight", "bias", "mean", "var")]
    nodes = [
        helper.make_node("Conv", ["x", "conv1.weight"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", *(f"bn1{part}" for part in normalization)], ["b1"], "bn1"),
        helper.make_node("Relu", ["b1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "conv2.weight"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c2", *(f"bn2{part}" for part in normalization)], ["b2"], "bn2"),
        helper.make_node("Add", ["b2", "r1"], ["s2"], "add"),
        helper.make_node("GlobalAveragePool", ["s2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Transpose", ["fc1.weight"], ["fc1.t"], "transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["f", "fc1.t"], ["m1"], "fc1"),
        helper.make_node("Relu", ["m1"], ["r2"], "relu2"),
        helper.make_node("Gemm", ["r2", "fc2.weight"], ["y"], "fc2", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 24])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return model_of(graph)


def onnxruntime_basic(source, target):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def onnxruntime_all(source, target):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def onnxslim(source, target):
    module = pytest.importorskip("onnxslim")
    onnx.save(module.slim(str(source)), target)


def onnxsim(source, target):
    module = pytest.importorskip("onnxsim")
    simplified, _ = module.simplify(onnx.load(source))
    onnx.save(simplified, target)


def onnxoptimizer(source, target):
    module = pytest.importorskip("onnxoptimizer")
    onnx.save(module.optimize(onnx.load(source)), target)


TOOLS = [onnxruntime_basic, onnxslim, onnxsim, onnxoptimizer]


def through(tool, tmp_path, **options):
    """The masks before, and those found in what the tool made of the model."""
    masked = mask_weights(Model.load(network(**options)), 0.25, names=NAMES)
    masked.save(tmp_path / "in.onnx")
    tool(tmp_path / "in.onnx", tmp_path / "out.onnx")
    found = Model.load(tmp_path / "out.onnx")
    return masks_of(masked), masks_of(found), found


NAMES = ("conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight")


def masks_of(model):
    return {name: constant.weight.mask() for name, constant in model.masked().items()}


@pytest.mark.filterwarnings("error::sift_onnx.errors.MaskWarning")
@pytest.mark.parametrize("tool", TOOLS)
def test_every_mask_is_found(tool, tmp_path):
    before, after, model = through(tool, tmp_path)
    assert len(after) == len(before) == 4
    # Which is which shows in the shapes, all of which differ up to a transposition.
    for mask in after.values():
        same = [m for m in before.values() if m.shape == mask.shape and np.array_equal(m, mask)]
        turned = [m for m in before.values() if m.ndim == 2 and np.array_equal(m.T, mask)]
        assert len(same) + len(turned) == 1
    # What was found is written and read again, under the names that the tool gave.
    model.save(tmp_path / "again.onnx")
    again = masks_of(Model.load(tmp_path / "again.onnx"))
    assert again.keys() == after.keys()
    assert all(np.array_equal(again[name], mask) for name, mask in after.items())


@pytest.mark.parametrize("tool", [onnxruntime_basic, onnxslim, onnxsim])
def test_mask_of_a_branch_that_was_folded_to_zero_is_kept_under_its_name_or_lost(tool, tmp_path):
    with pytest.warns(MaskWarning, match=r"conv2.*(is lost|have become zero)"):
        before, after, _ = through(tool, tmp_path, zero_gamma=True)
    assert len(after) in (3, 4)
    for name, mask in after.items():
        assert any(mask.shape == m.shape and np.array_equal(mask, m) for m in before.values()) or (
            any(np.array_equal(mask, m.T) for m in before.values() if m.ndim == 2)
        ), name


def test_masks_of_weights_that_were_laid_out_for_a_processor_are_lost_or_right(tmp_path):
    with pytest.warns(MaskWarning) if has_blocked_layout(tmp_path) else contextlib.nullcontext():
        before, after, _ = through(onnxruntime_all, tmp_path)
    for mask in after.values():
        same = [m for m in before.values() if np.array_equal(m, mask) or np.array_equal(m.T, mask)]
        assert len(same) == 1


def has_blocked_layout(tmp_path):
    """Whether onnxruntime has convolutions of channels in blocks on this processor."""
    onnx.save(network(), tmp_path / "probe.onnx")
    onnxruntime_all(tmp_path / "probe.onnx", tmp_path / "probe-out.onnx")
    return any(node.domain == "com.microsoft.nchwc" for node in onnx.load(tmp_path / "probe-out.onnx").graph.node)
