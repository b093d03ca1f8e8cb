"""What the lowering makes of a graph: what is fused, what goes where, and what is said about it."""

import numpy as np
import onnx
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, assert_same_at_batches, places, reasons

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.isa import generates_code, selected_isa
from sift_onnx.backends.cpu.lower import stages
from sift_onnx.backends.cpu.lower.plan import lower
from sift_onnx.backends.cpu.lower.profitability import Setting
from sift_onnx.backends.cpu.lower.rates import rates_of
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.schedules import region_schedules
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.specs import Conv, Pool
from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.shapes.random_inputs import random_feeds


def regions(program):
    return [part.region for part in program.parts if isinstance(part, RegionProgram)]


def specs(program):
    (region,) = regions(program)
    return [step.spec for step in region.steps]


def residual_net():
    net = SparseNet()
    x = net.conv(net.input("x", 3, 4, 8, 8, declared=["n", 4, "h", "w"]), 4, 6, 3, name="stem")
    y = net.op("Relu", net.conv(net.op("Relu", x, name="act"), 6, 6, 3, name="first"))
    y = net.op("Add", net.conv(y, 6, 6, 3, name="second"), "act", name="sum")
    net.output(net.conv(net.op("Relu", y), 6, 5, 1, name="head"))
    return net


@pytest.mark.usefixtures("every_region_pays")
class TestFusion:
    def test_residual_and_activation_join_the_convolution(self):
        program = assert_same_at_batches(residual_net().model(), [1, 16, 17], {"x": (1, 4, 8, 8)})
        assert [type(spec) for spec in specs(program)] == [Conv] * 4
        assert [len(step.inputs) for step in regions(program)[0].steps] == [1, 1, 2, 1]

    def test_normalization_is_folded_and_zeros_stay_zeros(self):
        net = SparseNet()
        x = net.conv(net.input("x", 2, 4, 8, 8, declared=["n", 4, 8, 8]), 4, 6, 3, name="conv")
        statistics = [
            net.constant(np.linspace(a, b, 6, dtype=np.float32)) for a, b in ((1, 2), (-1, 1), (0, 1), (1, 3))
        ]
        net.output(net.op("Relu", net.op("BatchNormalization", x, *statistics)))
        program = assert_same_at_batches(net.model(), [2, 16])
        (spec,) = specs(program)
        stored = next(t for t in net.model().graph.initializer if t.name == "conv.weight")
        assert spec.weights.nnz == np.count_nonzero(onnx.numpy_helper.to_array(stored))

    def test_normalization_before_a_convolution_is_its_own_step(self):
        net = SparseNet()
        x = net.conv(net.input("x", 2, 4, 8, 8), 4, 6, 3)
        x = net.op("MaxPool", x, kernel_shape=[2, 2])
        statistics = [net.constant(np.linspace(0.5, 2, 6, dtype=np.float32)) for _ in range(4)]
        x = net.op("Relu", net.op("BatchNormalization", x, *statistics))
        net.output(net.conv(x, 6, 5, 3))
        assert len(specs(assert_same_as_onnxruntime(net.model(), net.feeds))) == 4

    def test_a_value_that_is_an_output_is_not_fused_away(self):
        net = SparseNet()
        x = net.conv(net.input("x", 17, 4, 8, 8), 4, 6, 3, name="conv")
        net.output(x)
        net.output(net.op("Relu", x, name="act"))
        net.output(net.op("Identity", "act", name="same"))
        assert_same_as_onnxruntime(net.model(), net.feeds)

    def test_two_layers_may_share_weights(self):
        net = SparseNet()
        weight = net.weight(4, 4, 3, 3, fan_in=4)
        x = net.op("Conv", net.input("x", 2, 4, 8, 8), weight, pads=[1] * 4)
        net.output(net.op("Conv", net.op("Relu", x), weight, pads=[1] * 4))
        assert_same_as_onnxruntime(net.model(), net.feeds)


