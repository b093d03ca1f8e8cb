"""Models whose weights are zero inside of their masks: what the sessions compute, and what is said about it."""

import numpy as np
import onnx
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, emptied, everything, places, reasons, some_rows

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.isa import SIFT_ISA
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.model import Model
from sift_onnx.passes import Prune
from sift_onnx.shapes.random_inputs import random_feeds
from sift_onnx.weights.mask_storage import MASKS_KEY, record_of, text_of_records
from sift_onnx.weights.sparse import SparseWeight

pytestmark = pytest.mark.usefixtures("every_region_pays")
ISAS = _kernels.supported_isas()


def mixed_net():
    """Convolutions with strides, dilations and groups, a depthwise one, and two products."""
    net = SparseNet()
    net.density = 1.0
    x = net.conv(net.input("x", 2, 8, 12, 12, declared=["n", 8, 12, 12]), 8, 32, 3, name="first")
    x = net.conv(net.op("Relu", x), 32, 24, 3, name="strided", strides=[2, 2])
    x = net.conv(net.op("Relu", x), 24, 24, 3, name="grouped", group=3)
    x = net.conv(net.op("Relu", x), 24, 24, 3, name="depthwise", group=24)
    x = net.op("Relu", net.conv(x, 24, 40, 1, name="pointwise"))
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    x = net.op("Relu", net.dense(x, 40, 64, name="product"))
    net.output(net.op("Gemm", x, net.weight(10, 64, name="head.weight"), transB=1, name="head"))
    return net


def active_of(model):
    return {name: constant.nnz for name, constant in model.masked().items()}


def steps_of(program):
    return [
        (name, i, part)
        for part in program.parts
        if isinstance(part, RegionProgram)
        for i, name in enumerate(part.region.names)
    ]


def held_by(program):
    """How many weights each layer is multiplied by, as they are packed by now, by the name of its node."""
    held = {}
    for name, i, part in steps_of(program):
        if not hasattr(part.region.steps[i].spec, "weights"):
            continue
        (held[name],) = {weights.nnz for weights in part._operators.sources(i)}
    return held


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", ["dense", "sparse", "memory"])
@pytest.mark.parametrize("zeros", [some_rows, everything])
def test_every_layer_multiplies_by_all_that_its_mask_leaves(tmp_path, monkeypatch, isa, storage, zeros):
    monkeypatch.setenv(SIFT_ISA, isa)
    net = mixed_net()
    model = emptied(net, zeros)
    active = {name.removesuffix(".weight"): nnz for name, nnz in active_of(model).items()}
    assert len(active) >= 5
    source = model
    if storage != "memory":
        source = str(tmp_path / "m.onnx")
        model.save(source, storage=storage)
    program = CpuProgram(source, CompileOptions(threads=1))
    held = held_by(program)
    assert {name: held[name] for name in active} == active
    for batch in (1, 16, 33):
        feeds = random_feeds(program.inputs, batch)
        wanted = OnnxRuntimeProgram(model.to_proto(), CompileOptions(threads=1)).run(feeds)
        outputs = program.run(feeds)
        for name, array in wanted.items():
            np.testing.assert_allclose(outputs[name], array, rtol=0, atol=2e-5 * (np.abs(array).max() or 1))
        held = held_by(program)
        assert {name: held[name] for name in active} == active
    profile = {node.name: node for node in program.profile(net.feeds).nodes}
    for name, nnz in active.items():
        size = np.prod(model.initializers()[f"{name}.weight"].shape)
        assert profile[name].density == pytest.approx(nnz / size)
        if name != "depthwise":
            assert reasons(program)[name] == f"{1 - nnz / size:.0%} of its weights are pruned"


def test_masks_without_bits_list_their_active_zeros(tmp_path):
    """As in the files of models with too many weights for the bits of their masks."""
    model = emptied(mixed_net(), some_rows)
    active = active_of(model)
    model.save(tmp_path / "m.onnx")
    proto = onnx.load(tmp_path / "m.onnx")
    (entry,) = [entry for entry in proto.metadata_props if entry.key == MASKS_KEY]
    records = {
        name: record_of(constant.weight, explicit=False)
        for name, constant in model.initializers().items()
        if name in active
    }
    entry.value = text_of_records(records)
    held = held_by(CpuProgram(proto, CompileOptions(threads=1)))
    assert {f"{name}.weight": nnz for name, nnz in held.items() if f"{name}.weight" in active} == active


def net_with_normalization(scale):
    """A residual branch that ends in a normalization of ``scale``."""
    net = SparseNet()
    net.density = 1.0
    x = net.op("Relu", net.conv(net.input("x", 2, 8, 9, 9, declared=["n", 8, 9, 9]), 8, 24, 3, name="stem"))
    y = net.op("Relu", net.conv(x, 24, 24, 3, name="depthwise", group=24))
    y = net.conv(y, 24, 24, 3, name="last")
    y = net.op("BatchNormalization", y, *_statistics(net, scale))
    x = net.op("Relu", net.op("Add", x, y))
    y = net.op("BatchNormalization", net.conv(x, 24, 24, 3, name="depthwise_last", group=24), *_statistics(net, scale))
    net.output(net.conv(net.op("Add", x, y), 24, 4, 1, name="head"))
    return net


