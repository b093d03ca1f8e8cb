"""Every operator that the kernels have, behind and before sparse layers, against onnxruntime."""

import numpy as np
import pytest
from nets import MICROSOFT
from sparse_nets import SparseNet, assert_same_as_onnxruntime, places

pytestmark = pytest.mark.usefixtures("every_region_pays")


def between_convolutions(operator, batch=17, channels=6, size=9, is_open=True, opset=20):
    """x -> conv -> operator(net, x) -> conv -> y"""
    net = SparseNet(opset=opset)
    declared = ["n", 4, *(["h", "w"] if is_open else [size, size])]
    x = net.conv(net.input("x", batch, 4, size, size, declared=declared), 4, channels, 3, name="before")
    out, channels = operator(net, x, channels)
    net.output(net.conv(out, channels, 5, 1, name="after"))
    return net


def between_products(operator, rows=(3, 7), columns=6):
    net = SparseNet(opset=20)
    x = net.dense(net.input("x", *rows, 5, declared=[*"abc"[: len(rows)], 5]), 5, columns, name="before")
    net.output(net.dense(operator(net, x, columns), columns, 4, name="after"))
    return net


def scalar(net, value):
    return net.constant(np.asarray(value, np.float32))


ACTIVATIONS = {
    "Relu": lambda net, x: net.op("Relu", x, name="op"),
    "Clip": lambda net, x: net.op("Clip", x, scalar(net, -0.5), scalar(net, 0.5), name="op"),
    "Clip below": lambda net, x: net.op("Clip", x, scalar(net, -0.5), name="op"),
    "LeakyRelu": lambda net, x: net.op("LeakyRelu", x, alpha=0.2, name="op"),
    "HardSigmoid": lambda net, x: net.op("HardSigmoid", x, alpha=0.25, beta=0.4, name="op"),
    "HardSwish": lambda net, x: net.op("HardSwish", x, name="op"),
    "Sigmoid": lambda net, x: net.op("Sigmoid", x, name="op"),
    "Tanh": lambda net, x: net.op("Tanh", x, name="op"),
    "Gelu": lambda net, x: net.op("Gelu", x, name="op"),
    "Gelu by tanh": lambda net, x: net.op("Gelu", x, approximate="tanh", name="op"),
    "Gelu of onnxruntime": lambda net, x: net.op("Gelu", x, domain=MICROSOFT, name="op"),
    "SiLU": lambda net, x: net.op("Mul", x, net.op("Sigmoid", x), name="op"),
    "SiLU, gate first": lambda net, x: net.op("Mul", net.op("Sigmoid", x), x, name="op"),
    "Elu": lambda net, x: net.op("Elu", x, alpha=0.7, name="op"),
    "Selu": lambda net, x: net.op("Selu", x, name="op"),
    "Mish": lambda net, x: net.op("Mish", x, name="op"),
    "Mish by its gate": lambda net, x: net.op("Mul", x, net.op("Tanh", net.op("Softplus", x)), name="op"),
    "HardSwish by its gate": lambda net, x: net.op(
        "Mul", x, net.op("HardSigmoid", x, alpha=1 / 6, beta=0.5), name="op"
    ),
    "Add a number": lambda net, x: net.op("Add", x, scalar(net, 0.25), name="op"),
    "Sub from a number": lambda net, x: net.op("Sub", scalar(net, 0.25), x, name="op"),
    "Sub a number": lambda net, x: net.op("Sub", x, scalar(net, 0.25), name="op"),
    "Mul by a number": lambda net, x: net.op("Mul", scalar(net, 0.25), x, name="op"),
    "Div by a number": lambda net, x: net.op("Div", x, scalar(net, 0.3), name="op"),
    "Identity": lambda net, x: net.op("Identity", x, name="op"),
    "Dropout": lambda net, x: net.op("Dropout", x, name="op"),
    "Add to itself": lambda net, x: net.op("Add", x, x, name="op"),
    "Mul by itself": lambda net, x: net.op("Mul", x, x, name="op"),
    "Square": lambda net, x: net.op("Pow", x, scalar(net, 2), name="op"),
    "Sub of what follows": lambda net, x: net.op("Sub", net.op("Tanh", x), x, name="op"),
}