@pytest.mark.usefixtures("every_region_pays")
class TestPartition:
    def test_an_unsupported_operator_in_the_middle_runs_in_onnxruntime(self):
        net = SparseNet()
        x = net.conv(net.input("x", 3, 4, 8, 8, declared=["n", 4, "h", "w"]), 4, 6, 3, name="before")
        x = net.op("Atan", x, name="arc")
        net.output(net.conv(x, 6, 5, 3, name="after"))
        program = assert_same_at_batches(net.model(), [1, 17], {"x": (1, 4, 8, 8)})
        assert places(program) == {"before": "kernels", "arc": "onnxruntime", "after": "kernels"}
        assert reasons(program)["arc"] == "no kernel for this operator"

    def test_an_operator_beside_a_region_makes_no_cycle(self):
        # before -> arc -> sum, and before -> sum: the sum can only run after onnxruntime has had its turn.
        net = SparseNet()
        x = net.conv(net.input("x", 3, 4, 8, 8), 4, 6, 3, name="before")
        y = net.op("Add", net.op("Atan", x), x, name="sum")
        net.output(net.conv(y, 6, 5, 3))
        assert_same_as_onnxruntime(net.model(), net.feeds)

    def test_branches_of_a_concatenation(self):
        net = SparseNet()
        x = net.op("Relu", net.conv(net.input("x", 18, 4, 8, 8), 4, 6, 3))
        y = net.op("Concat", net.conv(x, 6, 3, 3), net.conv(x, 6, 4, 1), axis=1)
        net.output(net.conv(net.op("Relu", y), 7, 5, 3))
        assert_same_as_onnxruntime(net.model(), net.feeds)

    def test_a_subgraph_reads_what_kernels_make(self):
        net = SparseNet()
        net.conv(net.input("x", 2, 4, 8, 8), 4, 6, 3, name="conv")
        branches = {}
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
            node = onnx.helper.make_node(op, ["conv"], [name])
            info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 6, 8, 8])
            branches[name] = onnx.helper.make_graph([node], name, [], [info])
        y = net.op("If", net.constant(True), **branches)
        net.output(net.conv(y, 6, 5, 3), 2, 5, 8, 8)
        assert_same_as_onnxruntime(net.model(), net.feeds)

    def test_matrices_and_images_of_one_input_are_regions_of_their_own(self):
        net = SparseNet()
        x = net.input("x", 2, 4, 8, 8)
        net.output(net.conv(x, 4, 6, 3))
        net.output(net.dense(x, 8, 6))
        assert len(regions(assert_same_as_onnxruntime(net.model(), net.feeds))) == 2

    def test_an_island_of_half_precision_is_computed_in_float32(self):
        net = SparseNet()
        x = net.op("Cast", net.input("x", 2, 6), to=onnx.TensorProto.FLOAT16)
        weight = net.constant(np.eye(6, dtype=np.float16), "w")
        y = net.op("MatMul", x, weight, name="half")
        net.output(net.dense(net.op("Cast", y, to=onnx.TensorProto.FLOAT), 6, 5, name="full"))
        program = assert_same_as_onnxruntime(net.model(), net.feeds, tolerance=2**-11)
        assert places(program)["half"] == places(program)["full"] == "kernels"

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_weights_that_are_not_finite_stay_in_onnxruntime(self, value):
        net = SparseNet()
        weight = net._rng.standard_normal((6, 4, 3, 3)).astype(np.float32) * (net._rng.random((6, 4, 3, 3)) < 0.2)
        weight[0, 0, 0, 0] = value
        x = net.op("Conv", net.input("x", 2, 4, 8, 8), net.constant(weight, "w"), name="conv")
        net.output(net.conv(x, 6, 5, 1))
        program = CpuProgram(net.model())
        assert places(program)["conv"] == "onnxruntime"
        assert reasons(program)["conv"] == "the weights 'w' hold NaN or infinity"

    def test_a_window_that_does_not_fit_is_an_error_that_names_the_node(self):
        net = SparseNet()
        x = net.conv(net.input("x", 1, 4, 8, 8, declared=["n", 4, "h", "w"]), 4, 6, 1)
        net.output(net.op("MaxPool", x, kernel_shape=[5, 5], name="pool"), 1, 6, 4, 4)
        program = CpuProgram(net.model())
        assert any(isinstance(spec, Pool) for spec in specs(program))
        with pytest.raises(UsageError, match="'pool': its window does not fit"):
            program.run({"x": np.zeros((1, 4, 3, 3), np.float32)})

    def test_layers_around_an_operator_that_onnx_infers_nothing_of(self):
        """Its result has to be known as a tensor of floats, or the model would stay in one piece."""
        net = SparseNet(opset=21)
        x = net.conv(net.input("x", 2, 4, 8, 8), 4, 8, 3, name="first")
        # Parameters that come with each request, which the kernels do not take.
        parameters = [net.input(name, 8) for name in ("scale", "shift")]
        x = net.op("GroupNormalization", x, *parameters, name="between", num_groups=4)
        net.output(net.conv(x, 8, 5, 3, name="second"), 2, 5, 8, 8)
        program = assert_same_as_onnxruntime(net.model(), net.feeds)
        found = places(program)
        assert [found[name] for name in ("first", "between", "second")] == ["kernels", "onnxruntime", "kernels"]


