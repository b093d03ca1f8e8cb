"""Models whose activations, weights and caches are halves: in the kernels, which compute in float32."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
from decoder_nets import LAYERS, SPELLINGS, decoder, llama
from half_nets import halved, rounded, with_half_caches
from nets import Net
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.base import Program
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.session import InferenceSession
from sift_onnx.backends.decoding.decoder import Decoder
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.half_precision import in_float32
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import UsageError
from sift_onnx.model import Model

pytestmark = pytest.mark.usefixtures("every_region_pays")

PROMPTS = [[3, 5, 7], [1], [2, 9, 4, 4, 11]]
BFLOAT16 = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
_FLOAT16 = onnx.TensorProto.FLOAT16
ONE_FIRST = ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in SPELLINGS if name != "llama")]

_SESSIONS: list[InferenceSession] = []


@cache
def model() -> onnx.ModelProto:
    return halved(decoder("llama"))


def session() -> InferenceSession:
    """Made within a test, in which every region pays."""
    if not _SESSIONS:
        _SESSIONS.append(InferenceSession(model(), threads=1))
    return _SESSIONS[0]


def feeds(kind: type = np.float16) -> dict[str, np.ndarray]:
    given = llama().feeds
    return {name: array.astype(kind) if array.dtype == np.float32 else array for name, array in given.items()}


def tokens_of(made: Decoder) -> list[list[int]]:
    return list(made.generate(PROMPTS, 8))


@pytest.mark.parametrize("spelling", ONE_FIRST)
def test_a_decoder_of_halves_is_two_parts_and_has_onnxruntimes_tokens(spelling: str) -> None:
    halves = halved(decoder(spelling))
    made = Decoder(halves, 1)
    assert [isinstance(part, RegionProgram) for part in made.program.parts] == [False, True]
    assert len(made.program.parts[1].region.caches) == LAYERS
    assert tokens_of(made) == tokens_of(Decoder(halves, 1, backend="onnxruntime"))


def test_the_cache_of_a_decoder_stays_in_float32_and_in_place() -> None:
    made = Decoder(model(), 1)
    program, places = made.program, []

    class Watched(Program):
        threads, caches, wide_caches = 1, program.caches, program.wide_caches

        def run(self, given, into):
            outputs = program.run(given, into)
            places.append((given["past_key_values.0.key"], outputs["present.0.key"]))
            return outputs

    made._program = Watched()
    list(made.generate([1, 2, 3], 6))
    assert {array.dtype for pair in places for array in pair} == {np.dtype(np.float32)}
    assert all(past.ctypes.data == present.ctypes.data for past, present in places[1:])


def test_a_session_takes_and_gives_halves() -> None:
    wanted = OnnxRuntimeProgram(model(), ONE_THREAD).run(feeds())
    outputs = session().run(None, feeds())
    for info, own in zip(session().get_outputs(), outputs, strict=True):
        assert info.type == "tensor(float16)"
        assert own.dtype == np.float16
        reference = wanted[info.name].astype(np.float32)
        np.testing.assert_allclose(own, reference, rtol=0, atol=4e-3 * np.abs(reference).max(), err_msg=info.name)
    assert {spec.type for spec in session().get_inputs()} == {"tensor(float16)", "tensor(int64)"}


def test_results_are_those_of_float32_rounded_once() -> None:
    exact = OnnxRuntimeProgram(rounded(decoder("llama"), "float16"), ONE_THREAD)
    wanted = exact.run({n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in feeds().items()})
    for info, own in zip(session().get_outputs(), session().run(None, feeds()), strict=True):
        reference = wanted[info.name]
        np.testing.assert_allclose(own, reference, rtol=2**-10, atol=1e-5 * np.abs(reference).max(), err_msg=info.name)


def test_caches_that_are_fed_in_float32_are_returned_so_and_other_inputs_are_not_taken() -> None:
    program = CpuProgram(model(), ONE_THREAD)
    given = feeds() | {name: array for name, array in llama().feeds.items() if name in program.wide_caches}
    outputs = program.run(given)
    assert {name: array.dtype.name for name, array in outputs.items()} == {
        name: "float16" if name == "logits" else "float32" for name in outputs
    }
    with pytest.raises(UsageError, match=r"'past_key_values\.0\.key' is float64, but the model takes float16"):
        program.run(feeds() | {"past_key_values.0.key": given["past_key_values.0.key"].astype(np.float64)})


def test_caches_of_halves_around_a_graph_of_float32_are_in_kernels() -> None:
    mixed = with_half_caches(decoder("llama"))
    made = Decoder(mixed, 1)
    assert len(made.program.parts[1].region.caches) == LAYERS
    assert tokens_of(made) == tokens_of(Decoder(mixed, 1, backend="onnxruntime"))
    wanted = OnnxRuntimeProgram(mixed, ONE_THREAD).run(given := feeds())
    for name, own in CpuProgram(mixed, ONE_THREAD).run(given).items():
        assert own.dtype == wanted[name].dtype
        np.testing.assert_allclose(own, wanted[name], rtol=2**-10, atol=1e-5, err_msg=name)


def test_matrices_that_a_graph_of_float32_casts_itself_stay_halves() -> None:
    net = SparseNet(17)
    rng = np.random.default_rng(0)
    values = rng.standard_normal((64, 64)) * (rng.random((64, 64)) < 0.3)
    x = net.input("x", values=np.ones((4, 64), np.float16))
    operands = (net.op("Cast", name, to=onnx.TensorProto.FLOAT) for name in (x, net.constant(values, dtype=np.float16)))
    net.output(net.op("MatMul", *operands), 4, 64)
    (region,) = CpuProgram(net.model(), ONE_THREAD).parts
    assert [step.spec.weights.values for step in region.region.steps] == ["float16"]


def test_bfloat16_runs_where_onnxruntime_has_no_operators() -> None:
    made = Decoder(halved(decoder("llama"), "bfloat16"), 1)
    assert len(made.program.parts[1].region.caches) == LAYERS
    assert tokens_of(made) == tokens_of(Decoder(rounded(decoder("llama"), "bfloat16"), 1, backend="onnxruntime"))
    outputs = made.program.run(feeds(BFLOAT16))
    assert {array.dtype for array in outputs.values()} == {np.dtype(BFLOAT16)}


def mlp() -> SparseNet:
    net = SparseNet(17)
    h = net.op("Relu", net.dense(net.input("x", 4, 64), 64, 96))
    net.output(net.op("Add", net.dense(h, 96, 64), net.weight(64, fan_in=9), name="y"), 4, 64)
    return net


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_matrices_stay_halves_in_the_kernels(kind: str) -> None:
    net = mlp()
    program = CpuProgram(halved(net.model(), kind), ONE_THREAD)
    (region,) = program.parts
    values = [s.spec.weights.values for s in region.region.steps if hasattr(s.spec, "weights")]
    assert values == [kind, kind]
    x = net.feeds["x"].astype(onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, kind.upper())))
    wanted = OnnxRuntimeProgram(rounded(net.model(), kind), ONE_THREAD).run({"x": x.astype(np.float32)})["y"]
    own = program.run({"x": x})["y"].astype(np.float32)
    np.testing.assert_allclose(own, wanted, rtol=2**-7 if kind == "bfloat16" else 2**-10, atol=1e-5)


def test_casts_between_floats_and_types_in_attributes_are_widened() -> None:
    net = SparseNet(17)
    h = net.op("Exp", net.op("Cast", net.input("x", 4, 64), to=onnx.TensorProto.FLOAT, name="up"))
    one = onnx.helper.make_tensor("one", onnx.TensorProto.FLOAT, [1], [1.0])
    ones = net.op("ConstantOfShape", net.constant([4, 64], dtype=np.int64), value=one)
    h = net.dense(net.op("Add", net.op("Cast", h, to=onnx.TensorProto.FLOAT, name="down"), ones), 64, 64)
    net.output(net.op("Cast", h, to=onnx.TensorProto.FLOAT, name="y"), 4, 64)
    model = halved(net.model())
    up = next(node for node in model.graph.node if node.name == "up")
    up.attribute[0].i = onnx.TensorProto.FLOAT
    x = net.feeds["x"].astype(np.float16)
    wanted = OnnxRuntimeProgram(model, ONE_THREAD).run({"x": x})["y"]
    own = CpuProgram(model, ONE_THREAD).run({"x": x})["y"]
    assert own.dtype == np.float16
    np.testing.assert_allclose(own, wanted, rtol=0, atol=4e-3 * float(np.abs(wanted).max()))


def test_graphs_with_operators_of_other_domains_keep_their_halves() -> None:
    net = Net()
    net.output(net.dense(net.op("Strange", net.input("x", 4, 64), domain="custom.example"), 64, 64), 4, 64)
    assert in_float32(GraphView(Model.load(halved(net.model())))) is None


def test_graphs_with_nodes_that_have_graphs_keep_their_halves_and_say_so() -> None:
    net = SparseNet(17)
    x = net.input("x", 4, 64)
    h = net.op("MatMul", net.op("Cast", x, to=_FLOAT16), net.constant(np.eye(64), dtype=np.float16), name="half")
    y = net.dense(net.op("Cast", h, to=onnx.TensorProto.FLOAT), 64, 64, name="full")
    bodies = {}
    for branch, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
        made = onnx.helper.make_tensor_value_info(branch, onnx.TensorProto.FLOAT, [4, 64])
        bodies[branch] = onnx.helper.make_graph([onnx.helper.make_node(op, [y], [branch])], branch, [], [made])
    total = net.op("Cast", net.op("ReduceSum", x, keepdims=0), to=onnx.TensorProto.BOOL)
    net.output(net.op("If", total, name="y", **bodies), 4, 64)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    found = {placement.name: placement for placement in program.placements}
    assert found["full"].placement == "kernels"
    assert found["half"].placement == "onnxruntime"
    assert "is float16; the kernels are for float32" in found["half"].reason
