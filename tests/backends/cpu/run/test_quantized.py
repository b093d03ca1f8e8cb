"""Quantized models on the kernels: onnxruntime's bits where it computes on integers, or within one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from exact_onnxruntime import exact_onnxruntime
from half_nets import halved
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from quantized_nets import (
    MICROSOFT,
    STATIC,
    Array,
    Batches,
    PrunedNet,
    dynamic,
    inputs_of,
    integer_net,
    of_weights_alone,
    quantized_in_the_graph,
    static,
    within_seven_bits,
)
from quantizer_spellings import SPELLINGS, as_arithmetic, without_bytes_between, without_zero_points
from sparse_nets import ONE_THREAD, places, reasons

import sift_onnx
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.lowering.specs import Attention, Dequantize, Quantize, QuantizedConv

pytestmark = pytest.mark.usefixtures("every_region_pays")


def assert_same(model: onnx.ModelProto, batches: tuple[int, ...] = (1, 3, 17), step: float | None = None) -> CpuProgram:
    """All of the model in the kernels, outputs within ``step``; None is one step of the last scale."""
    program = CpuProgram(model, ONE_THREAD)
    whole = exact_onnxruntime(model)
    assert set(places(program).values()) <= {"kernels", "folded"}, reasons(program)
    for batch in batches:
        feeds = inputs_of(model, batch, seed=batch)
        compare(program.run(feeds), whole.run(feeds), last_scale(program) if step is None else step)
    return program


def last_scale(program: CpuProgram) -> float:
    steps = [step for part in program.parts if isinstance(part, RegionProgram) for step in part.region.steps]
    last = steps[-1].spec
    return last.x.scale if isinstance(last, Dequantize) else 0.0


def compare(found: dict[str, Array], wanted: dict[str, Array], step: float) -> None:
    for name, array in wanted.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        most = 1.001 * step + 1e-5 * float(np.abs(array).max(initial=0))
        np.testing.assert_allclose(found[name].astype(np.float64), array, rtol=0, atol=most, err_msg=name)


@pytest.mark.parametrize(
    ("net", "spelling"),
    # Scales per channel do not depend on what lies between the layers.
    [*(("images", spelling) for spelling in STATIC), *(("gated", s) for s in STATIC if "per channel" not in s)],
)
def test_static_quantization(net: str, spelling: str) -> None:
    program = assert_same(static(net, spelling), batches=(1, 17))
    (part,) = program.parts
    assert isinstance(part, RegionProgram)
    borders = [step.spec for step in part.region.steps if isinstance(step.spec, (Quantize, Dequantize))]
    assert len(borders) == 2


@pytest.mark.parametrize("spelling", ["qdq", "qdq of int8", "qoperator"])
def test_convolutions_of_one_axis(spelling: str) -> None:
    program = assert_same(static("steps", spelling), batches=(1, 17))
    (part,) = program.parts
    assert isinstance(part, RegionProgram)
    layers = [step.spec for step in part.region.steps if isinstance(step.spec, QuantizedConv)]
    assert len(layers) == 4
    # Between them are bytes.
    assert all(spec.y is not None for spec in layers)
    why = [placement.reason for placement in program.placements if placement.op in ("Conv", "QLinearConv")]
    assert len(why) == 4
    assert all("int8" in reason for reason in why)


@pytest.mark.parametrize("spelling", ["qdq", "qdq per channel"])
def test_weights_that_the_graph_quantizes(spelling: str) -> None:
    program = assert_same(quantized_in_the_graph(static("images", spelling)), batches=(3,))
    assert "int8, " in reasons(program)["second"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_other_tools_write(spelling: str) -> None:
    program = assert_same(SPELLINGS[spelling](static("images", "qdq per channel")), batches=(3,))
    (part,) = program.parts
    assert isinstance(part, RegionProgram)
    borders = [step.spec for step in part.region.steps if isinstance(step.spec, (Quantize, Dequantize))]
    assert len(borders) == 2
    assert "int8, " in reasons(program)["second"]


def test_int8_without_zero_points() -> None:
    model = static("images", "symmetric qdq of int8")
    # onnxruntime 1.32 takes the type of an absent zero point for uint8 where it fuses a sum, and refuses the file.
    program = CpuProgram(without_zero_points(model), ONE_THREAD)
    feeds = inputs_of(model, 3)
    compare(program.run(feeds), exact_onnxruntime(model).run(feeds), last_scale(program))
    assert "int8, " in reasons(program)["second"]


def test_scales_of_halves() -> None:
    """A quantized model in float16 has int8 layers, too."""
    model = halved(static("images", "qdq per channel"))
    model.opset_import[0].version, model.ir_version = 21, 10
    program = CpuProgram(model, ONE_THREAD)
    assert "int8, " in reasons(program)["second"]
    assert len(program.parts) == 1
    feeds = {name: array.astype(np.float16) for name, array in inputs_of(model, 3).items()}
    compare(program.run(feeds), exact_onnxruntime(model).run(feeds), last_scale(program))


def test_floats_between_a_layer_and_a_sum() -> None:
    model = without_bytes_between(static("images", "qdq per channel"), "Conv", "Add")
    assert "int8, " in reasons(assert_same(model, batches=(3,)))["second"]


@pytest.mark.parametrize("has_zeros", [False, True])
def test_normalization_after_a_layer_of_bytes(has_zeros: bool) -> None:
    net = PrunedNet(opset=17)
    point = net.constant(np.float32(0.05)), net.constant(np.uint8(120))
    x = net.input("x", 2, 8, 6, 6, declared=["n", 8, 6, 6])
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", x, *point), *point)
    stored = np.arange(-36, 36, dtype=np.int8).reshape(1, 8, 3, 3).repeat(16, 0)
    stored[np.arange(16) % 3 > 0] = 0
    weight = net.constant(stored, "w"), net.constant(np.float32(0.004)), net.constant(np.int8(0))
    x = net.op("Conv", x, net.op("DequantizeLinear", *weight), pads=[1] * 4, name="conv")
    gamma = np.linspace(-2, 2, 16)
    gamma[::4] = 0 if has_zeros else gamma[::4]
    scales = [net.constant(values) for values in (gamma, np.linspace(-1, 1, 16), np.full(16, 0.1), np.full(16, 0.5))]
    x = net.op("Relu", net.op("BatchNormalization", x, *scales))
    net.output(net.op("DequantizeLinear", net.op("QuantizeLinear", x, *point), *point))
    program = assert_same(net.model(), batches=(1, 17))
    (part,) = program.parts
    assert isinstance(part, RegionProgram)
    assert len(part.region.steps) == (4 if has_zeros else 3)


def test_dequantized_weights_of_float_layers_as_arithmetic() -> None:
    model = as_arithmetic(of_weights_alone(static("images", "qdq per channel")))
    program = assert_same(model, batches=(3,), step=0.01)
    assert "of its weights are pruned" in reasons(program)["second"]


@pytest.mark.parametrize("spelling", ["qdq per channel", "qdq with asymmetric weights of uint8"])
def test_dequantized_weights_of_float_layers(spelling: str) -> None:
    # For the product, onnxruntime makes bytes of the operand by itself.
    program = assert_same(of_weights_alone(static("images", spelling)), batches=(3,), step=0.01)
    assert "of its weights are pruned" in reasons(program)["second"]


def test_bytes_that_are_cut_off_within_seven_bits() -> None:
    program = assert_same(within_seven_bits(static("images", "qdq per channel")), batches=(3,))
    assert len(program.parts) == 1


def _of_one_byte(net: PrunedNet, x: str, kind: str) -> str:
    """A function of x that nodes compute of it twice."""
    half = net.op("Mul", x, net.constant(np.float32(0.5)))
    if kind in ("Max", "Min"):
        return str(net.op(kind, x, half))
    if kind == "Pow":
        return str(net.op("Pow", net.op("Abs", x), net.op("Sigmoid", half)))
    if kind == "IsNaN":
        return str(net.op("Where", net.op("IsNaN", x), net.constant(np.float32(0)), half))
    condition = net.op(kind, x, half)
    if kind == "Greater":
        return str(net.op("Where", condition, x, net.constant(np.float32(-0.25))))
    if kind == "LessOrEqual":
        return str(net.op("Where", condition, net.constant(np.float32(0.25)), half))
    return str(net.op("Add", half, net.op("Cast", condition, to=onnx.TensorProto.FLOAT)))


@pytest.mark.parametrize(
    "kind", ["Max", "Min", "Pow", "IsNaN", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"]
)
def test_functions_of_one_byte_are_tables(kind: str, tmp_path: Path) -> None:
    net = PrunedNet(opset=17)
    x = net.conv(net.input("x", 2, 8, 6, 6, declared=["n", 8, 6, 6]), 8, 16, 3, name="before")
    net.output(net.conv(_of_one_byte(net, x, kind), 16, 8, 3, name="behind"))
    onnx.save(net.model(), tmp_path / "floats.onnx")
    quantize_static(
        str(tmp_path / "floats.onnx"), str(tmp_path / "bytes.onnx"), Batches(net.model(), 1),
        quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8, op_types_to_quantize=["Conv"],
    )  # fmt: skip
    assert_same(onnx.load(tmp_path / "bytes.onnx"), batches=(1, 3))


@pytest.mark.parametrize("spelling", ["qdq", "qdq of int8"])
@pytest.mark.parametrize("net", ["attention", "guarded attention"])
def test_attention_between_bytes(spelling: str, net: str) -> None:
    # Weights that are rounded twice may be a step apart each time; a step of the result is 0.024.
    program = assert_same(static(net, spelling), batches=(1, 4), step=0.048 if net == "guarded attention" else None)
    (part,) = program.parts
    assert isinstance(part, RegionProgram)
    (attention,) = (step.spec for step in part.region.steps if isinstance(step.spec, Attention))
    assert attention.roundings.weights


@pytest.mark.parametrize("spelling", ["qdq", "qdq of int8"])
def test_products_and_biases_between_bytes(spelling: str) -> None:
    assert_same(static("tokens", spelling), batches=(1, 5))


@pytest.mark.parametrize("net", ["images", "tokens"])
def test_dynamic_quantization(net: str) -> None:
    assert_same(dynamic(net), batches=(1, 4, 13), step=0.0)


def test_layers_quantized_in_the_run_have_the_bits_of_their_operand() -> None:
    """Floats before a quantizer may differ in their last bits, and then a byte; what is made of them does not."""
    net = PrunedNet(17)
    vectors = [net.constant(np.linspace(0.5, 1.5, 32, dtype=np.float32)) for _ in range(2)]
    x = net.op("LayerNormalization", net.input("x", 2, 9, 32, declared=["n", 9, 32]), *vectors, axis=-1)
    bytes_, scale, zero = net.op("DynamicQuantizeLinear", x, outputs=3)
    weight = (np.random.default_rng(0).integers(-128, 128, (32, 24)) * (np.arange(24) % 3 == 0)).astype(np.int8)
    y = net.op("MatMulInteger", bytes_, net.constant(weight, "w"), zero, net.constant(np.int8(3)), name="layer")
    y = net.op("Mul", net.op("Cast", y, to=1), net.op("Mul", scale, net.constant(np.float32(0.013))))
    y = net.op("Add", y, net.constant(np.linspace(-1, 1, 24, dtype=np.float32)))
    for name in (x, y):
        net.output(name)
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    assert places(program)["layer"] == "kernels"
    tail = onnx.utils.Extractor(model).extract_model([x], [y])
    for batch in (1, 4, 16, 21):
        found = program.run(inputs_of(model, batch, seed=batch))
        wanted = exact_onnxruntime(tail).run({x: found[x]})
        np.testing.assert_array_equal(found[y], wanted[y])


def test_transposed_convolutions_of_dequantized_weights() -> None:
    program = assert_same(static("upsampled", "qdq per channel"), batches=(1, 3))
    assert len(program.parts) == 1


def test_layers_of_integers() -> None:
    model = integer_net()
    program = assert_same(model, step=0.05)
    assert "int8, " in reasons(program)["b"]


@pytest.mark.parametrize("is_pooled", [False, True])
def test_layers_of_integers_have_the_bits_of_their_floats(is_pooled: bool) -> None:
    # Both the floats between two layers and their quotients are rounded: quantizing at once would differ at halves.
    model = integer_net(is_pooled=is_pooled, has_head=False)
    program, whole = CpuProgram(model, ONE_THREAD), exact_onnxruntime(model)
    for seed in range(6):
        feeds = inputs_of(model, 16, seed)
        found, wanted = program.run(feeds), whole.run(feeds)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)


class TestBytesAtTheBorder:
    """Models whose inputs and outputs are bytes themselves: nothing hides a wrong bit."""

    @pytest.mark.parametrize("dtype", [np.uint8, np.int8])
    @pytest.mark.parametrize(("size", "batch"), [(7, 1), (5, 3), (8, 17)])
    def test_a_convolution_is_exact(self, dtype: type[Any], size: int, batch: int) -> None:
        net = ByteNet(dtype, batch, 6, size)
        net.output_bytes(net.qconv("x", 6, 9, 3, pads=[1] * 4))
        net.assert_exact()

    @pytest.mark.parametrize("dtype", [np.uint8, np.int8])
    def test_bytes_that_leave_and_are_read_on(self, dtype: type[Any]) -> None:
        net = ByteNet(dtype, 2, 8, 6)
        y = net.qconv("x", 8, 8, 3, pads=[1] * 4, strides=[2, 2])
        net.output_bytes(y)
        z = net.op("MaxPool", y, kernel_shape=[2, 2])
        z = net.op("Concat", z, z, axis=1)
        net.output_bytes(net.op("Transpose", z, perm=[0, 2, 3, 1]))
        net.output_bytes(net.op("Flatten", net.qconv(z, 16, 5, 2)))
        net.assert_exact()

    def test_positions_that_are_moved(self) -> None:
        net = ByteNet(np.int8, 3, 8, 6)
        y = net.qconv("x", 8, 6, 1)
        ends = [net.constant(np.array(values)) for values in ([1, 5], [6, 0], [2, 3], [2, -1])]
        cut = net.op("Slice", y, *ends)
        net.output_bytes(net.qconv(cut, 6, 5, 1))
        turned = net.op("Transpose", y, perm=[0, 1, 3, 2])
        net.output_bytes(net.qconv(turned, 6, 5, 2))
        larger = net.op("Resize", y, "", net.constant(np.array([1, 1, 2, 1.5], np.float32)), mode="nearest")
        net.output_bytes(net.qconv(larger, 6, 5, 3))
        net.output_bytes(net.op("Flatten", net.op("Transpose", y, perm=[0, 2, 3, 1])))
        net.assert_exact()

    @pytest.mark.parametrize("dtype", [np.uint8, np.int8])
    def test_bytes_around_an_image(self, dtype: type[Any]) -> None:
        net = ByteNet(dtype, 3, 8, 5)
        y = net.qconv("x", 8, 6, 1)
        pads = net.constant(np.array([0, 0, 1, 0, 0, 0, 0, 2]))
        for value in ([net.constant(17, dtype=dtype)], []):
            net.output_bytes(net.qconv(net.op("Pad", y, pads, *value), 6, 5, 3))
        net.assert_exact()

    @pytest.mark.parametrize("dtype", [np.uint8, np.int8])
    @pytest.mark.parametrize(
        ("op", "scale", "attrs"),
        [
            ("QLinearGlobalAveragePool", 0.03, {}),
            ("QLinearAveragePool", 0.03, {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}),
            ("QLinearSigmoid", 1 / 256, {}),
            ("QLinearLeakyRelu", 0.02, {"alpha": 0.1}),
        ],
    )
    def test_sums_and_what_reads_them(self, dtype: type[Any], op: str, scale: float, attrs: dict[str, Any]) -> None:
        net = ByteNet(dtype, 3, 8, 5)
        total = net.qadd(net.qconv("x", 8, 8, 1), net.qconv("x", 8, 8, 3, pads=[1] * 4))
        net.output_bytes(net.op(op, total, *net.point(), *net.point(scale), domain=MICROSOFT, **attrs))
        # onnxruntime adds up floats for means of windows, which rounds halves either way.
        net.assert_exact(steps=int(op == "QLinearAveragePool"))

    @pytest.mark.parametrize("dtype", [np.uint8, np.int8])
    @pytest.mark.parametrize("is_first", [False, True])
    def test_gates_of_one_value_for_each_channel(self, dtype: type[Any], is_first: bool) -> None:
        net = ByteNet(dtype, 3, 8, 5)
        y = net.qconv("x", 8, 8, 1)
        gates = net.op("QLinearGlobalAveragePool", y, *net.point(), *net.point(0.01), domain=MICROSOFT)
        operands = [(y, *net.point()), (gates, *net.point(0.01))][:: -1 if is_first else 1]
        net.output_bytes(net.op("QLinearMul", *operands[0], *operands[1], *net.point(), domain=MICROSOFT))
        net.assert_exact(steps=1)

    def test_products(self) -> None:
        net = ByteNet(np.uint8, 3, 8, 5)
        x = net.op("Reshape", "x", net.constant(np.array([-1, 40])))
        scales = [(net.constant(np.float32(0.01)), net.constant(np.int8(0))) for _ in range(2)]
        net.output_bytes(net.op("QLinearMatMul", x, *net.point(), net.integers(40, 12), *scales[0], *net.point()))
        bias = net.constant(np.arange(12, dtype=np.int32) * 50)
        y = net.op("QGemm", x, *net.point(), net.integers(12, 40), *scales[1], bias, *net.point(), transB=1,
                   domain=MICROSOFT)  # fmt: skip
        net.output_bytes(y)
        net.assert_exact()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from([np.uint8, np.int8]),
    groups=st.sampled_from([1, 1, 2, 5]),
    channels=st.integers(1, 7),
    rows=st.integers(1, 6),
    kernel=st.sampled_from([1, 2, 3]),
    stride=st.sampled_from([1, 2]),
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    zeros=st.tuples(st.integers(0, 255), st.integers(0, 255)),
    scale=st.sampled_from([0.003, 0.05, 4.0]),
    density=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_any_convolution_of_bytes_is_exact(
    dtype: type[Any], groups: int, channels: int, rows: int, kernel: int, stride: int, pads: list[int],
    zeros: tuple[int, int], scale: float, density: float, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    low = int(np.iinfo(dtype).min)
    net = ByteNet(dtype, 2, groups * channels, 5)
    shape = (groups * rows, channels, kernel, kernel)
    weights = rng.integers(-128, 128, shape) * (rng.random(shape) < density)
    weights[: groups * rows // 2] = 0
    point, result = ((net.constant(np.float32(0.02)), net.constant(zero + low, dtype=dtype)) for zero in zeros)
    of_weights = (
        net.constant(weights.astype(np.int8)),
        net.constant((rng.random(groups * rows) * 0.02 + 0.001).astype(np.float32)),
        net.constant(np.zeros(groups * rows, np.int8)),
    )
    result = (net.constant(np.float32(scale)), result[1])
    bias = net.constant(rng.integers(-4000, 4000, groups * rows).astype(np.int32))
    net.output_bytes(net.op("QLinearConv", "x", *point, *of_weights, *result, bias, group=groups, pads=pads,
                            strides=[stride, stride]))  # fmt: skip
    net.assert_exact()


class ByteNet(PrunedNet):
    """A net of onnxruntime's quantized operators from bytes to bytes."""

    def __init__(self, dtype: type[Any], batch: int, channels: int, size: int) -> None:
        super().__init__(opset=17)
        self.dtype = dtype
        low = np.iinfo(dtype).min
        values = self._rng.integers(low, low + 256, (batch, channels, size, size)).astype(dtype)
        self.input("x", values=values, declared=["n", channels, size, size])
        self.wanted: list[str] = []

    def point(self, scale: float = 0.03) -> tuple[str, str]:
        zero = self._rng.integers(100, 150) if self.dtype is np.uint8 else self._rng.integers(-20, 20)
        return self.constant(np.float32(scale)), self.constant(zero, dtype=self.dtype)

    def integers(self, *shape: int) -> str:
        kept = self._rng.random(shape) < 0.4
        return self.constant(np.where(kept, self._rng.integers(-127, 128, shape), 0).astype(np.int8))

    def qconv(self, x: str, inputs: int, outputs: int, kernel: int, **attrs: Any) -> str:
        scales = self.constant(np.linspace(0.002, 0.01, outputs, dtype=np.float32))
        zeros = self.constant(np.zeros(outputs, np.int8))
        bias = self.constant(self._rng.integers(-3000, 3000, outputs).astype(np.int32))
        weight = self.integers(outputs, inputs, kernel, kernel)
        return str(self.op("QLinearConv", x, *self.point(), weight, scales, zeros, *self.point(), bias, **attrs))

    def qadd(self, a: str, b: str) -> str:
        return str(self.op("QLinearAdd", a, *self.point(), b, *self.point(), *self.point(0.05), domain=MICROSOFT))

    def output_bytes(self, name: str) -> None:
        self.wanted.append(name)

    def assert_exact(self, steps: int = 0) -> None:
        """Every output has onnxruntime's bits, or differs by as many steps at most."""
        for name in self.wanted:
            self.output(name)
        model = self.model()
        for info in model.graph.output:
            info.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        program = CpuProgram(model, ONE_THREAD)
        assert set(places(program).values()) <= {"kernels", "folded"}, reasons(program)
        found, wanted = program.run(self.feeds), exact_onnxruntime(model).run(self.feeds)
        for name, array in wanted.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(found[name].astype(int), array.astype(int), rtol=0, atol=steps, err_msg=name)


def test_floats_between_quantized_layers_of_images_are_quantized_where_they_are_made() -> None:
    # Also where a batch would fill the lanes of images, from which quads are made value by value.
    report = sift_onnx.profile(integer_net(), batch=32, threads=1)
    kernels = [node.kernel for node in report.nodes if node.op == "QuantizeLinear" and node.kernel]
    assert kernels == ["quantize planes", "quantize images16"]  # of the input, and of the rows after pooling
    products = [node.kernel for node in report.nodes if node.op == "ConvInteger"]
    assert len(products) == 3
    assert all(kernel and "images16" not in kernel for kernel in products), products
