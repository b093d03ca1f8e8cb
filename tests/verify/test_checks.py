import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from builders import SPARSE_TENSOR, linear, mask_weights, random_weight
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.backends.base import get_backend
from sift_onnx.errors import ModelReadError, UsageError
from sift_onnx.graphs.constants import MaskedConstant
from sift_onnx.model import Model
from sift_onnx.verify.checks import check_model

ALONE = ["reads", "checker", "shapes", "inference-mode", "runs", "finite", "alone-and-in-batch"]
COMPARED = [*ALONE[:4], "inputs-agree", *ALONE[4:]]
COMPARED += ["reference-runs", "same-outputs", "close-values"]


def scale(factor, *, op="Mul", inner=4, batch="N", out_shape=None, names=("x", "y"), dtype=np.float32):
    """y = op(x, factor), x of batch x inner."""
    source, result = names
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node(op, [source, "factor"], [result], "scale")],
        "scale",
        [helper.make_tensor_value_info(source, element, [batch, inner])],
        [helper.make_tensor_value_info(result, element, out_shape or [batch, inner])],
        [numpy_helper.from_array(np.full(1, factor, dtype), "factor")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def run(tmp_path):
    """Save a model and perhaps a reference, and check them."""

    def save(model, name):
        onnx.save(model, tmp_path / name)
        return tmp_path / name

    def check(model, reference=None, **options):
        second = save(reference, "reference.onnx") if reference is not None else None
        return check_model(save(model, "m.onnx"), second, compile_model=get_backend("onnxruntime").compile, **options)

    return check


def outcome(result):
    return {check.name: check.ok for check in result.checks}


def detail(result, name):
    return next(check.detail for check in result.checks if check.name == name)


def test_sound_model_passes_all_checks_in_order(run):
    result = run(scale(2))
    assert result.ok
    assert [check.name for check in result.checks] == ALONE
    assert all(check.detail for check in result.checks)
    assert result.max_abs_error is None


def test_result_as_json_has_the_fields_relied_on(run):
    document = run(scale(2), scale(2)).to_dict()
    assert list(document) == ["schema", "ok", "checks", "max_abs_error"]
    assert document["schema"] == 1
    assert document["checks"][0].keys() == {"name", "ok", "detail"}


def test_an_output_that_is_no_array_is_a_failed_check(run):
    model = scale(2)
    model.graph.sparse_initializer.append(SPARSE_TENSOR)
    model.graph.output.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, SPARSE_TENSOR.dims))
    for reference in (None, model):
        result = run(model, reference)
        assert not outcome(result)["runs"]
        assert detail(result, "runs") == "output 'v' is a SparseTensor, and not an array"


def test_invalid_model_fails_the_checker_and_does_not_run(run):
    result = run(scale(2, op="NoSuchOp"))
    assert outcome(result) == dict.fromkeys(ALONE, False) | {"reads": True, "shapes": True, "inference-mode": True}
    assert "NoSuchOp" in detail(result, "checker")
    assert detail(result, "finite") == "not run, since runs failed"
    assert all("\n" not in check.detail for check in result.checks)


def test_wrong_output_shape_fails_strict_shape_inference(run):
    result = run(scale(2, out_shape=["N", 5]))
    assert not outcome(result)["shapes"]
    assert "(4) vs (5)" in detail(result, "shapes")


@pytest.mark.parametrize(("factor", "op"), [(np.inf, "Mul"), (np.nan, "Add")])
def test_outputs_that_are_not_finite_fail(run, factor, op):
    result = run(scale(factor, op=op))
    assert outcome(result) == dict.fromkeys(ALONE, True) | {"finite": False}
    assert "output 'y': 4 of 4 values are not finite; at (0, 0)" in detail(result, "finite")


def test_integer_outputs_are_finite(run):
    assert run(scale(3, dtype=np.int64)).ok


def test_equal_reference_passes(run):
    result = run(scale(2), scale(2))
    assert result.ok
    assert [check.name for check in result.checks] == COMPARED
    assert result.max_abs_error == 0


def test_error_within_the_tolerance_passes_and_is_told(run):
    result = run(scale(2.0001), scale(2))
    assert result.ok
    assert 0 < result.max_abs_error < 1e-3


def test_error_beyond_the_tolerance_fails(run):
    result = run(scale(2.5), scale(2))
    assert outcome(result) == dict.fromkeys(COMPARED, True) | {"close-values": False}
    assert "output 'y': 4 of 4 values are off by more than atol 0.0001 + rtol 0.001" in detail(result, "close-values")
    assert result.max_abs_error > 0.1


def test_tolerances_are_absolute_and_relative(run):
    assert run(scale(2.5), scale(2), atol=0, rtol=0.26).ok
    assert run(scale(2.5), scale(2), atol=10, rtol=0).ok
    assert not run(scale(2.5), scale(2), atol=0, rtol=0.24).ok


def test_nan_is_close_to_nothing(run):
    result = run(scale(np.nan), scale(np.nan))
    assert not outcome(result)["close-values"]
    assert result.max_abs_error is None