class TestWorth:
    def test_a_dense_model_runs_in_onnxruntime_whole(self):
        net = SparseNet()
        net.density = 1.0
        x = net.conv(net.input("x", 1, 16, 16, 16), 16, 16, 3, name="conv")
        net.output(net.op("Relu", x, name="act"))
        program = assert_same_as_onnxruntime(net.model(), net.feeds)
        assert places(program) == {"conv": "onnxruntime", "act": "onnxruntime"}
        assert "its weights are dense: 100%" in reasons(program)["conv"]
        assert reasons(program)["act"] == "no sparse layer near it runs in the kernels"

    def test_sparse_weights_that_the_kernels_do_not_take_are_not_called_dense(self):
        net = SparseNet()
        stored = net.input("w", values=(np.arange(16 * 16 * 9) % 10 == 0).astype(np.float32).reshape(16, 16, 3, 3))
        weights = net.op("Neg", stored, name="negated")
        net.output(net.op("Relu", net.op("Conv", net.input("x", 1, 16, 8, 8), weights, name="conv"), name="act"))
        program = assert_same_as_onnxruntime(net.model(), net.feeds)
        said = reasons(program)["conv"]
        assert said == "the weights 'negated' are computed by Neg; the kernels take stored constants"
        assert reasons(program)["act"] == "no sparse layer near it runs in the kernels"

    def test_a_region_too_small_for_its_border_runs_in_onnxruntime(self):
        net = SparseNet()
        x = net.op("Atan", net.input("x", 1, 4, 8, 8))
        net.output(net.op("Atan", net.conv(x, 4, 6, 1, name="conv")))
        program = assert_same_as_onnxruntime(net.model(), net.feeds)
        assert "its region has sparse layers, but would take" in reasons(program)["conv"]

    def test_what_a_reshape_reads_of_sizes_does_not_cross_the_border(self):
        net = SparseNet()
        net.density = 0.1
        x = net.conv(net.input("x", 1, 64, 28, 28, declared=["n", 64, 28, 28]), 64, 128, 3, name="conv")
        batch = net.op("Slice", net.op("Shape", "x"), *(net.constant([i], dtype=np.int64) for i in (0, 1)))
        target = net.op("Concat", batch, net.constant([-1], dtype=np.int64), axis=0)
        net.output(net.op("Reshape", net.op("GlobalAveragePool", x), target, name="flat"))
        program = assert_same_at_batches(net.model(), [1, 2])
        assert (places(program)["conv"], places(program)["flat"]) == ("kernels", "kernels")

    def test_a_large_sparse_layer_runs_in_kernels(self):
        net = SparseNet()
        net.density = 0.1
        net.output(net.conv(net.input("x", 1, 64, 28, 28), 64, 128, 3, name="conv"))
        program = assert_same_as_onnxruntime(net.model(), net.feeds)
        assert places(program) == {"conv": "kernels"}
        assert reasons(program)["conv"] == "90% of its weights are pruned"


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_masked_weights_in_either_storage(tmp_path, storage):
    from sift_onnx.passes import Prune

    net = SparseNet()
    net.density = 1.0
    x = net.op("Relu", net.conv(net.input("x", 2, 8, 8, 8, declared=["n", 8, 8, 8]), 8, 16, 3))
    net.output(net.conv(net.op("Relu", net.conv(x, 16, 16, 3)), 16, 4, 1))
    Prune(0.8)(Model.load(net.model())).model.save(tmp_path / "m.onnx", storage=storage)
    program = CpuProgram(str(tmp_path / "m.onnx"))
    assert set(places(program).values()) == {"kernels"}
    assert_same_as_onnxruntime(onnx.load(tmp_path / "m.onnx"), net.feeds, program)


