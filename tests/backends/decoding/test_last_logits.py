"""The logits of the last token only: the same numbers, of a graph that computes no others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from decoder_families import FAMILIES
from decoder_nets import DEPTH, HEADS, KV_HEADS, LAYERS, SPELLINGS, VOCABULARY, WIDTH, DecoderNet, decoder
from exported_decoders import exported_decoder
from onnx import TensorProto, helper

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.decoding.decoder import Decoder
from sift_onnx.backends.decoding.last_logits import with_last_logits
from sift_onnx.backends.decoding.signature import DecoderSignature
from sift_onnx.backends.decoding.step_inputs import Progress
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.model import Model

MODELS = {name: lambda name=name: decoder(name) for name in SPELLINGS} | {
    name: lambda make=make: make().model() for name, make in FAMILIES.items()
}


def cut_of(model: onnx.ModelProto) -> Model | None:
    loaded = Model.load(model)
    return with_last_logits(loaded, DecoderSignature.of(loaded.skeleton()))


def ends(model: Model) -> dict[str, list[str]]:
    """Operators that read what is cut to the last token, by the operator that made it."""
    return {
        (node.inputs[0].inputs[0].op if node.inputs[0].inputs else ""): [
            reader.op for reader in node.outputs[0].outputs
        ]
        for node in model.graph.nodes
        if node.name.endswith(": last token")
    }


def feeds_of(model: onnx.ModelProto, new: int, past: int, batch: int):
    """Inputs of a step, with a random cache."""
    signature = DecoderSignature.of(model)
    rng = np.random.default_rng(new)
    progress = Progress(np.full(batch, past or new), past or new, signature.pads_left, done=past)
    feeds = signature.inputs.feeds(rng.integers(0, VOCABULARY, (batch, new)), progress)
    feeds |= {pair.past: rng.standard_normal(pair.sizes(batch, past)).astype(np.float32) for pair in signature.pairs}
    for info in model.graph.input:
        if info.name in signature.given:
            shape = [dim.dim_value or batch for dim in info.type.tensor_type.shape.dim]
            is_mask = info.type.tensor_type.elem_type == TensorProto.INT64
            feeds[info.name] = np.ones(shape, np.int64) if is_mask else rng.standard_normal(shape).astype(np.float32)
    return feeds


def same_logits(model: onnx.ModelProto, cut: Model, *steps: tuple[int, int, int]) -> None:
    """Steps are (new tokens, past tokens, sequences)."""
    proto = cut.to_proto()
    if all(node.op_type != "SimplifiedLayerNormalization" for node in proto.graph.node):  # onnxruntime's own
        onnx.checker.check_model(proto, full_check=True)
    whole = OnnxRuntimeProgram(model, CompileOptions(1))
    programs = OnnxRuntimeProgram(proto, CompileOptions(1)), CpuProgram(cut, CompileOptions(1))
    for new, past, batch in steps:
        feeds = feeds_of(model, new, past, batch)
        wanted = whole.run(feeds)
        for program in programs:
            found = program.run(feeds)
            assert found.keys() == wanted.keys()
            assert found["logits"].shape == (batch, 1, VOCABULARY)
            for name, array in wanted.items():
                own = array[:, -1:] if name == "logits" else array
                np.testing.assert_allclose(found[name], own, rtol=0, atol=3e-6 * np.abs(array).max(), err_msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_cache_are_the_whole_models(name: str) -> None:
    model = MODELS[name]()
    cut = cut_of(model)
    assert cut is not None
    same_logits(model, cut, (7, 0, 2), (3, 4, 1), (1, 5, 2))


@pytest.mark.parametrize("name", SPELLINGS)
def test_all_behind_the_last_attention_is_of_one_token(name: str) -> None:
    cut = cut_of(decoder(name))
    assert cut is not None
    assert sorted(map(sorted, ends(cut).values())) in (
        [["Add"], ["MatMul"]],
        [["MatMul"], ["SkipSimplifiedLayerNormalization"]],
    )


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_decoder_is_as_many_parts_as_before(name: str) -> None:
    cut = cut_of(decoder(name))
    assert cut is not None
    assert len(CpuProgram(cut, CompileOptions(1)).parts) == len(CpuProgram(decoder(name), CompileOptions(1)).parts)


@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_exports_of_torch(tmp_path, dynamo: bool) -> None:
    model = exported_decoder(tmp_path, dynamo)
    cut = cut_of(model)
    assert cut is not None
    assert ends(cut)
    prompts = [[1, 2, 3, 4], [5]]
    tokens = [list(Decoder(model, 1, backend=backend).generate(prompts, 6)) for backend in ("cpu", "onnxruntime")]
    assert tokens[0] == tokens[1]


def head_of(add, *shape: int | str) -> onnx.ModelProto:
    """A decoder whose nodes behind the last norm ``add`` makes: it takes the net and the norm."""
    net = DecoderNet(18)
    net.ends = lambda x: x  # type: ignore[method-assign]
    x, mask = net.embedded(), net.added_mask()
    for layer in range(LAYERS):
        q = net.parted(net.linear(x, HEADS * DEPTH), HEADS)
        k, v = (net.parted(net.linear(x, KV_HEADS * DEPTH), KV_HEADS) for _ in range(2))
        x = net.op("Add", x, net.linear(net.joined(net.attended(layer, q, k, v, mask)), WIDTH))
    net.output("logits", *(shape or ("batch", "sequence", VOCABULARY)))
    net.op("Identity", add(net, net.rms_norm(x)), name="logits")
    return net.model()


def product(net: DecoderNet, x: str) -> str:
    return str(net.op("MatMul", x, net.weight(WIDTH, VOCABULARY)))


def capped(net: DecoderNet, x: str) -> str:
    made = net.op("Tanh", net.op("Div", product(net, x), net.constant(30.0)))
    return str(net.op("Mul", made, net.constant(30.0)))


def tied(net: DecoderNet, x: str) -> str:
    return str(net.op("MatMul", x, net.op("Transpose", "embedding", perm=[1, 0])))


def halved(net: DecoderNet, x: str) -> str:
    first, second = net.op("Split", product(net, x), axis=-1, num_outputs=2, outputs=2)
    return str(net.op("Concat", net.op("Relu", first), second, axis=-1))


def shared(net: DecoderNet, x: str) -> str:
    net.output("hidden", "batch", "sequence", WIDTH)
    net.op("Identity", x, name="hidden")
    return product(net, x)


def as_bytes(net: DecoderNet, x: str) -> str:
    scale, zero = net.constant(0.05), net.constant(3, dtype=np.uint8)
    steps = net.op("QuantizeLinear", x, scale, zero)
    return product(net, str(net.op("DequantizeLinear", steps, scale, zero)))


def gated(net: DecoderNet, x: str) -> str:
    """Halves of a product that are cut at half of its size, which is read of it."""
    both = net.op("MatMul", x, net.weight(WIDTH, 2 * WIDTH))
    half = net.op("Div", net.op("Gather", net.op("Shape", both), net.ints(-1)), net.ints(2))
    first = net.op("Slice", both, net.ints(0), half, net.ints(-1))
    second = net.op("Slice", both, half, net.ints(2**63 - 1), net.ints(2))
    return product(net, str(net.op("Mul", net.op("Sigmoid", first), second)))


def scaled_by_count(net: DecoderNet, x: str) -> str:
    """Times the number of tokens, which is read of the first product."""
    first = net.op("MatMul", x, net.weight(WIDTH, WIDTH))
    count = net.op("Cast", net.op("Gather", net.op("Shape", first), net.ints(1)), to=TensorProto.FLOAT)
    return product(net, str(net.op("Mul", first, count)))


def twice_turned(net: DecoderNet, x: str) -> str:
    return product(net, str(net.op("Transpose", net.op("Transpose", x, perm=[2, 0, 1]), perm=[1, 2, 0])))


@pytest.mark.parametrize(
    ("add", "cut_at"),
    [
        (capped, {"Reshape": ["MatMul"], "Add": ["Add"]}),
        (gated, {"Reshape": ["MatMul"], "Add": ["Add"]}),
        (scaled_by_count, {"MatMul": ["Mul"]}),
        (as_bytes, {"Reshape": ["MatMul"], "Add": ["Add"]}),
        (tied, {"Reshape": ["MatMul"], "Add": ["Add"]}),
        (shared, {"Mul": ["MatMul"]}),
        (
            lambda net, x: product(net, net.op("Transpose", net.op("Transpose", x), perm=[2, 1, 0])),
            {"Transpose": ["MatMul"]},
        ),
    ],
)
def test_what_stands_behind_the_last_norm(add, cut_at) -> None:
    model = head_of(add)
    cut = cut_of(model)
    assert cut is not None
    assert ends(cut) == cut_at
    same_logits(model, cut, (5, 3, 2))


@pytest.mark.parametrize(
    "add",
    [
        # They mix tokens, or treat them differently.
        lambda net, x: net.op("Softmax", product(net, x), axis=1),
        lambda net, x: net.op("Sub", made := product(net, x), net.op("ReduceMean", made, net.ints(1), keepdims=1)),
        lambda net, x: net.op("CumSum", product(net, x), net.constant(1, dtype=np.int64)),
        halved,
        lambda net, x: net.op(
            "DequantizeLinear",
            net.op("QuantizeLinear", product(net, x), net.constant(0.1), net.constant(0, dtype=np.int8)),
            net.constant(np.linspace(0.1, 1, VOCABULARY, dtype=np.float32)), axis=2,
        ),
    ],
)  # fmt: skip
def test_a_head_that_does_not_treat_tokens_by_themselves_is_left(add) -> None:
    assert cut_of(head_of(add)) is None


def test_a_number_for_each_token_is_not_the_same_for_all() -> None:
    """Of a model for three tokens, whose last logits are not those of its first ones' numbers."""
    by_token = np.arange(3, dtype=np.float32).reshape(3, 1)
    model = head_of(lambda net, x: net.op("Add", product(net, x), net.constant(by_token)))
    for info in (*model.graph.input, *model.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param == "sequence":
                dim.dim_value = 3
    assert cut_of(model) is None


def test_what_a_graph_inside_reads_is_not_cut() -> None:
    def with_choice(net: DecoderNet, x: str) -> str:
        made = product(net, x)
        bodies = [
            helper.make_graph(
                [helper.make_node(op, [made], [f"{op}.made"], name=op)], op, [],
                [helper.make_tensor_value_info(f"{op}.made", TensorProto.FLOAT, None)],
            )
            for op in ("Neg", "Relu")
        ]  # fmt: skip
        some = net.op("Greater", net.op("ReduceMax", "attention_mask", keepdims=0), net.constant(0, dtype=np.int64))
        chosen = net.op("If", some, then_branch=bodies[0], else_branch=bodies[1])
        return str(net.op("Add", made, chosen))

    assert cut_of(head_of(with_choice)) is None


def test_one_token_at_a_time_is_left() -> None:
    model = decoder("llama")
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param == "sequence":
                dim.dim_value = 1
    assert cut_of(model) is None


@pytest.mark.parametrize("name", SPELLINGS)
def test_prompts_of_different_lengths(name: str) -> None:
    """Padding comes last to GroupQueryAttention, so that the last position is not everyone's last token."""
    found, wanted = (Decoder(decoder(name), 1, backend=backend) for backend in ("cpu", "onnxruntime"))
    for prompts in ([[3, 5, 7], [1], [2, 9, 4, 4, 11]], [[1], [2, 3]], [[4], [5]], [[7, 8, 9], [1, 2, 3]]):
        assert list(found.generate(prompts, 6)) == list(wanted.generate(prompts, 6))
