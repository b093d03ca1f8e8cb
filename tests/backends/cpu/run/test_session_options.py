"""Sessions as code that was written for onnxruntime makes and runs them: what is honoured, refused and said."""

from __future__ import annotations

import json
import os
import threading
import warnings

import numpy as np
import onnxruntime as ort
import pytest
from builders import linear, random_weight
from nets import Net

import sift_onnx
from sift_onnx.errors import BackendError, UsageError
from sift_onnx.model import Model

MODEL = linear({"a": random_weight(4, 8), "b": random_weight(8, 3, seed=1)})
FEED = {"x": random_weight(2, 4, seed=2)}
Session = sift_onnx.InferenceSession


def options(**settings):
    made = ort.SessionOptions()
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def run_options(**settings):
    made = ort.RunOptions()
    for name, value in settings.items():
        setattr(made, name, value)
    return made


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_call_that_was_written_for_onnxruntime_runs(tmp_path):
    path = tmp_path / "m.onnx"
    Model.load(MODEL).save(path)
    expected = ort.InferenceSession(path, options(), ["CPUExecutionProvider"]).run(None, FEED, run_options())
    for source in (str(path), path, path.read_bytes()):
        session = Session(source, options(intra_op_num_threads=1), ["CPUExecutionProvider"], [{}])
        np.testing.assert_allclose(session.run(None, FEED, run_options())[0], expected[0], atol=1e-5)
    session = Session(path_or_bytes=path, sess_options=None, providers=[("CPUExecutionProvider", {})])
    np.testing.assert_allclose(session.run(["y"], input_feed=FEED, run_options=None)[0], expected[0], atol=1e-5)