@pytest.mark.usefixtures("every_region_pays")
def test_large_images_run_one_by_one_and_small_ones_in_lanes(monkeypatch):
    monkeypatch.setattr(stages, "_LARGE_BYTES", 32 << 20)  # whatever the cache of this machine holds
    net = SparseNet()
    x = net.conv(net.input("x", 1, 3, 96, 96, declared=["n", 3, 96, 96]), 3, 64, 3, name="large")
    residual = net.conv(x, 64, 8, 3, strides=[4, 4], name="strided")
    y = net.op("Add", net.conv(residual, 8, 8, 3, name="small"), residual, name="sum")
    net.output(net.op("GlobalAveragePool", y))
    program = assert_same_at_batches(net.model(), [1, 17])
    (part,) = program.parts
    early, late = part.region.stages
    assert (early.single, late.single) == (True, False)
    assert (early.names, late.names) == (("large", "strided"), part.region.names[2:])


def few_images() -> SparseNet:
    """Two layers of 144 pixels and two of 36, with a residual sum across."""
    net = SparseNet()
    x = net.conv(net.input("x", 1, 3, 12, 12, declared=["n", 3, 12, 12]), 3, 8, 3, name="wide")
    x = net.op("Relu", net.conv(net.op("Relu", x), 8, 8, 3, name="last wide"))
    y = net.conv(x, 8, 16, 3, strides=[2, 2], name="narrow")
    y = net.op("Add", net.conv(y, 16, 16, 1, name="last"), y)
    net.output(net.op("Add", net.op("GlobalAveragePool", x), x, name="sum"))
    net.output(y)
    return net


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_few_images_run_one_by_one_where_they_have_many_pixels(threads):
    program = CpuProgram(few_images().model(), CompileOptions(threads=threads, deterministic=True))
    (part,) = program.parts
    early, late = part.region.stages_of_few
    assert (early.single, late.single) == (True, False)
    assert (early.names, late.names) == (("wide", "last wide"), part.region.names[2:])
    assert part.region.stages == ()
    at_once = {1: {}, 2: {2: 2, 3: 2, 5: 5, 7: 7, 11: 11}, 3: {3: 3, 5: 5, 7: 6, 11: 11}}[threads]
    for images in (1, 5, 3, 2, 7, 11, 12):
        feeds = random_feeds(program.inputs, images)
        assert_same_as_onnxruntime(few_images().model(), feeds, program)
        if 1 < images < 12:
            prepared = part._stages_of_few[0].schedules.kept[-1]
            assert [slab.count for slab, _ in prepared.slabs] == [1] * images
            if images in at_once:
                assert prepared.at_once == (slice(0, at_once[images]),)


@pytest.mark.usefixtures("every_region_pays")
def test_a_few_images_stay_together_in_layers_of_much_work(monkeypatch):
    (part,) = CpuProgram(few_images().model(), CompileOptions(deterministic=True)).parts
    assert len(part.region.stages_of_few) == 2
    monkeypatch.setattr(stages, "_MOST_PER_VALUE", 8)
    (part,) = CpuProgram(few_images().model(), CompileOptions(deterministic=True)).parts
    assert part.region.stages_of_few == ()


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_images_whose_channels_are_joined_have_a_thread_each(threads):
    net = SparseNet()
    x = net.conv(net.input("x", 1, 3, 6, 6, declared=["n", 3, 6, 6]), 3, 8, 3)
    net.output(net.conv(net.op("Concat", x, net.op("Relu", net.conv(x, 8, 4, 1)), axis=1), 12, 8, 3))
    program = CpuProgram(net.model(), CompileOptions(threads=threads, deterministic=True))
    (part,) = program.parts
    expected = {
        1: {3: (), 8: (), 18: (), 35: (), 64: ()},
        # Sixteen of eighteen are in lanes, and twice sixteen of thirty-five.
        2: {3: [(0, 2)], 8: [(0, 8)], 18: [(1, 3)], 35: [(0, 2), (2, 4)], 64: [(0, 4)]},
        4: {3: (), 8: [(0, 8)], 18: (), 35: (), 64: [(0, 4)]},
    }[threads]
    for images, at_once in expected.items():
        feeds = random_feeds(program.inputs, images)
        assert_same_as_onnxruntime(net.model(), feeds, program)
        assert part._whole.schedules.kept[-1].at_once == tuple(slice(*turns) for turns in at_once)


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize(("near_bytes", "least_work", "at_once"), [(0, 1e9, False), (1 << 40, 1e9, True), (0, 0, True)])
def test_groups_of_images_have_a_thread_each_where_they_gain(near_bytes, least_work, at_once, monkeypatch):
    monkeypatch.setattr(region_schedules, "NEAR_BYTES", near_bytes)
    monkeypatch.setattr(region_schedules, "_LEAST_WORK", least_work)
    outputs = []
    for threads in (1, 2, 3):
        program = CpuProgram(few_images().model(), CompileOptions(threads=threads, deterministic=True))
        (part,) = program.parts
        feeds = random_feeds(program.inputs, 69)
        outputs.append(list(program.run(feeds).values()))
        prepared = part._whole.schedules.kept[-1]
        groups = [slab.count for slab, _ in prepared.slabs]
        assert groups == ([16, 16, 16, 16, 5] if at_once else [64, 5])
        turns = {1: (), 2: (slice(0, 4),), 3: (slice(0, 3),)}[threads]
        assert prepared.at_once == (turns if at_once else ())
    assert_same_as_onnxruntime(few_images().model(), feeds, program)
    for found in outputs[1:]:
        for one, other in zip(found, outputs[0], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("every_region_pays")
def test_layers_between_products_run_in_kernels():
    net = SparseNet()
    x = net.op("MatMul", net.input("x", 3, 20, declared=["n", 20]), net.weight(20, 24), name="first")
    scale, shift = (net.constant(np.linspace(a, 2, 24, dtype=np.float32)) for a in (-1, 1))
    x = net.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-3, name="norm")
    x = net.op("LayerNormalization", x, scale, axis=1, name="unshifted")
    net.output(net.op("MatMul", x, net.weight(24, 6), name="last"))
    program = assert_same_at_batches(net.model(), [1, 16, 21])
    assert set(places(program).values()) == {"kernels"}


