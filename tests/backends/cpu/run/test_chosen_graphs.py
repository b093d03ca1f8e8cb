"""Sessions on models that choose between two graphs by an input: both in kernels, and each run takes one."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
from decoder_nets import BATCH, LAYERS, decoder, llama
from merged_nets import CONDITION, merged, with_other_logits
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.session import InferenceSession
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

_SESSIONS: list[InferenceSession] = []


@cache
def model() -> onnx.ModelProto:
    return merged(decoder("llama"), with_other_logits(decoder("llama")))


def session() -> InferenceSession:
    """Made within a test, in which every region pays."""
    if not _SESSIONS:
        _SESSIONS.append(InferenceSession(model(), threads=1))
    return _SESSIONS[0]


def feeds(value: bool, sequences: int = BATCH) -> dict[str, np.ndarray]:
    own = {name: array[:sequences] for name, array in llama().feeds.items()}
    return own | {CONDITION: np.array([value])}


def test_each_run_takes_the_graph_that_is_asked_for() -> None:
    reference = OnnxRuntimeProgram(model(), ONE_THREAD)
    names = [output.name for output in session().get_outputs()]
    for value in (True, False, True):
        wanted = reference.run(feeds(value))
        for name, own in zip(names, session().run(None, feeds(value)), strict=True):
            np.testing.assert_allclose(own, wanted[name], rtol=0, atol=2e-6 * np.abs(wanted[name]).max(), err_msg=name)
    assert names == [info.name for info in model().graph.output]


def test_both_graphs_run_in_kernels() -> None:
    program = session()._program
    for value in (True, False):
        session().run(["logits"], feeds(value))
        regions = [part for part in program.parts if isinstance(part, RegionProgram)]
        assert [len(region.region.caches) for region in regions] == [LAYERS]
    assert "If" not in {placement.op for placement in session().placements}
    assert {placement.placement for placement in session().placements if placement.op == "MatMul"} == {"kernels"}
    assert session().get_providers() == ["kernels", "onnxruntime"]


def test_new_tokens_are_written_where_the_past_is_bound() -> None:
    given = feeds(True)
    wanted = dict(zip([o.name for o in session().get_outputs()], session().run(None, given), strict=True))
    binding = session().io_binding()
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    room = {name: np.zeros_like(array) for name, array in wanted.items()}
    for name, array in room.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    session().run_with_iobinding(binding)
    for name, array in room.items():
        np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda own: {name: array for name, array in own.items() if name != CONDITION}, CONDITION),
        (lambda own: own | {CONDITION: np.array([True, False])}, CONDITION),
        (lambda own: own | {CONDITION: np.array([1])}, CONDITION),
    ],
)
def test_what_does_not_choose_is_named(change, said) -> None:
    with pytest.raises(UsageError, match=said):
        session().run(None, change(feeds(True)))


def test_where_kernels_have_nothing_onnxruntime_has_the_choice() -> None:
    def turned(op: str) -> onnx.ModelProto:
        ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in ("x", "y")]
        graph = onnx.helper.make_graph([onnx.helper.make_node(op, ["x"], ["y"], op)], op, ends[:1], ends[1:])
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)

    made = InferenceSession(merged(turned("Neg"), turned("Abs")), threads=1)
    assert [(placement.op, placement.placement) for placement in made.placements] == [("If", "onnxruntime")]
    x = np.array([-1, 2, 3], np.float32)
    for value, wanted in ((True, -x), (False, abs(x))):
        np.testing.assert_array_equal(made.run(None, {"x": x, CONDITION: np.array([value])})[0], wanted)


def test_what_known_sizes_decide_is_not_chosen_in_a_run() -> None:
    """As torch exports ``tile``, by a number of axes; what is behind it would have no shape."""
    net = SparseNet()
    x = net.dense(net.input("x", 2, 5, 4, declared=["n", 5, 4]), 4, 6)
    more = net.op("Greater", net.op("Size", net.op("Shape", x)), net.constant(2, dtype=np.int64))
    names = {"then_branch": ("Relu", "then"), "else_branch": ("Neg", "other")}
    branches = {
        key: onnx.helper.make_graph(
            [onnx.helper.make_node(op, [x], [made])],
            op,
            [],
            [onnx.helper.make_tensor_value_info(made, onnx.TensorProto.FLOAT, None)],
        )
        for key, (op, made) in names.items()
    }
    net.output(net.dense(net.op("If", more, **branches), 6, 4))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    floats = {placement.op: placement.placement for placement in program.placements}
    assert floats["Relu"] == floats["MatMul"] == "kernels"
    assert "If" not in floats