@pytest.mark.parametrize("batch", [3, 17])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_elementwise_of_images(name, batch):
    net = between_convolutions(lambda net, x, c: (ACTIVATIONS[name](net, x), c), batch)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) == {"kernels"}


@pytest.mark.parametrize("rows", [(1, 3), (3, 7)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_elementwise_of_matrices(name, rows):
    net = between_products(lambda net, x, _: ACTIVATIONS[name](net, x), rows)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) == {"kernels"}


def test_parameters_that_are_stored_once():
    """torch.onnx gives equal parameters their names by Identity."""
    net = SparseNet()
    weight, ones, zeros = net.weight(6, 6), net.constant(np.ones(6)), net.constant(np.zeros(6))
    x = net.dense(net.input("x", 3, 5, 4, declared=["n", 5, 4]), 4, 6)
    for _ in range(2):
        x = net.op("Add", net.op("MatMul", x, net.op("Identity", weight)), net.op("Identity", zeros))
        x = net.op("LayerNormalization", x, net.op("Identity", ones), net.op("Identity", zeros))
    net.output(net.dense(x, 6, 3))
    net.output(net.op("Identity", ones, name="identity of a constant"))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert {place for name, place in places(program).items() if "identity" not in name} == {"kernels"}


def test_operands_that_nodes_make_out_of_constants():
    """As a table of positions, cut to the length of the sequence."""
    net = SparseNet()
    x = net.dense(net.input("x", 1, 5, 4), 4, 6)
    y = net.dense(net.op("Relu", x), 6, 6)
    table, start, end, axis = (net.constant(v) for v in (np.ones((1, 9, 6), np.float32), [2], [7], [1]))
    first, second = net.op("Split", net.constant(np.ones((1, 10, 6))), outputs=2, axis=1, num_outputs=2)
    x = net.op("Add", x, net.op("Slice", table, start, end, axis, name="positions"), name="sum")
    net.output(net.dense(net.op("Mul", net.op("Add", x, first), net.op("Add", y, second)), 6, 3))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert places(program)["sum"] == "kernels"
    assert places(program)["positions"] == "folded"
    assert len(program.parts) == 1


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1)])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_constant_per_channel_of_images(op, shape):
    def operator(net, x, channels):
        return net.op(op, x, net.constant(np.linspace(0.5, 2, channels, dtype=np.float32).reshape(shape))), channels

    net = between_convolutions(operator)
    assert set(places(assert_same_as_onnxruntime(net.model(), net.feeds)).values()) == {"kernels"}


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_constant_per_column_of_matrices(op):
    net = between_products(
        lambda net, x, columns: net.op(op, x, net.constant(np.linspace(0.5, 2, columns, dtype=np.float32)))
    )
    assert set(places(assert_same_as_onnxruntime(net.model(), net.feeds)).values()) == {"kernels"}