@pytest.mark.usefixtures("every_region_pays")
def test_large_constants_of_onnxruntime_do_not_pass_a_message():
    net = SparseNet()
    table = net.constant(np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32), "table")
    ids = net.input("ids", values=np.arange(10, dtype=np.int32).reshape(2, 5))
    rows = net.op("Gather", table, ids, name="embedding")
    net.output(net.op("MatMul", rows, net.weight(64, 7), name="product"))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert places(program) == {"embedding": "onnxruntime", "product": "kernels"}
    program.profile(net.feeds)  # opens the session once more


@pytest.mark.usefixtures("every_region_pays")
def test_sizes_that_a_later_part_reads_are_there_in_a_profile():
    net = SparseNet()
    x = net.input("x", 2, 5, 12, declared=["n", "t", 12])
    sizes = net.op("Shape", x, name="sizes")
    y = net.op("MatMul", x, net.weight(12, 8), name="first")
    shape = net.op("Concat", net.op("Slice", sizes, net.constant([0]), net.constant([2])), net.constant([8]), axis=0)
    net.output(net.op("Add", net.op("Atan", y), net.op("Expand", net.constant(np.float32(2)), shape), name="last"))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert any(part.shapes for part in program._latest.opened.parts._parts)
    assert {"first", "last"} <= {node.name for node in program.profile(net.feeds).nodes}


@pytest.mark.usefixtures("every_region_pays")
def test_weights_are_packed_once_and_given_up():
    net = SparseNet()
    net.output(net.conv(net.input("x", 1, 32, 9, 9, declared=["n", 32, 9, 9]), 32, 48, 3, name="conv"))
    program = CpuProgram(net.model(), CompileOptions(threads=1))
    nnz = np.count_nonzero(onnx.numpy_helper.to_array(net.model().graph.initializer[0]))
    unpacked = program.weight_bytes
    assert unpacked >= 8 * nnz
    packed = 14 if generates_code(selected_isa()) else 6  # bytes of a non-zero
    for batch, layouts in ((1, 1), (16, 2), (1, 2), (33, 2)):
        assert_same_as_onnxruntime(net.model(), random_feeds(program.inputs, batch), program)
        assert 6 * nnz * layouts <= program.weight_bytes < unpacked + packed * nnz * layouts