def test_threads_come_from_any_of_their_places():
    assert Session(MODEL, 2).threads == 2
    assert Session(MODEL, threads=2).threads == 2
    assert Session(MODEL, options(intra_op_num_threads=2)).threads == 2
    assert Session(MODEL, options(intra_op_num_threads=2), threads=2).threads == 2
    assert Session(MODEL, options()).threads == Session(MODEL).threads


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((2,), {"threads": 1}, "threads are given twice"),
        ((options(intra_op_num_threads=2),), {"threads": 1}, "threads are given twice"),
        ((True,), {}, "sess_options"),
        (("fast",), {}, "sess_options"),
        ((0,), {}, "threads is 0"),
        ((options(optimized_model_filepath="o.onnx"),), {}, "optimized_model_filepath"),
        ((), {"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}, "'CUDAExecutionProvider'"),
        ((), {"providers": [("TensorrtExecutionProvider", {"device_id": 0})]}, "'TensorrtExecutionProvider'"),
        ((), {"providers": "CPUExecutionProvider"}, "list"),
        ((), {"providers": [3]}, "providers"),
        ((), {"providers": ["CPUExecutionProvider"], "provider_options": [{"use_arena": "1"}]}, "use_arena"),
        ((), {"providers": [("CPUExecutionProvider", {"use_arena": "1"})]}, "use_arena"),
        ((), {"providers": ["CPUExecutionProvider"], "provider_options": [{}, {}]}, "2 .*1 provider"),
        ((), {"provider_options": [{}]}, "provider_options"),
        ((), {"disabled_optimizers": ["ConstantFolding"]}, "disabled_optimizers"),
        ((), {"read_config_from_model": 1}, "read_config_from_model"),
        ((), {"colour": "red"}, "unknown argument 'colour'"),
        ((), {"path_or_bytes": MODEL}, "two models"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(arguments, settings, message):
    with pytest.raises(UsageError, match=message):
        Session(MODEL, *arguments, **settings)


def test_a_session_needs_a_model():
    with pytest.raises(UsageError, match="path"):
        Session()


def test_denormals_and_added_providers_are_refused():
    made = ort.SessionOptions()
    made.add_session_config_entry("session.set_denormal_as_zero", "1")
    with pytest.raises(UsageError, match=r"session\.set_denormal_as_zero"):
        Session(MODEL, made)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("graph_optimization_level", ort.GraphOptimizationLevel.ORT_DISABLE_ALL),
        ("execution_mode", ort.ExecutionMode.ORT_PARALLEL),
        ("inter_op_num_threads", 4),
        ("enable_mem_pattern", False),
        ("enable_cpu_mem_arena", False),
        ("log_severity_level", 0),
        ("logid", "mine"),
    ],
)
def test_what_has_no_effect_is_said(name, value):
    with pytest.warns(UserWarning, match=name) as said:
        Session(MODEL, options(**{name: value}))
    assert [warning.filename for warning in said if warning.category is UserWarning] == [__file__]


def test_entries_that_have_no_effect_are_said():
    made = ort.SessionOptions()
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with pytest.warns(UserWarning, match=r"session\.intra_op\.allow_spinning"):
        Session(MODEL, made)


def test_sums_of_bytes_are_exact_where_that_is_asked_for():
    """The entry reaches what onnxruntime runs; kernels are exact with or without it."""
    net = Net(17)
    x = net.input("x", 8, 64, values=np.full((8, 64), 255, np.uint8), declared=[8, 64])
    net.output(net.op("MatMulInteger", x, net.constant(np.full((64, 4), 127, np.int8))))
    model = net.model()
    made = ort.SessionOptions()
    made.add_session_config_entry("session.x64quantprecision", "1")
    session = Session(model, made)
    assert {one.placement for one in session.placements} == {"onnxruntime"}
    np.testing.assert_array_equal(session.run(None, net.feeds)[0], 255 * 127 * 64)


def test_a_log_that_is_to_say_less_says_nothing():
    assert Session(MODEL, options(log_severity_level=3)).run(None, FEED)


def test_profiling_by_options(tmp_path):
    session = Session(MODEL, options(enable_profiling=True, profile_file_prefix=str(tmp_path / "mine")))
    session.run(None, FEED)
    path = session.end_profiling()
    assert os.path.basename(path).startswith("mine_")
    with open(path, encoding="utf-8") as file:
        assert json.load(file)


def test_what_a_session_tells_of_its_settings():
    given = options(intra_op_num_threads=2)
    session = Session(MODEL, given)
    assert session.get_session_options() is given
    assert Session(MODEL, threads=2).get_session_options().intra_op_num_threads == 2
    assert session.get_provider_options() == {provider: {} for provider in session.get_providers()}
    session.set_providers(session.get_providers())
    session.set_providers(["CPUExecutionProvider"])
    with pytest.raises(UsageError, match="CUDA"):
        session.set_providers(["CUDAExecutionProvider"])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (run_options(terminate=True), BackendError, "terminate"),
        ({"terminate": False}, UsageError, "run_options"),
    ],
)
def test_run_options_that_cannot_be_met_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        Session(MODEL, 1).run(None, FEED, given)


@pytest.mark.parametrize(("name", "value"), [("log_severity_level", 0), ("logid", "mine")])
def test_run_options_without_effect_are_said(name, value):
    with pytest.warns(UserWarning, match=name) as said:
        Session(MODEL, 1).run(None, FEED, run_options(**{name: value}))
    assert [warning.filename for warning in said if warning.category is UserWarning] == [__file__]


def finished(session, *arguments):
    """What the callback of run_async was called with."""
    done, seen = threading.Event(), []

    def callback(*what):
        seen.append(what)
        done.set()

    assert session.run_async(*arguments[:2], callback, *arguments[2:]) is None
    assert done.wait(30)
    return seen[0]


def test_a_run_in_the_background_gives_its_results_to_the_callback():
    session, mine = Session(MODEL, 1), object()
    results, data, error = finished(session, ["y"], FEED, mine)
    assert data is mine
    assert error == ""
    assert np.array_equal(results[0], session.run(None, FEED)[0])


def test_a_run_in_the_background_that_fails_tells_the_callback(monkeypatch):
    session = Session(MODEL, 1)

    def fail(*_):
        raise BackendError("it broke")

    monkeypatch.setattr(session._program, "run", fail)
    assert finished(session, None, FEED, None) == ([], None, "it broke")


def test_a_run_in_the_background_refuses_wrong_names_at_once():
    session = Session(MODEL, 1)
    with pytest.raises(UsageError, match="unknown output"):
        session.run_async(["z"], FEED, lambda *_: None, None)
    with pytest.raises(UsageError, match="callback"):
        session.run_async(None, FEED, None, None)