POOLS = {
    "MaxPool": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "MaxPool of an even window": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "MaxPool rounded up": {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
    "MaxPool to the same size": {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"},
    "MaxPool to the same size, low": {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"},
    "AveragePool": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "MaxPool to half the size": {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    "AveragePool with its padding": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
}


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("name", POOLS)
def test_pooling(name, batch):
    net = between_convolutions(
        lambda net, x, c: (net.op(name.split()[0], x, **POOLS[name]), c), batch, is_open="half" not in name
    )
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) == {"kernels"}


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("op", ["GlobalMaxPool", "ReduceMax"])
def test_the_maximum_of_an_image(op, batch):
    def attend(net, x, channels):
        axes = [net.constant([2, 3], dtype=np.int64)] if op == "ReduceMax" else []
        return net.op("Mul", x, net.conv(net.op(op, x, *axes), channels, channels, name="gate")), channels

    program = assert_same_as_onnxruntime((net := between_convolutions(attend, batch, is_open=False)).model(), net.feeds)
    assert set(places(program).values()) == {"kernels"}


def heads(net, x, kind):
    match kind:
        case "Flatten":
            return net.op("Flatten", net.op("GlobalAveragePool", x))
        case "Reshape":
            return net.op("Reshape", net.op("GlobalAveragePool", x), net.constant([0, -1], dtype=np.int64))
        case "Reshape to columns":
            return net.op("Reshape", net.op("GlobalAveragePool", x), net.constant([-1, 6], dtype=np.int64))
        case "Squeeze":
            return net.op("Squeeze", net.op("GlobalAveragePool", x), net.constant([2, 3], dtype=np.int64))
        case "ReduceMean":
            return net.op("ReduceMean", x, net.constant([2, 3], dtype=np.int64), keepdims=0)
        case _:
            mean = net.op("ReduceMean", x, net.constant([-1, -2], dtype=np.int64))
            return net.op("Flatten", mean)


@pytest.mark.parametrize("batch", [1, 18, 33])
@pytest.mark.parametrize(
    "kind", ["Flatten", "Reshape", "Reshape to columns", "Squeeze", "ReduceMean", "ReduceMean, Flatten"]
)
def test_classifier_behind_pooling(kind, batch):
    net = SparseNet(opset=20)
    x = net.conv(net.input("x", batch, 4, 5, 5, declared=["n", 4, 5, 5]), 4, 6, 3)
    rows = heads(net, x, kind)
    weight = net.weight(7, 6, fan_in=6)
    net.output(net.op("Gemm", rows, weight, net.constant(np.arange(7, dtype=np.float32)), transB=1))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) == {"kernels"}


@pytest.mark.parametrize("batch", [2, 17])
def test_flatten_of_whole_images(batch):
    net = SparseNet()
    x = net.conv(net.input("x", batch, 4, 5, 5, declared=["n", 4, 5, 5]), 4, 6, 3)
    net.output(net.dense(net.op("Flatten", net.op("Relu", x)), 150, 9))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) == {"kernels"}


GEMMS = {
    "plain": {},
    "transposed": {"transB": 1},
    "scaled": {"alpha": 0.5, "beta": 2.0, "transB": 1},
}


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("bias", [(), (1,), (7,), (1, 7)])
@pytest.mark.parametrize("name", GEMMS)
def test_gemm(name, bias, rows):
    net = SparseNet()
    weight = net.weight(*((7, 6) if GEMMS[name].get("transB") else (6, 7)))
    biases = [] if not bias else [net.constant(np.linspace(-1, 1, max(bias), dtype=np.float32).reshape(bias))]
    net.output(net.op("Gemm", net.input("x", rows, 6, declared=["n", 6]), weight, *biases, **GEMMS[name]))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) == {"kernels"}