@pytest.mark.usefixtures("every_region_pays")
def test_a_gelu_of_double_precision_is_left_to_onnxruntime():
    net = SparseNet()
    x = net.op("Cast", net.input("x", 2, 6), to=onnx.TensorProto.DOUBLE)
    numbers = [net.constant(np.float64(value), dtype=np.float64) for value in (np.sqrt(2), 1, 0.5)]
    y = net.op("Add", net.op("Erf", net.op("Div", x, numbers[0])), numbers[1])
    y = net.op("Mul", net.op("Mul", x, y), numbers[2], name="gelu")
    net.output(net.dense(net.op("Cast", y, to=onnx.TensorProto.FLOAT), 6, 5, name="full"))
    setting = Setting(rates_of("portable", 1, "portable"))
    plan = lower(GraphView(Model.load(net.model())), 1, setting)  # onnxruntime has no Erf of this type
    (gelu,) = (placement for placement in plan.placements if placement.name == "gelu")
    assert gelu.placement == "onnxruntime"
    assert gelu.reason.endswith("is double; the kernels are for float32")


def test_what_kernels_compute_for_onnxruntime_alone_parts_no_region():
    """A mask that is computed with both would be waited for: what is behind it would be a region of its own."""
    net = SparseNet()
    x = net.input("x", 2, 64, 512, declared=["n", "t", 512])
    y = net.op("Relu", net.dense(x, 512, 512))
    length = net.op("Gather", net.op("Shape", x), net.constant(1))
    positions = net.op("Range", net.constant(0), length, net.constant(1))
    column = net.op("Unsqueeze", net.op("Cast", positions, to=1), net.constant([0, 2]))
    bias = net.op("Atan", net.op("Sqrt", column, name="root"))
    counts = net.op(
        "Concat", net.constant([1]), net.op("Unsqueeze", length, net.constant([0])), net.constant([1]), axis=0
    )
    table = net.op("Tile", net.op("Atan", net.weight(1, 1, 512)), counts, name="table")
    net.output(net.dense(net.op("Add", net.op("Add", y, bias), table), 512, 512))
    program = assert_same_at_batches(net.model(), [2, 3], {"x": (1, 64, 512)})
    assert len(program.parts) == 2
    assert places(program)["root"] == "onnxruntime"
    assert places(program)["table"] == "kernels"
    assert_same_at_batches(net.model(), [2], {"x": (1, 9, 512)})


@pytest.mark.usefixtures("every_region_pays")
def test_a_constant_that_is_repeated_for_a_later_region_is_repeated_there():
    """As DeBERTa's keys of relative positions: once for each sequence, in layers after a part of onnxruntime."""
    net = SparseNet()
    x = net.input("x", 2, 8, 512, declared=["n", 8, 512])
    y = net.op("Hardmax", net.dense(x, 512, 512), name="left")
    batch = net.op("Slice", net.op("Shape", x), net.constant([0]), net.constant([1]))
    repeats = net.op("Concat", batch, net.constant([1, 1]), axis=0)
    keys = net.op("Tile", net.op("Atan", net.weight(1, 512, 8)), repeats, name="keys")
    net.output(net.dense(net.op("MatMul", net.dense(net.op("Add", x, y), 512, 512), keys), 8, 512))
    program = assert_same_at_batches(net.model(), [1, 2, 5], {"x": (1, 8, 512)})
    assert places(program)["left"] == "onnxruntime"
    assert places(program)["keys"] == "kernels"


def test_a_mask_that_onnxruntime_alone_reads_parts_no_region():
    """It shares an operand with the layers, and would be computed in their region, before onnxruntime's turn."""
    net = SparseNet()
    x = net.input("x", 2, 8, 512, declared=["n", 8, 512])
    kept = net.input("kept", 2, 8, declared=["n", 8])
    y = net.op("Mul", net.op("Relu", net.dense(x, 512, 512)), net.op("Unsqueeze", kept, net.constant([2])))
    row, column = (net.op("Unsqueeze", kept, net.constant([axis])) for axis in (1, 2))
    both = net.op("Mul", row, column, name="both")
    bias = net.op("Cast", net.op("Not", net.op("Cast", both, to=onnx.TensorProto.BOOL)), to=1)
    scores = net.op("MatMul", y, net.op("Transpose", net.dense(y, 512, 512), perm=[0, 2, 1]))
    net.output(net.dense(net.op("MatMul", net.op("Add", scores, bias), y), 512, 512))
    program = assert_same_at_batches(net.model(), [1, 2, 5], {"x": (1, 8, 512), "kept": (1, 8)})
    assert places(program)["both"] == "onnxruntime"
    assert len(program.parts) == 2