def test_outputs_of_other_names_fail(run):
    result = run(scale(2), scale(2, names=("x", "z")))
    assert detail(result, "same-outputs") == "outputs y, but those of the reference are z"
    assert detail(result, "close-values") == "not run, since same-outputs failed"


def test_outputs_of_other_shapes_are_named(run):
    other = scale(2, out_shape=["N", 4, 1])
    other.graph.node[0].output[0] = "h"
    other.graph.node.append(helper.make_node("Unsqueeze", ["h", "axes"], ["y"]))
    other.graph.initializer.append(numpy_helper.from_array(np.array([2]), "axes"))
    result = run(scale(2), other)
    assert detail(result, "same-outputs") == "output 'y' has the shape (1, 4), in the reference (1, 4, 1)"


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (scale(2, names=("z", "y")), "inputs 'x', but those of the reference are 'z'"),
        (scale(2, inner=5), "input 'x' has the shape ('N', 4), in the reference ('N', 5)"),
        (scale(2, dtype=np.float64), "input 'x' is float32, in the reference float64"),
    ],
    ids=["name", "shape", "dtype"],
)
def test_inputs_that_do_not_agree_fail_and_the_model_is_still_run(run, other, complaint):
    result = run(scale(2), other)
    assert detail(result, "inputs-agree") == complaint
    assert outcome(result)["finite"]
    assert detail(result, "reference-runs") == "not run, since inputs-agree failed"
    assert not outcome(result)["close-values"]


def test_axis_that_one_of_both_fixes_is_fixed_for_both(run):
    result = run(scale(2, batch="N"), scale(2, batch=3))
    assert result.ok
    assert "(3, 4)" in detail(result, "runs")


def test_dynamic_inner_axis_must_be_given(run):
    with pytest.raises(UsageError, match="`input_shapes=\\{'x': \\(1, N"):
        run(scale(2, inner="width"))
    assert run(scale(2, inner="width"), input_shapes={"x": (2, 7)}).ok


def test_weights_beside_the_model_are_checked_by_its_path(run, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(scale(2), path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert check_model(path, compile_model=get_backend("onnxruntime").compile).ok


def broken_file(kind, folder):
    path = folder / "m.onnx"
    if kind in ("no data", "data outside"):
        inside = folder / "inside"
        inside.mkdir()
        onnx.save(scale(2), inside / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
        if kind == "no data":
            (inside / "m.data").unlink()
        else:
            (inside / "m.data").rename(folder / "m.data")
            content = (inside / "m.onnx").read_bytes()
            model = onnx.ModelProto.FromString(content)
            model.graph.initializer[0].external_data[0].value = "../m.data"
            (inside / "m.onnx").write_bytes(model.SerializeToString())
        return inside / "m.onnx"
    if kind == "folder":
        path.mkdir()
    elif kind == "truncated":
        path.write_bytes(scale(2).SerializeToString()[:-20])
    elif kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("weights: none\n" * 9, encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "truncated", "folder", "no data", "data outside"])
def test_file_that_cannot_be_read_is_one_line(tmp_path, kind):
    with pytest.raises(ModelReadError) as failure:
        check_model(broken_file(kind, tmp_path), compile_model=get_backend("onnxruntime").compile)
    assert "\n" not in str(failure.value)
    assert failure.value.exit_code == 2


def test_reference_that_cannot_be_read(run, tmp_path):
    onnx.save(scale(2), tmp_path / "ok.onnx")
    with pytest.raises(ModelReadError, match=r"gone\.onnx"):
        check_model(tmp_path / "ok.onnx", tmp_path / "gone.onnx", compile_model=get_backend("onnxruntime").compile)


@pytest.mark.parametrize("flags", [(), ("-O",)])
def test_what_the_checker_says_it_has_read_it_has_read(flags, tmp_path):
    """``python -O`` leaves out what stands in assertions."""
    weights = {name: random_weight(256, 256, seed=i) for i, name in enumerate("ab")}
    path = tmp_path / "m.onnx"
    mask_weights(Model.load(linear(weights))).save(path, storage="sparse", external_from=64)
    stored = onnx.load(path, load_external_data=False).graph.sparse_initializer[0]
    start = int({entry.key: entry.value for entry in stored.indices.external_data}["offset"])
    with (tmp_path / "m.onnx.data").open("r+b") as file:
        file.seek(start)
        file.write(np.int64(10**6).tobytes())

    done = subprocess.run(
        [sys.executable, *flags, "-m", "sift_onnx", "check", path, "--json", "-"], capture_output=True, text=True
    )
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    assert not checks["checker"]["ok"]
    assert "'a' is damaged: an index outside" in checks["checker"]["detail"]


def test_a_weight_that_has_not_the_weights_it_declares_fails_the_checker(run, monkeypatch, tmp_path):
    path = tmp_path / "m.onnx"
    mask_weights(Model.load(linear({"a": random_weight(256, 256)}))).save(path, storage="sparse", external_from=64)
    monkeypatch.setattr(MaskedConstant, "nnz", 7)
    result = check_model(path, compile_model=get_backend("onnxruntime").compile)
    assert "'a' has 16384 active weights, and declares 7" in detail(result, "checker")