CONVOLUTIONS = {
    "1x1": (1, {}),
    "3x3": (3, {"pads": [1, 1, 1, 1]}),
    "strided": (3, {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "dilated": (3, {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    "uneven": (3, {"pads": [0, 1, 2, 1], "strides": [1, 2]}),
    "same": (3, {"auto_pad": "SAME_UPPER"}),
    "valid": (3, {"auto_pad": "VALID"}),
    "grouped": (3, {"pads": [1, 1, 1, 1], "group": 2}),
    "depthwise": (3, {"pads": [1, 1, 1, 1], "group": 8}),
}


@pytest.mark.parametrize("batch", [1, 16, 20])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name, batch):
    kernel, attributes = CONVOLUTIONS[name]
    net = SparseNet()
    x = net.conv(net.input("x", batch, 4, 9, 9, declared=["n", 4, "h", "w"]), 4, 8, 1)
    weight = net.weight(8, 8 // attributes.get("group", 1), kernel, kernel, fan_in=8)
    bias = net.constant(np.linspace(-1, 1, 8, dtype=np.float32))
    y = net.op("Conv", x, weight, bias, **attributes)
    net.output(net.conv(net.op("Relu", y), 8, 5, 1))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) == {"kernels"}


ROOT = (2 / np.pi) ** 0.5


def cubic(net, x):
    """As torch's exporter writes the GELU of GPT-2."""
    cube = net.op("Mul", net.op("Pow", x, scalar(net, 3)), scalar(net, 0.044715))
    return net.op("Mul", net.op("Add", x, cube), scalar(net, ROOT))


def cubic_by_factors(net, x):
    """As that of BLOOM is written."""
    square = net.op("Mul", net.op("Mul", scalar(net, 0.044715), x), x)
    return net.op("Mul", net.op("Mul", scalar(net, 0.79788456), x), net.op("Add", scalar(net, 1), square))


def cubic_of_products(net, x):
    cube = net.op("Mul", net.op("Mul", x, x), x)
    return net.op("Div", net.op("Add", net.op("Mul", scalar(net, 0.044715), cube), x), scalar(net, 1 / ROOT))


@pytest.mark.parametrize("half", ["first", "last"])
@pytest.mark.parametrize("argument", [cubic, cubic_by_factors, cubic_of_products])
def test_gelu_by_tanh_spelled_out_is_one_activation(argument, half):
    def operator(net, x, _):
        phi = net.op("Add", scalar(net, 1), net.op("Tanh", argument(net, x)))
        if half == "first":
            return net.op("Mul", net.op("Mul", scalar(net, 0.5), x), phi)
        return net.op("Mul", scalar(net, 0.5), net.op("Mul", phi, x))

    net = between_products(operator)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    (region,) = program.parts
    assert [step.spec.activation[0] for step in region.region.steps] == ["gelu_tanh", "none"]


@pytest.mark.parametrize(
    "argument",
    [
        lambda net, x: net.op("Mul", x, scalar(net, 2**-0.5)),
        lambda net, x: net.op("Add", cubic(net, x), scalar(net, 0.1)),
        lambda net, x: net.op("Mul", cubic(net, x), net.op("Mul", x, x)),
        lambda net, x: net.op("Div", scalar(net, 1), net.op("Add", cubic(net, x), scalar(net, 99))),
        lambda net, x: cubic(net, net.op("Relu", x)),
    ],
)
def test_what_looks_like_gelu_by_tanh_is_computed_as_it_is(argument):
    def operator(net, x, _):
        phi = net.op("Add", net.op("Tanh", argument(net, x)), scalar(net, 1))
        return net.op("Mul", net.op("Mul", x, scalar(net, 0.5)), phi)

    net = between_products(operator)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    regions = [part.region for part in program.parts if hasattr(part, "region")]
    assert regions
    assert not any("gelu" in str(step.spec) for region in regions for step in region.steps)


@pytest.mark.parametrize("kind", ["BiasGelu", "FastGelu"])
def test_gelu_with_the_bias_before_it(kind):
    def operator(net, x, columns):
        bias = net.constant(np.linspace(-1, 1, columns, dtype=np.float32))
        return net.op(kind, x, bias, domain=MICROSOFT, name="op")

    net = between_products(operator)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) == {"kernels"}


@pytest.mark.parametrize("order", ["x/2 last", "half first", "half of x"])
def test_gelu_spelled_out_is_one_activation(order):
    def operator(net, x, _):
        phi = net.op("Add", net.op("Erf", net.op("Div", x, scalar(net, 2**0.5))), scalar(net, 1))
        if order == "x/2 last":
            return net.op("Mul", net.op("Mul", x, phi), scalar(net, 0.5))
        if order == "half first":
            return net.op("Mul", net.op("Mul", phi, scalar(net, 0.5)), x)
        return net.op("Mul", net.op("Mul", x, scalar(net, 0.5)), phi)

    net = between_products(operator)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    (region,) = program.parts
    assert [step.spec.activation[0] for step in region.region.steps] == ["gelu", "none"]