def _statistics(net, scale):
    ends = ((-1, 1), (0, 1), (1, 3))
    return [
        net.constant(np.full(24, scale, np.float32)),
        *(net.constant(np.linspace(a, b, 24, dtype=np.float32)) for a, b in ends),
    ]


def test_a_scale_of_zero_that_is_folded_in_leaves_the_mask_as_it_was(tmp_path):
    model = emptied(net_with_normalization(0), lambda *_: False)
    active = {name.removesuffix(".weight"): nnz for name, nnz in active_of(model).items()}
    model.save(tmp_path / "m.onnx")
    program = CpuProgram(str(tmp_path / "m.onnx"), CompileOptions(threads=1))
    for batch in (1, 16):
        assert_same_as_onnxruntime(onnx.load(tmp_path / "m.onnx"), random_feeds(program.inputs, batch), program)
        held = held_by(program)
        assert {name: held[name] for name in active} == active


def test_a_scale_of_zero_that_is_folded_into_dense_weights_leaves_them_dense():
    net = net_with_normalization(0)
    program = CpuProgram(net.model(), CompileOptions(threads=1))
    for batch in (1, 16):
        assert_same_as_onnxruntime(net.model(), random_feeds(program.inputs, batch), program)
        assert held_by(program)["last"] == 24 * 24 * 9
        assert held_by(program)["depthwise_last"] == 24 * 9


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("group", [1, 24])
@pytest.mark.parametrize("batch", [1, 17])
def test_infinity_before_a_branch_that_starts_at_zero_gives_what_onnxruntime_gives(monkeypatch, isa, group, batch):
    monkeypatch.setenv(SIFT_ISA, isa)
    net = SparseNet()
    net.density = 1.0
    x = net.conv(net.input("x", 1, 24, 9, 9, declared=["n", 24, 9, 9]), 24, 24, 3, name="branch", group=group)
    net.output(net.op("BatchNormalization", x, *_statistics(net, 0), name="y"))
    program = CpuProgram(net.model(), CompileOptions(threads=1))
    assert places(program)["branch"] == "kernels"
    feeds = random_feeds(program.inputs, batch)
    feeds["x"][0, 3, 4, 4] = np.inf
    wanted = OnnxRuntimeProgram(net.model(), CompileOptions(threads=1)).run(feeds)["y"]
    y = program.run(feeds)["y"]
    assert np.isnan(wanted).any()
    assert np.array_equal(np.isnan(y), np.isnan(wanted))


def test_zeros_of_a_file_without_masks_are_pruned_weights():
    net = SparseNet()
    net.output(net.conv(net.input("x", 1, 16, 9, 9, declared=["n", 16, 9, 9]), 16, 48, 3, name="conv"))
    nnz = np.count_nonzero(onnx.numpy_helper.to_array(net.model().graph.initializer[0]))
    program = CpuProgram(net.model(), CompileOptions(threads=1))
    for batch in (1, 16):
        assert_same_as_onnxruntime(net.model(), random_feeds(program.inputs, batch), program)
        assert held_by(program) == {"conv": nnz}


def test_a_weight_of_nothing_but_zeros_without_a_mask_is_dense():
    """It is going to be trained; nothing says which weights of it are pruned."""
    net = SparseNet()
    x = net.conv(net.input("x", 1, 16, 9, 9, declared=["n", 16, 9, 9]), 16, 48, 3, name="sparse")
    zeros = net.constant(np.zeros((32, 48, 3, 3), np.float32), "untrained.weight")
    net.output(net.op("Conv", net.op("Relu", x), zeros, name="untrained"))
    program = CpuProgram(net.model(), CompileOptions(threads=1))
    assert_same_as_onnxruntime(net.model(), net.feeds, program)
    assert held_by(program)["untrained"] == 32 * 48 * 9
    assert reasons(program)["untrained"].startswith("dense, between sparse layers")
    assert next(node for node in program.profile(net.feeds).nodes if node.name == "untrained").density == 1


def test_a_mask_that_leaves_nothing_prunes_everything():
    net = SparseNet()
    net.density = 1.0
    x = net.conv(net.input("x", 1, 16, 9, 9, declared=["n", 16, 9, 9]), 16, 48, 3, name="first")
    x = net.conv(net.op("Relu", net.conv(net.op("Relu", x), 48, 48, 3, name="some")), 48, 48, 3, name="none")
    net.output(net.conv(net.op("Relu", x), 48, 8, 3, name="last"))
    model = Prune(0.8)(Model.load(net.model())).model
    nothing = SparseWeight((48, 48, 3, 3), np.zeros(0, np.int32), np.zeros(0, np.float32))
    model.initializers()["none.weight"].values = nothing
    program = CpuProgram(Model.load(model.to_proto()), CompileOptions(threads=1))
    assert set(places(program).values()) == {"kernels"}
    assert held_by(program)["none"] == 0
    assert_same_as_onnxruntime(model.to_proto(), net.feeds, program)
