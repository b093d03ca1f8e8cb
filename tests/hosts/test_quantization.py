"""A transformed model through onnxruntime's quantizers: what is pruned stays zero, and how that is stored."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hosts import tools
from hosts.cases import changed_by, network, outputs, passes_of
from onnx.numpy_helper import to_array
from onnxruntime.quantization import QuantFormat, QuantType

import sift_onnx
from sift_onnx.cli.app import main
from sift_onnx.errors import MaskWarning

pytestmark = pytest.mark.filterwarnings("ignore::sift_onnx.errors.MaskWarning")

SYMMETRIC: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "static": tools.static,
    "static, per channel": lambda proto: tools.static(proto, per_channel=True),
    "static, QOperator": lambda proto: tools.static(proto, quant_format=QuantFormat.QOperator),
    "static, 4 bits": lambda proto: tools.static(proto, weight_type=QuantType.QInt4),
    "dynamic": tools.dynamic,
    "dynamic, reduced range": lambda proto: tools.dynamic(proto, reduce_range=True),
    "dynamic, per channel": lambda proto: tools.dynamic(proto, per_channel=True),
}
ASYMMETRIC: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "static, QUInt8": lambda p: tools.static(p, weight_type=QuantType.QUInt8, activation_type=QuantType.QUInt8),
    "static, not symmetric": lambda p: tools.static(p, extra_options={"WeightSymmetric": False}),
    "dynamic, QUInt8": lambda p: tools.dynamic(p, weight_type=QuantType.QUInt8),
}


@pytest.fixture(scope="module")
def wide() -> onnx.ModelProto:
    return changed_by(passes_of("wide"), network())


def tensors(proto: onnx.ModelProto) -> dict[str, Any]:
    return {tensor.name: to_array(tensor) for tensor in proto.graph.initializer}


@pytest.mark.parametrize("how", SYMMETRIC)
def test_symmetric_weights_keep_their_zeros_and_masks(wide: onnx.ModelProto, how: str) -> None:
    quantized = SYMMETRIC[how](wide)
    before, after, stored = sift_onnx.masks(wide), sift_onnx.masks(quantized), tensors(quantized)
    assert after.keys() == {f"{name}_quantized" for name in before}
    for name, mask in before.items():
        weight = stored[f"{name}_quantized"]
        assert weight.dtype.name in ("int8", "int4")
        assert np.array_equal(after[f"{name}_quantized"], mask)
        assert not weight[~mask].astype(np.int32).any()
        assert weight[mask].astype(np.int32).any()


@pytest.mark.parametrize("how", ASYMMETRIC)
def test_asymmetric_weights_keep_the_value_zero_as_their_zero_point(wide: onnx.ModelProto, how: str) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        quantized = ASYMMETRIC[how](wide)
        assert not sift_onnx.masks(quantized)
    masks, stored = sift_onnx.masks(wide), tensors(quantized)
    for name, mask in masks.items():
        assert any(f"the mask of {name!r} is lost" in str(w.message) for w in said if w.category is MaskWarning)
        point = stored[f"{name}_zero_point"]
        assert point != 0
        assert set(stored[f"{name}_quantized"][~mask].tolist()) == {point.item()}


def test_a_verb_that_reads_a_model_twice_warns_once(wide: onnx.ModelProto, tmp_path: Any) -> None:
    onnx.save(ASYMMETRIC["dynamic, QUInt8"](wide), tmp_path / "q.onnx")
    # The warnings of one test are not those of the next one.
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        command = ["benchmark", str(tmp_path / "q.onnx"), "--backend", "cpu", "--seconds", "0.01", "--warmup", "0"]
        result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("Warning: the mask of")]
    assert len(lines) == len(set(lines)) == 3


@pytest.mark.parametrize("how", ["static", "static, QOperator", "dynamic"])
def test_the_verbs_take_quantized_files(wide: onnx.ModelProto, how: str, tmp_path: Any) -> None:
    quantized = SYMMETRIC[how](wide)
    onnx.save(quantized, tmp_path / "q.onnx")
    onnx.save(wide, tmp_path / "wide.onnx")
    bound = 0.15 * float(np.abs(outputs(wide)[0]).max())
    for verb in (["check", "q.onnx", "wide.onnx", "--atol", str(bound)], ["inspect", "q.onnx"]):
        command = [str(tmp_path / word) if word.endswith(".onnx") else word for word in verb]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
    session = sift_onnx.InferenceSession(str(tmp_path / "q.onnx"), threads=1)
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], outputs(quantized, {"x": x})[0], atol=bound / 4)


def test_a_pass_on_quantized_weights_says_that_it_comes_too_late(tmp_path: Any) -> None:
    onnx.save(tools.dynamic(network()), tmp_path / "q.onnx")
    for verb, *options in (
        ["transform", "--wide", "0.75"],
        ["transform", "--parallel", "0.75"],
        ["prune", "--sparsity", "0.5"],
    ):
        result = CliRunner().invoke(main, [verb, str(tmp_path / "q.onnx"), str(tmp_path / "out.onnx"), *options])
        assert result.exit_code == 3, result.output
        assert (
            "the weights of the model are quantized ('stem.weight_quantized', ...); transform it before"
            in result.stderr
        )
