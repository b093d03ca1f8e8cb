"""Decoders that differ from Llama, in the kernels: one region, and onnxruntime's results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from decoder_families import ENCODED, FAMILIES, cross_attention, fixed_cache
from decoder_nets import BATCH, DEPTH, HEADS, LAYERS, NEW, PAST, WIDTH, DecoderNet
from sparse_nets import ONE_THREAD, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.lower import plan
from sift_onnx.backends.cpu.lower.profitability import is_sparse
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.decoding.decoder import Decoder
from sift_onnx.errors import UsageError


@pytest.fixture(autouse=True)
def every_sparse_region_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes masks has no weights, and stays in onnxruntime."""
    monkeypatch.setattr(
        plan, "why_not_profitable", lambda steps, *_: "" if any(map(is_sparse, steps)) else "no weights"
    )


def region_of(program: CpuProgram) -> RegionProgram:
    first, second = program.parts
    assert not isinstance(first, RegionProgram)
    assert isinstance(second, RegionProgram)
    return second


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_two_parts(family: str) -> None:
    net = FAMILIES[family]()
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert len(region_of(program).region.caches) == LAYERS * (2 if family == "encoder" else 1)
    one = {name: array[:1, ..., :1] if name == "input_ids" else array[:1] for name, array in net.feeds.items()}
    one |= {name: one[name][:, :1] for name in ("position_ids",) if name in one}
    one["attention_mask"] = one["attention_mask"][:, 2:]
    assert_same_as_onnxruntime(net.model(), one, program)


def test_partly_rotated_heads_are_one_step() -> None:
    net = FAMILIES["partial rotary"]()
    steps = region_of(CpuProgram(net.model(), ONE_THREAD)).region.steps
    rotations = [step.spec for step in steps if type(step.spec).__name__ == "Rotated"]
    assert [(spec.depth, spec.rotated) for spec in rotations] == [(DEPTH, DEPTH // 2)] * 2 * LAYERS


def test_sizes_that_only_a_mask_has_are_left_to_onnxruntime() -> None:
    """As OPT by torch's newer exporter: rows become tokens again, by sizes of other tensors."""
    net = DecoderNet(17, HEADS)
    x = net.embedded()
    mask = net.input("bias", BATCH, 1, NEW, PAST + NEW, declared=["batch", 1, "sequence", "total"])
    # As many tokens as before, which only the run can tell.
    end = net.op("Mul", net.op("ReduceMax", net.attention_mask, axes=[0, 1], keepdims=0), net.ints(1000))
    x = net.op("Slice", x, net.ints(0), end, net.ints(1))
    for layer in range(LAYERS):
        rows = net.op("Relu", net.linear(str(net.op("Reshape", x, net.ints(-1, WIDTH))), WIDTH))
        sizes = net.op("Concat", net.size(net.pasts[layer][0], 0), net.size(net.ids, 1), net.ints(WIDTH), axis=0)
        h = str(net.op("Reshape", rows, sizes))
        q, k, v = (net.parted(net.linear(h, WIDTH), HEADS) for _ in range(3))
        x = net.op("Add", h, net.linear(net.joined(net.attended(layer, q, k, v, mask)), WIDTH))
    program = assert_same_as_onnxruntime(net.ends(x).model(), net.feeds)
    assert any(isinstance(part, RegionProgram) for part in program.parts)


def encoded(sequences: int = BATCH) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    arrays = {
        f"past_key_values.{layer}.encoder.{kind}": rng.standard_normal((sequences, HEADS, ENCODED, DEPTH))
        for layer in range(LAYERS)
        for kind in ("key", "value")
    }
    given = {name: array.astype(np.float32) for name, array in arrays.items()}
    return given | {"encoder_attention_mask": np.ones((sequences, ENCODED), np.int64)}


def test_a_decoder_generates_from_what_an_encoder_has_read() -> None:
    model = cross_attention().model()
    tokens = [
        list(Decoder(model, 1, backend=backend).generate([[1], [5]], 8, inputs=encoded()))
        for backend in ("cpu", "onnxruntime")
    ]
    assert tokens[0] == tokens[1]
    other = {name: -array if "key" in name else array for name, array in encoded().items()}
    assert list(Decoder(model, 1).generate([[1], [5]], 8, inputs=other)) != tokens[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda given: {}, "the model reads '.*encoder.*', of another text"),
        (lambda given: given | {"words": np.zeros(2)}, "`inputs` has 'words'"),
        (lambda given: encoded(3), "for 2 sequences"),
    ],
)
def test_what_an_encoder_has_read_is_asked_for_by_name(change, said) -> None:
    with pytest.raises(UsageError, match=said):
        Decoder(cross_attention().model(), 1, backend="onnxruntime").generate([[1], [5]], inputs=change(encoded()))


