"""Programs whose parts take as long as the tests say: where they run, and what they say about it."""

from __future__ import annotations

import os
import re

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from sparse_nets import SparseNet, places, reasons

import sift_onnx
from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.lower import plan
from sift_onnx.backends.cpu.run import opening, trials, whole_model
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.trace import trace_events
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.graphs.constants import is_masked, nbytes_of
from sift_onnx.model import Model
from sift_onnx.passes import Prune
from sift_onnx.shapes.random_inputs import random_feeds

ONE_THREAD = CompileOptions(threads=1)
SAID = "timed: 3e+03 ms in the kernels against 2e+03 ms in onnxruntime"


class Clock:
    """Seconds of a region's run and of a session's; the estimates leave all open."""

    def __init__(self, monkeypatch, region, session):
        self.now, self.region, self.session = 0.0, region, session
        monkeypatch.setattr(plan, "why_not_profitable", lambda *_: "")
        for module in (opening, trials):
            monkeypatch.setattr(module, "is_certain", lambda *_: False)
        monkeypatch.setattr(opening, "clock_of", lambda _: lambda: self.now)
        monkeypatch.setattr(RegionProgram, "run", self._taking("region", RegionProgram.run))
        monkeypatch.setattr(OnnxRuntimeProgram, "_run", self._taking("session", OnnxRuntimeProgram._run))

    def _taking(self, kind, run):
        def taking(*arguments):
            self.now += getattr(self, kind)
            return run(*arguments)

        return taking


@pytest.fixture
def slow_kernels(monkeypatch):
    return Clock(monkeypatch, 3.0, 2.0)


@pytest.fixture
def net():
    net = SparseNet()
    x = net.op("Relu", net.conv(net.input("x", 2, 4, 8, 8, declared=["n", 4, 8, 8]), 4, 6, 3, name="conv"), name="act")
    net.output(net.dense(net.op("Flatten", net.op("GlobalAveragePool", x)), 6, 5, name="logits"))
    return net


def test_the_whole_model_runs_in_onnxruntime_where_that_is_faster(slow_kernels, net):
    for source in (net.model(), Model.load(net.model())):
        made = CpuProgram(source, ONE_THREAD)
        assert set(places(made).values()) == {"kernels"}
        assert made.verdict == ""
        wanted = OnnxRuntimeProgram(net.model(), ONE_THREAD).run(net.feeds)
        for _ in range(2):
            np.testing.assert_array_equal(made.run(net.feeds)["logits"], wanted["logits"])
        assert set(places(made).values()) == {"onnxruntime"}
        assert set(reasons(made).values()) == {made.verdict} == {SAID}


def test_profiles_and_traces_are_of_what_runs(slow_kernels, net):
    made = CpuProgram(net.model(), ONE_THREAD)
    assert {node.placement for node in made.profile(net.feeds).nodes} == {"onnxruntime"}
    _, times = made.run_timed(net.feeds)
    assert [event["name"] for event in trace_events(times) if event["cat"] == "Part"] == ["part 0 (onnxruntime)"]


def test_each_class_of_shapes_is_timed_by_itself(slow_kernels, net):
    made = CpuProgram(net.model(), ONE_THREAD)
    made.run(net.feeds)
    slow_kernels.region = 1.0
    made.run(random_feeds(made.inputs, 16))
    assert set(places(made).values()) == {"kernels"}
    # Planning took some of the second, by another clock.
    said = r"timed: (1e\+03|9\d\d) ms in the kernels, less than onnxruntime's time for other sizes lets expect"
    assert re.search(f"; {said}$", reasons(made)["conv"])
    made.run(net.feeds)
    assert set(places(made).values()) == {"onnxruntime"}


def test_a_file_that_has_changed_is_not_opened(slow_kernels, net, tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    onnx.save(net.model(), path)
    assert CpuProgram(path, ONE_THREAD).run(net.feeds)
    # Where a session is opened only once requests have come.
    monkeypatch.setattr(opening, "is_certain", lambda *_: True)
    made = CpuProgram(path, ONE_THREAD)
    other = CpuProgram(path, ONE_THREAD)
    made.run(net.feeds)
    assert made.verdict == SAID
    os.utime(path, ns=(1, 1))
    other.run(net.feeds)
    assert set(places(other).values()) == {"kernels"}
    assert other.verdict == f"not timed against onnxruntime: {str(path)!r} has changed since the session was created"


def test_a_model_from_memory_is_not_held_where_the_kernels_look_faster(slow_kernels, net, monkeypatch):
    monkeypatch.setattr(opening, "is_certain", lambda *_: True)
    made = CpuProgram(net.model(), ONE_THREAD)
    made.run(net.feeds)
    assert set(places(made).values()) == {"kernels"}
    assert "the model came from memory" in made.verdict


def test_nothing_is_timed_where_results_must_be_deterministic(slow_kernels, net):
    options = ort.SessionOptions()
    options.use_deterministic_compute = True
    session = sift_onnx.InferenceSession(net.model(), options, threads=1)
    session.run(None, net.feeds)
    assert session.get_providers() == ["kernels"]
    timed = sift_onnx.InferenceSession(net.model(), threads=1)
    timed.run(None, net.feeds)
    assert timed.get_providers() == ["onnxruntime"]


def test_regions_that_may_pay_stay_only_where_they_are_timed(monkeypatch, net):
    slacks = []

    def why_not_profitable(steps, dims, inputs, outputs, setting, is_alone):
        slacks.append(setting.slack)
        return "" if setting.slack > 1 else "slower"

    monkeypatch.setattr(plan, "why_not_profitable", why_not_profitable)
    monkeypatch.setattr(trials, "is_certain", lambda *_: True)
    assert "kernels" in places(CpuProgram(net.model(), ONE_THREAD)).values()
    assert slacks == [1.0, 2.0]
    exact = CpuProgram(net.model(), CompileOptions(threads=1, deterministic=True))
    assert "kernels" not in places(exact).values()


def test_weights_that_are_stored_sparse_are_made_dense_only_where_they_are_few(slow_kernels, tmp_path, monkeypatch):
    net = SparseNet()
    net.density = 1.0
    x = net.conv(net.input("x", 2, 8, 8, 8, declared=["n", 8, 8, 8]), 8, 16, 3)
    net.output(net.conv(net.conv(x, 16, 16, 3), 16, 4, 1))
    path = tmp_path / "m.onnx"
    Prune(0.8)(Model.load(net.model())).model.save(path, storage="sparse")
    held = [constant for constant in Model.load(path).initializers().values() if is_masked(constant)]
    assert held
    nbytes = sum(map(nbytes_of, held))
    for most, place in ((nbytes, "onnxruntime"), (nbytes - 1, "kernels")):
        monkeypatch.setattr(whole_model, "_MOST_DENSIFIED", most)
        made = CpuProgram(path, ONE_THREAD)
        made.run(net.feeds)
        assert set(places(made).values()) == {place}


def test_wrong_requests_are_refused_after_right_ones(slow_kernels, net):
    made = CpuProgram(net.model(), ONE_THREAD)
    made.run(net.feeds)
    for wrong in ({}, {"x": net.feeds["x"][:, :3]}, {"x": net.feeds["x"].astype(np.float64)}, {"y": net.feeds["x"]}):
        with pytest.raises(sift_onnx.errors.UsageError):
            made.run(wrong)
