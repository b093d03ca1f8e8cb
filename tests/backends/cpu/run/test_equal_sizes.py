"""Inputs whose sizes have different names, as torch's newer exporter gives them, against onnxruntime."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime, reasons

import sift_onnx
from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run import opening
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import BackendError, UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

WIDTH = 6
BATCHES = ({"n": 2, "m": 2}, {"n": 1, "m": 1}, {"n": 16, "m": 16}, {"n": 3, "m": 3})


def layers(net: SparseNet, first: Any = "n", second: Any = "m") -> tuple[str, str]:
    """``[n, t, WIDTH]`` and ``[m, t, WIDTH]``, each behind a layer."""
    made = []
    for name, batch in (("x", first), ("y", second)):
        x = net.input(name, 2, 3, 5, declared=[batch, "t", 5])
        made.append(net.dense(x, 5, WIDTH, name=f"{name} before"))
    return made[0], made[1]


def summed(first: Any = "n", second: Any = "m") -> SparseNet:
    net = SparseNet()
    return ended(net, net.op("Add", *layers(net, first, second), name="sum"))


def ended(net: SparseNet, x: str) -> SparseNet:
    net.output(net.dense(net.op("Relu", x), WIDTH, 4, name="after"))
    return net


def joined(net: SparseNet) -> str:
    return str(net.op("Concat", *layers(net), axis=1))


def multiplied(net: SparseNet) -> str:
    x, y = layers(net)
    return str(net.op("MatMul", net.op("MatMul", x, net.op("Transpose", y, perm=[0, 2, 1])), y))


def expanded(net: SparseNet) -> str:
    x, y = layers(net)
    return str(net.op("Mul", net.op("Expand", x, net.op("Shape", y)), y))


def reshaped(net: SparseNet) -> str:
    x, y = layers(net)
    return str(net.op("Mul", net.op("Reshape", x, net.op("Shape", y)), y))


def feeds_of(n: int, m: int, t: int = 3, other: int | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(n + 31 * m)
    shapes = {"x": (n, t, 5), "y": (m, t if other is None else other, 5)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def groups_of(program: CpuProgram) -> list[list[str]]:
    (model,) = program._models.values()
    return [[axis.name for axis in group] for group in model.opened.equal.groups]


@pytest.mark.parametrize("operator", [joined, multiplied, expanded, reshaped])
def test_what_meets_is_in_one_region(operator: Callable[[SparseNet], str]) -> None:
    net = SparseNet()
    ended(net, operator(net))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for sizes in BATCHES:
        assert_same_as_onnxruntime(model, feeds_of(**sizes), program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1
    assert groups_of(program) == [["n", "m"]]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 1)), min_size=2, max_size=6))
def test_equal_and_broadcast_batches_in_turn(requests: list[tuple[int, bool, int]]) -> None:
    model = summed().model()
    program = CpuProgram(model, ONE_THREAD)
    assert len(program.parts) == 1
    for size, is_equal, which in requests:
        sizes = {"n": size, "m": size} if is_equal else {"n": (1, size)[which], "m": (size, 1)[which]}
        assert_same_as_onnxruntime(model, feeds_of(**sizes), program)
        assert ("planned for any sizes" in reasons(program)["x before"]) == (sizes["n"] != sizes["m"])


def test_placements_say_what_the_plan_is_for() -> None:
    program = CpuProgram(summed().model(), ONE_THREAD)
    assert "planned for equal sizes 'n', 'm'" in reasons(program)["after"]
    program.run(feeds_of(1, 4))
    said = "planned for any sizes: 'm' is 4 in input 'y', and 'n' is 1 in input 'x'"
    assert said in reasons(program)["after"]
    program.run(feeds_of(4, 4))
    assert said not in reasons(program)["after"]
    assert "planned for equal sizes 'n', 'm'" in reasons(program)["after"]
    profile = program.profile(feeds_of(1, 4))
    assert any(said in node.reason for node in profile.nodes)


@pytest.mark.parametrize("operator", [None, joined, multiplied])
def test_sizes_that_do_not_fit_are_named_and_the_next_request_runs(operator: Callable[[SparseNet], str] | None) -> None:
    net = SparseNet()
    model = (summed() if operator is None else ended(net, operator(net))).model()
    program = CpuProgram(model, ONE_THREAD)
    assert_same_as_onnxruntime(model, feeds_of(2, 2), program)
    for _ in range(2):
        with pytest.raises(BackendError, match="'m' is 3 in input 'y', and 'n' is 2 in input 'x'"):
            program.run(feeds_of(2, 3))
    with pytest.raises(UsageError, match="'t' is 3 in input 'x'"):
        program.run(feeds_of(2, 2, other=4))
    assert_same_as_onnxruntime(model, feeds_of(2, 2), program)


def test_a_join_of_what_does_not_fit_is_no_broadcast() -> None:
    net = SparseNet()
    model = ended(net, joined(net)).model()
    with pytest.raises(BackendError, match="'m' is 1 in input 'y', and 'n' is 2 in input 'x'"):
        CpuProgram(model, ONE_THREAD).run(feeds_of(2, 1))


def test_axes_without_a_name_may_be_equal_too() -> None:
    model = summed("n", None).model()
    program = CpuProgram(model, ONE_THREAD)
    for n, m in ((2, 2), (1, 3), (3, 3)):
        assert_same_as_onnxruntime(model, feeds_of(n, m), program)
    program.run(feeds_of(2, 2))
    assert len(program.parts) == 1
    assert groups_of(program) == [["n", "y[0]"]]


def test_nothing_is_taken_for_equal_where_that_leaves_as_many_parts() -> None:
    net = SparseNet()
    x, y = layers(net)
    ended(net, net.op("Atan", net.op("Add", net.op("Atan", x), net.op("Atan", y))))
    program = CpuProgram(net.model(), ONE_THREAD)
    assert groups_of(program) == []
    assert not any("planned for" in reason for reason in reasons(program).values())


def test_a_batch_and_a_length_of_one_input_are_two_sizes() -> None:
    net = SparseNet()
    x = net.dense(net.input("x", 2, 3, 5, declared=["n", "t", 5]), 5, WIDTH)
    ended(net, net.op("Add", x, net.op("Transpose", x, perm=[1, 0, 2])))
    assert groups_of(CpuProgram(net.model(), ONE_THREAD)) == []


def test_sizes_that_are_given_and_differ_are_not_taken_for_equal() -> None:
    options = CompileOptions(threads=1, deterministic=True, input_shapes={"x": (1, 3, 5), "y": (4, 3, 5)})
    model = summed().model()
    program = CpuProgram(model, options)
    assert groups_of(program) == []
    assert_same_as_onnxruntime(model, feeds_of(1, 4), program)


def test_the_session_reports_the_names_of_the_file() -> None:
    model = summed().model()
    session, other = sift_onnx.InferenceSession(model, threads=1), ort.InferenceSession(model.SerializeToString())
    assert groups_of(session._program) == [["n", "m"]]
    assert [(one.name, one.shape) for one in session.get_inputs()] == [
        (one.name, one.shape) for one in other.get_inputs()
    ]
    assert [one.name for one in session.get_outputs()] == [one.name for one in other.get_outputs()]


def test_a_session_from_a_packed_folder_knows_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening._shared, "get", lambda *_: None)
    model = summed().model()
    onnx.save(model, tmp_path / "m.onnx")
    for _ in range(2):
        options = CompileOptions(threads=1, deterministic=True, packed_cache=tmp_path / "packed")
        program = CpuProgram(str(tmp_path / "m.onnx"), options)
        assert groups_of(program) == [["n", "m"]]
        for n, m in ((2, 2), (1, 3), (3, 3)):
            assert_same_as_onnxruntime(model, feeds_of(n, m), program)


def test_a_file_that_was_replaced_is_not_read_for_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(summed().model(), path)
    program = CpuProgram(str(path), ONE_THREAD)
    path.unlink()
    onnx.save(summed("n", "n").model(), path)
    program.run(feeds_of(2, 2))
    with pytest.raises(BackendError, match="has changed since the session was created"):
        program.run(feeds_of(1, 3))


def test_external_data_that_was_replaced_is_not_read_for_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(summed().model(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    program = CpuProgram(str(path), ONE_THREAD)
    program.run(feeds_of(2, 2))
    data = (tmp_path / "m.data").read_bytes()
    (tmp_path / "other").write_bytes(data[::-1])
    (tmp_path / "other").replace(tmp_path / "m.data")
    with pytest.raises(BackendError, match="has changed since the session was created"):
        program.run(feeds_of(1, 3))


def test_a_copy_is_read_for_other_sizes_where_the_first_file_is_gone(tmp_path: Path) -> None:
    pool, programs = sift_onnx.ThreadPool(1), []
    for name in ("first.onnx", "copy.onnx"):
        onnx.save(summed().model(), tmp_path / name)
        programs.append(sift_onnx.InferenceSession(tmp_path / name, pool=pool, packed_cache=tmp_path / "packed"))
    (tmp_path / "first.onnx").unlink()
    feeds = feeds_of(1, 3)
    wanted = CpuProgram(summed().model(), ONE_THREAD).run(feeds)
    for program in programs:
        for name, made in zip(wanted, program.run(list(wanted), feeds), strict=True):
            np.testing.assert_allclose(made, wanted[name], rtol=1e-5, atol=1e-5)


def test_threads_open_the_other_plan_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = summed().model()
    program = CpuProgram(model, ONE_THREAD)
    before, opened = program.weight_bytes, []
    read = opening._Opener.read
    monkeypatch.setattr(opening._Opener, "read", lambda self: opened.append(self) or read(self))
    workers = [threading.Thread(target=program.run, args=(feeds_of(1, 4),)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(opened) == 1
    assert program.weight_bytes > before
    program.release_idle()
    assert_same_as_onnxruntime(model, feeds_of(1, 4), program)
