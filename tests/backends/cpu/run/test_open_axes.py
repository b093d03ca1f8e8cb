"""Models whose exporter wrote the same mark at every open axis: they have sizes of their own."""

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.isa import generates_code, selected_isa
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.session import InferenceSession
from sift_onnx.errors import UsageError

MARKS = ["?", "None", "unk__", "-1"]


def net_of(mark):
    net = SparseNet()
    x = net.conv(net.input("x", 2, 4, 8, 6, declared=[mark, 4, mark, mark]), 4, 6, 3, name="stem")
    x = net.op("Add", net.conv(net.op("Relu", x, name="act"), 6, 6, 3, name="body"), "act")
    net.output(net.conv(net.op("Relu", x), 6, 5, 1, name="head"))
    return net


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("mark", MARKS)
def test_an_image_need_not_be_square_nor_its_batch_as_large(mark):
    net = net_of(mark)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert any(isinstance(part, RegionProgram) for part in program.parts)
    for shape in ((3, 4, 12, 5), (1, 4, 5, 12)):
        feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        assert_same_as_onnxruntime(net.model(), feeds, program)


@pytest.mark.usefixtures("every_region_pays")
def test_a_session_names_axes_as_the_file_does():
    (argument,) = InferenceSession(net_of("?").model()).get_inputs()
    assert argument.shape == ["?", 4, "?", "?"]


@pytest.mark.usefixtures("every_region_pays")
def test_axes_of_a_symbol_still_have_one_size():
    program = CpuProgram(net_of("side").model())
    with pytest.raises(UsageError, match="'side' is 2 in input 'x'"):
        program.run({"x": np.zeros((2, 4, 8, 6), np.float32)})


def tokens_net(tokens):
    net = SparseNet()
    x = net.input("x", 1, 16, 64, declared=[1, tokens, 64])
    net.output(net.dense(net.op("Relu", net.dense(x, 64, 64)), 64, 64))
    return net


@pytest.mark.skipif(not generates_code(selected_isa()), reason="lists of many tiles wait for their requests")
@pytest.mark.usefixtures("every_region_pays")
def test_the_first_length_packs_for_all():
    """Few rows are multiplied by lists and many by code: neither is made when a request of another length comes."""
    model = tokens_net("tokens").model()
    program = CpuProgram(model, ONE_THREAD)
    packed = []
    for tokens in (20, 128, 16, 75):
        feeds = {"x": np.random.default_rng(tokens).standard_normal((1, tokens, 64)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
        packed.append(program.weight_bytes)
    assert len(set(packed)) == 1
    fixed = CpuProgram(tokens_net(16).model(), ONE_THREAD)
    fixed.run(feeds | {"x": feeds["x"][:, :16]})
    assert fixed.weight_bytes < packed[0]


@pytest.mark.skipif(not generates_code(selected_isa()), reason="lists of many tiles wait for their requests")
@pytest.mark.usefixtures("every_region_pays")
def test_the_first_length_of_a_text_packs_for_all():
    """As many rows as there are numbers of words."""
    net = SparseNet()
    ids = net.input("ids", values=np.zeros((1, 16), np.int64), declared=["texts", "tokens"])
    words = net.constant(np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32))
    net.output(net.dense(net.op("Relu", net.dense(net.op("Gather", words, ids), 64, 64)), 64, 64))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    packed = []
    for tokens in (20, 128, 16, 75):
        feeds = {"ids": np.random.default_rng(tokens).integers(0, 9, (1, tokens))}
        assert_same_as_onnxruntime(model, feeds, program)
        packed.append(program.weight_bytes)
    assert len(set(packed)) == 1


@pytest.mark.skipif(selected_isa() != "avx512", reason="elsewhere lists of many tiles wait for their requests")
@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("sides", [(40, 3, 7, 25), (4, 64, 5, 20)])
def test_the_first_image_packs_for_all(sides):
    """Few pixels are multiplied by lists and many by code."""
    net = SparseNet()
    x = net.input("x", 1, 32, 8, 8, declared=[1, 32, "height", "width"])
    net.output(net.conv(net.op("Relu", net.conv(x, 32, 40, 3)), 40, 32, 1))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    packed = []
    for side in sides:
        feeds = {"x": np.random.default_rng(side).standard_normal((1, 32, side, side + 1)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
        packed.append(program.weight_bytes)
    assert len(set(packed)) == 1


@pytest.mark.skipif(selected_isa() != "avx512", reason="elsewhere lists of many tiles wait for their requests")
@pytest.mark.usefixtures("every_region_pays")
def test_the_first_signal_packs_for_all():
    net = SparseNet()
    net.input("x", 1, 32, 8, declared=[1, 32, "samples"])
    weights = np.random.default_rng(0).standard_normal((40, 32, 3)).astype(np.float32)
    weights[np.random.default_rng(1).random(weights.shape) < 0.7] = 0
    net.output(net.op("Conv", "x", net.constant(weights), pads=[8, 8], dilations=[8]))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    packed = []
    for samples in (200, 9, 33, 90):
        feeds = {"x": np.random.default_rng(samples).standard_normal((1, 32, samples)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
        packed.append(program.weight_bytes)
    assert len(set(packed)) == 1