def test_a_cache_of_a_fixed_length() -> None:
    net = fixed_cache()
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    (only,) = program.parts  # its masks are counts, and its embedding is a look-up
    assert isinstance(only, RegionProgram)
    assert len(only.region.caches) == LAYERS
    wanted = program.run(net.feeds)
    room = {name: array.copy() for name, array in net.feeds.items() if name.startswith("cache")}
    into = {f"{name}.after": array for name, array in room.items()}
    outputs = program.run(net.feeds | room, into)
    for name, array in wanted.items():
        np.testing.assert_array_equal(outputs[name], array)
        assert name == "logits" or outputs[name] is into[name]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"write_indices": np.array([11, 0])},
            r"'write_indices' writes 3 tokens at positions \[11, 0\]; .* room for 12",
        ),
        ({"nonpad_kv_seqlen": np.array([13, 4])}, r"'nonpad_kv_seqlen' says that \[13, 4\] tokens count"),
        ({"nonpad_kv_seqlen": np.array([7, 2])}, r"'nonpad_kv_seqlen' says that \[7, 2\] tokens count"),
    ],
)
def test_places_outside_of_a_fixed_cache_are_named(changes, said) -> None:
    net = fixed_cache()
    with pytest.raises(UsageError, match=said):
        CpuProgram(net.model(), ONE_THREAD).run(net.feeds | changes)


def test_keys_whose_number_masks_follow_from_are_no_cycle() -> None:
    """Exporters read the number of keys off their concatenation, and make masks of it."""
    net = DecoderNet(17, HEADS)
    x = net.embedded()
    for layer in range(LAYERS):
        q, k, v = (net.parted(net.linear(x, HEADS * DEPTH), HEADS) for _ in range(3))
        keys, values = net.appended(layer, k, v)
        length = net.op("Squeeze", net.size(keys, 2))
        zero, one = (net.constant(number, dtype=np.int64) for number in (0, 1))
        places = net.op("Cast", net.op("Range", zero, length, one), to=onnx.TensorProto.FLOAT)
        bias = net.op("Mul", places, net.constant(0.1))
        scores = net.op("MatMul", q, net.op("Transpose", keys, perm=[0, 1, 3, 2]))
        made = net.op("MatMul", net.op("Softmax", net.op("Add", scores, bias), axis=-1), values)
        x = net.op("Add", x, net.linear(net.joined(str(made)), HEADS * DEPTH))
    net.ends(x)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert len(region_of(program).region.caches) == LAYERS


def test_masks_that_are_made_of_the_keys_themselves_leave_attention_to_onnxruntime() -> None:
    net = DecoderNet(17, HEADS)
    x = net.embedded()
    q, k, v = (net.parted(net.linear(x, HEADS * DEPTH), HEADS) for _ in range(3))
    keys, values = net.appended(0, k, v)
    bias = net.op("Transpose", net.op("ReduceMean", net.op("Abs", keys), axes=[3], keepdims=1), perm=[0, 1, 3, 2])
    scores = net.op("Add", net.op("MatMul", q, net.op("Transpose", keys, perm=[0, 1, 3, 2])), bias)
    made = net.op("MatMul", net.op("Softmax", scores, axis=-1), values)
    net.ends(net.linear(net.joined(str(made)), HEADS * DEPTH))
    model, feeds = net.model(), {name: array for name, array in net.feeds.items() if ".1." not in name}
    del model.graph.input[4:]
    program = assert_same_as_onnxruntime(model, feeds)
    reasons = {placement.reason for placement in program.placements if placement.op == "Softmax"}
    assert reasons == {"what it adds to its scores is made of its own cache"}
