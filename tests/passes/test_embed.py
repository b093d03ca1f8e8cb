"""Wide with ``init="embed"``: the wide model computes what the original does, at exactly its cost."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import linear, mask_weights, random_weight
from nets import Net, run
from onnx import numpy_helper

from sift_onnx.errors import PreconditionError, UnsupportedError, UsageError
from sift_onnx.graphs.constants import array_of, sparse_weight_of
from sift_onnx.model import Model
from sift_onnx.models import export
from sift_onnx.passes import UnshareInitializers, Wide
from sift_onnx.passes.base import PassResult

Array = np.ndarray[Any, np.dtype[Any]]
NORMS = ("BatchNormalization", "InstanceNormalization")


def as_trained(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with parameters of normalizations, biases and zero-initialised kernels as training leaves them."""
    trained = UnshareInitializers()(Model.load(proto)).model.to_proto()
    rng = np.random.default_rng(0)
    tensors = {tensor.name: tensor for tensor in trained.graph.initializer}

    def draw(name: str, low: float, high: float) -> None:
        values = rng.uniform(low, high, tuple(tensors[name].dims)).astype(np.float32)
        tensors[name].CopyFrom(numpy_helper.from_array(values, name))

    for node in trained.graph.node:
        if node.op_type in NORMS:
            for name, low in zip(node.input[1:], (0.5, -0.3, -0.3, 0.5), strict=False):
                draw(name, low, low + (1.0 if low > 0 else 0.6))
        if node.op_type in ("Conv", "Gemm"):
            for name in node.input[2:]:
                draw(name, -0.3, 0.3)
            if not numpy_helper.to_array(tensors[node.input[1]]).any():
                draw(node.input[1], -0.1, 0.1)
    return trained


def embedded(proto: onnx.ModelProto, feeds: Mapping[str, Array], sparsity: str = "0.75", **settings: Any) -> PassResult:
    """Embed a model in a wider one, and check what is promised."""
    result = Wide(sparsity, init="embed", **settings)(proto)
    wide = result.model.to_proto()
    onnx.checker.check_model(wide, full_check=True)
    before, after = run(proto, feeds), run(wide, feeds)
    for output in proto.graph.output:
        expected = before[output.name]
        assert np.ptp(expected) > 0, "an output of one value tells nothing"
        np.testing.assert_allclose(after[output.name], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert all(np.isfinite(values).all() for values in after.values() if values.dtype.kind == "f")
    assert any(layer["status"] == "sparse" for layer in result.report["layers"])
    masked = result.model.masked()
    for layer in result.report["layers"]:
        assert layer["macs_after"] == layer["macs_before"]
        if layer["shape_after"] == layer["shape_before"]:
            continue
        assert layer["status"] == "sparse"
        assert layer["nnz"] == math.prod(layer["shape_before"])
        assert sparse_weight_of(masked[layer["name"]]).nnz == layer["nnz"]
    return result


def net_of(build: Callable[[Net], None], opset: int = 20) -> Net:
    net = Net(opset)
    build(net)
    return net


def feed(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


# Networks from both exporters.


@lru_cache(maxsize=2)
def export_of(network: str, width: float, **options: Any) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        export(network, Path(folder) / "m.onnx", width=width, num_classes=10, **options)
        return as_trained(onnx.load(Path(folder) / "m.onnx"))


@pytest.mark.parametrize("sparsity", ["0.5", "0.75", "0.9"])
@pytest.mark.parametrize("keep_batch_norm", [False, True])
@pytest.mark.parametrize(
    ("network", "width"), [("resnet18-cifar", 0.25), ("resnet50-cifar", 0.25), ("mobilenetv2-cifar", 0.5)]
)
def test_a_trained_network_keeps_its_outputs(network: str, width: float, keep_batch_norm: bool, sparsity: str) -> None:
    proto = export_of(network, width, keep_batch_norm=keep_batch_norm)
    assert any(node.op_type == "BatchNormalization" for node in proto.graph.node) == keep_batch_norm
    report = embedded(proto, {proto.graph.input[0].name: feed((1, 3, 32, 32))}, sparsity).report
    assert report["totals"]["weight_macs_after"] == report["totals"]["weight_macs_before"]
    assert report["totals"]["nnz_after"] == report["totals"]["nnz_before"]
    assert {layer["status"] for layer in report["layers"]} == {"sparse"}


@pytest.mark.parametrize("network", ["resnet18-cifar", "mobilenetv2-cifar"])
def test_exports_of_dynamo_with_a_dynamic_batch_keep_their_outputs(network: str) -> None:
    proto = export_of(network, 0.25, exporter="dynamo", batch="dynamic", keep_batch_norm=False)
    embedded(proto, {proto.graph.input[0].name: feed((3, 3, 32, 32))})


# What blocks of networks do to features.


def dense_block(net: Net) -> None:
    x = net.images(6)
    for i in range(3):
        grown = net.conv(net.op("Relu", x), 6 + 4 * i, 4, 3, name=f"layer{i}")
        x = net.op("Concat", x, grown, axis=1)
    net.images_end(x, 18)


def squeeze_and_excitation(net: Net) -> None:
    x = net.images(8)
    pooled = net.op("ReduceMean", x, net.constant([2, 3]), keepdims=1)
    gate = net.conv(net.op("Relu", net.conv(pooled, 8, 4)), 4, 8)
    net.images_end(net.op("Mul", x, net.op("HardSigmoid", gate)), 8)


def grouped(net: Net) -> None:
    x = net.images(12)
    net.images_end(net.op("Add", x, net.conv(net.op("Relu", net.conv(x, 12, 12, 3, group=3)), 12, 12)), 12)


def depthwise_multiplier(net: Net) -> None:
    net.images_end(net.op("Relu", net.conv(net.images(6), 6, 12, 3, group=6)), 12)


def channel_shuffle(net: Net) -> None:
    x = net.op("Reshape", net.conv(net.images(12), 12, 12, group=3), net.constant([1, 3, 4, 8, 8]))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1, 3, 4]), net.constant([1, 12, 8, 8]))
    net.images_end(net.conv(x, 12, 12, 3, group=12), 12)


def two_branches(net: Net) -> None:
    x = net.images(8)
    kept, other = net.op("Split", x, axis=1, outputs=2, num_outputs=2)
    x = net.op("Concat", kept, net.op("Relu", net.conv(other, 4, 4)), axis=1)
    x = net.op("Reshape", x, net.constant([1, 2, 4, 8, 8]))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1, 3, 4]), net.constant([1, 8, 8, 8]))
    ends = [net.op("Slice", x, *(net.constant([n]) for n in bounds)) for bounds in ((0, 4, 1), (4, 8, 1))]
    net.images_end(net.op("Concat", ends[1], net.conv(ends[0], 4, 4, 3), axis=1), 8)


def flattened(net: Net) -> None:
    x = net.op("Flatten", net.op("Relu", net.images(5, size=4)))
    x = net.op("Gemm", x, net.weight(7, 80, name="fc.weight"), net.weight(7, fan_in=1), transB=1, name="fc")
    net.output(net.op("Gemm", net.op("Relu", x), net.weight(7, 3, name="out.weight"), name="out"))


def flattened_channels_last(net: Net) -> None:
    x = net.op("Flatten", net.op("Transpose", net.images(5, size=4), perm=[0, 2, 3, 1]))
    net.output(net.dense(net.op("Relu", net.dense(x, 80, 7)), 7, 3))


def padded_shortcut(net: Net) -> None:
    x = net.images(6)
    shortcut = net.op("Pad", x, net.constant([0, 2, 0, 0, 0, 4, 0, 0]))
    net.images_end(net.op("Add", shortcut, net.conv(x, 6, 12, 3)), 12)


def upsampled(net: Net) -> None:
    x = net.op("ConvTranspose", net.images(6), net.weight(6, 4, 2, 2, name="up.weight"), strides=[2, 2], name="up")
    net.images_end(net.op("Resize", x, "", net.constant([1.0, 1.0, 2.0, 2.0]), mode="nearest"), 4)


def depth_to_space(net: Net) -> None:
    net.images_end(net.op("DepthToSpace", net.conv(net.images(6), 6, 12), blocksize=2, mode="CRD"), 3)


def normalized_by_instance(net: Net) -> None:
    gamma, beta = net.weight(6, fan_in=1), net.weight(6, fan_in=1)
    net.images_end(net.op("InstanceNormalization", net.images(6), gamma, beta), 6)


def scaled_and_sloped(net: Net) -> None:
    x = net.op("Mul", net.images(6), net.weight(6, 1, 1, fan_in=1))
    x = net.op("PRelu", net.op("Div", x, net.constant(np.linspace(1, 2, 6).reshape(6, 1, 1))), net.weight(6, 1, 1))
    net.images_end(net.op("Sub", x, net.weight(6, 1, 1, fan_in=1)), 6)


def subtracted_and_divided(net: Net) -> None:
    """One parameter that is read twice: what is added to it must fit both."""
    shared = net.constant(np.linspace(1, 2, 6).reshape(6, 1, 1))
    net.images_end(net.op("Div", net.op("Sub", net.images(6), shared), shared), 6)


def gated_tokens(net: Net) -> None:
    x = net.dense(net.tokens(8), 8, 12)
    a, b = net.op("Split", x, net.constant([6, 6]), axis=-1, outputs=2)
    net.tokens_end(net.op("Mul", a, net.op("Sigmoid", b)), 6)


BLOCKS = [
    dense_block,
    squeeze_and_excitation,
    grouped,
    depthwise_multiplier,
    channel_shuffle,
    two_branches,
    flattened,
    flattened_channels_last,
    padded_shortcut,
    upsampled,
    depth_to_space,
    normalized_by_instance,
    scaled_and_sloped,
    subtracted_and_divided,
    gated_tokens,
]


@pytest.mark.parametrize("sparsity", ["0.5", "0.75", "0.9"])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_keeps_its_outputs(block: Callable[[Net], None], sparsity: str) -> None:
    net = net_of(block)
    embedded(net.model(), net.feeds, sparsity)


# Where things lie.


def perceptron(*widths: int) -> onnx.ModelProto:
    return linear({f"w{i}": random_weight(a, b, seed=i) for i, (a, b) in enumerate(itertools.pairwise(widths))})


def test_the_features_of_each_part_of_a_concatenation_start_where_that_part_starts() -> None:
    net = Net()
    x = net.images(4)
    net.images_end(net.op("Concat", net.conv(x, 4, 4, name="a"), net.conv(x, 4, 6, name="b"), axis=1), 10)
    result = embedded(net.model(), net.feeds)
    mask = sparse_weight_of(result.model.masked()["after.weight"]).mask()
    assert mask.shape[:2] == (12, 20)
    assert np.flatnonzero(mask.any(axis=(0, 2, 3))).tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 12, 13]


def test_a_weight_that_is_zero_stays_active() -> None:
    weights = {f"w{i}": random_weight(6, 6, seed=i) for i in range(3)}
    weights["w1"][2, 3] = 0
    weight = sparse_weight_of(Wide("0.75", init="embed")(linear(weights)).model.masked()["w1"])
    assert weight.nnz == 36
    assert weight.active_zeros().tolist() == [2 * 12 + 3]
    np.testing.assert_array_equal(weight.to_dense()[:6, :6], weights["w1"])


def test_a_kernel_of_zeros_stays_active() -> None:
    weights = {"w0": random_weight(6, 6), "w1": np.zeros((6, 6), np.float32), "w2": random_weight(6, 6)}
    result = Wide("0.75", init="embed")(linear(weights))
    assert sparse_weight_of(result.model.masked()["w1"]).nnz == 36


def test_the_mask_of_a_masked_original_is_embedded() -> None:
    model = mask_weights(Model.load(perceptron(6, 6, 6, 6)), names=["w1"])
    before = sparse_weight_of(model.masked()["w1"])
    result = Wide("0.75", init="embed")(model)
    after = sparse_weight_of(result.model.masked()["w1"])
    np.testing.assert_array_equal(after.mask()[:6, :6], before.mask())
    assert after.nnz == before.nnz
    assert result.report["totals"]["weight_macs_after"] == result.report["totals"]["weight_macs_before"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_the_data_type_stays(dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    proto = linear({f"w{i}": random_weight(6, 6, seed=i, dtype=kind) for i in range(3)}, ir_version=10)
    model = Wide("0.75", init="embed")(proto).model
    original = Model.load(proto).initializers()
    for name, constant in model.initializers().items():
        values = array_of(constant)
        assert values.dtype == kind
        if name in original:
            np.testing.assert_array_equal(values[:6, :6], array_of(original[name]))


# What makes added features reachable.


def gradient(proto: onnx.ModelProto, feeds: Mapping[str, Array], weight: str, index: tuple[int, ...]) -> float:
    """The derivative of a fixed sum of the outputs with respect to one weight, by a central difference."""
    sums = []
    for step in (1e-2, -1e-2):
        moved = onnx.ModelProto.FromString(proto.SerializeToString())
        tensor = next(t for t in moved.graph.initializer if t.name == weight)
        values = numpy_helper.to_array(tensor).copy()
        values[index] += step
        tensor.CopyFrom(numpy_helper.from_array(values, weight))
        outputs = run(moved, feeds)
        sums.append(sum(float(np.sum(outputs[info.name], dtype=np.float64)) for info in moved.graph.output))
    return (sums[0] - sums[1]) / 2e-2


def normalized(net: Net) -> None:
    x = net.conv(net.input("x", 1, 3, 8, 8), 3, 6, 3, name="stem")
    x = net.conv(net.op("Relu", x), 6, 6, 3, name="before")
    parameters = [net.constant(np.full(6, value, np.float32)) for value in (1, 0, 0, 1)]
    x = net.op("Relu", net.op("BatchNormalization", x, *parameters))
    net.output(net.conv(net.conv(x, 6, 6, name="after"), 6, 2, name="head"))


def plain(net: Net) -> None:
    net.images_end(net.images(6), 6)


@pytest.mark.parametrize("block", [normalized, plain, squeeze_and_excitation])
def test_gradients_reach_the_outgoing_weights_of_an_added_feature_and_then_the_incoming_ones(
    block: Callable[[Net], None],
) -> None:
    net = net_of(block)
    wide = embedded(net.model(), net.feeds).model.to_proto()
    added = next(t for t in wide.graph.initializer if t.name == "before.weight").dims[0] - 1
    incoming = (added, 0, 0, 0)
    # Some of the features behind may be off for this image.
    outgoing = next(
        (i, added, 0, 0) for i in range(6) if gradient(wide, net.feeds, "after.weight", (i, added, 0, 0)) != 0
    )
    assert gradient(wide, net.feeds, "before.weight", incoming) == 0
    tensor = next(t for t in wide.graph.initializer if t.name == "after.weight")
    grown = numpy_helper.to_array(tensor).copy()
    grown[outgoing] = 1.0
    tensor.CopyFrom(numpy_helper.from_array(grown, tensor.name))
    assert gradient(wide, net.feeds, "before.weight", incoming) != 0


def test_a_layer_without_a_bias_gets_one_that_leaves_old_features_alone() -> None:
    net = net_of(plain)
    result = embedded(net.model(), net.feeds)
    model = result.model
    assert result.report["biases_added"] == ["stem.bias", "before.bias", "after.bias"]
    bias = array_of(model.initializers()["before.bias"])
    assert np.all(bias[:6] == 0)
    assert np.all(bias[6:] > 0)
    assert len(set(bias[6:].tolist())) == 6
    assert "head.bias" not in model.initializers()


def test_a_layer_before_a_normalization_gets_none() -> None:
    net = net_of(normalized)
    model = embedded(net.model(), net.feeds).model
    assert "before.bias" not in model.initializers()
    norm = next(node for node in model.graph.nodes if node.op == "BatchNormalization")
    scale, shift, mean, variance = (array_of(tensor)[6:] for tensor in norm.inputs[1:])
    assert np.all(scale == 1)
    assert np.all(mean == 0)
    assert np.all(variance == 1)
    assert np.all(shift > 0)


def test_a_matrix_product_gets_an_addition() -> None:
    model = Wide("0.75", init="embed")(perceptron(4, 6, 6, 4)).model
    assert [node.op for node in model.graph.nodes] == ["MatMul", "Add", "MatMul", "Add", "MatMul"]
    assert model.graph.nodes[-1].outputs[0].name == "y"


def test_shifts_are_as_large_as_the_biases_that_are_there() -> None:
    net = Net()
    biases = np.linspace(-0.4, 0.4, 6).astype(np.float32)
    x = net.conv(net.input("x", 1, 3, 8, 8), 3, 6, name="stem")
    x = net.op("Conv", net.op("Relu", x), net.weight(6, 6, 1, 1, name="mid.weight"), net.constant(biases, "mid.bias"))
    net.output(net.conv(net.op("Relu", net.conv(x, 6, 6)), 6, 2))
    bias = array_of(embedded(net.model(), net.feeds).model.initializers()["mid.bias"])
    np.testing.assert_array_equal(bias[:6], biases)
    assert np.all((bias[6:] >= 0.5 * biases.std()) & (bias[6:] <= 1.5 * biases.std()))


# Repetition.


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_shifts() -> None:
    net = net_of(squeeze_and_excitation)
    first, second, other = (Wide("0.75", init="embed", seed=seed)(net.model()).model.to_proto() for seed in (1, 1, 2))
    assert first.SerializeToString() == second.SerializeToString()
    names = [t.name for t, o in zip(first.graph.initializer, other.graph.initializer, strict=True) if t != o]
    assert names
    assert all(name.endswith(".bias") for name in names)


def test_a_second_run_changes_nothing_and_another_start_is_refused() -> None:
    result = Wide("0.75", init="embed")(perceptron(4, 6, 6, 4))
    again = Wide("0.75", init="embed")(result.model)
    assert not again.changed
    with pytest.raises(PreconditionError, match="init='embed'"):
        Wide("0.75")(result.model)


# What is refused.


def layer_norm(net: Net) -> None:
    net.tokens_end(net.op("LayerNormalization", net.tokens(8), net.weight(8), net.weight(8), axis=-1, name="mixer"), 8)


def rms_norm_in_primitives(net: Net) -> None:
    x = net.tokens(8)
    mean = net.op("ReduceMean", net.op("Mul", x, x), net.constant([-1]), name="mixer")
    net.tokens_end(net.op("Div", x, net.op("Sqrt", mean)), 8)


def group_norm(net: Net) -> None:
    x = net.op("GroupNormalization", net.images(8), net.weight(8), net.weight(8), num_groups=2, name="mixer")
    net.images_end(x, 8)


def group_norm_in_primitives(net: Net) -> None:
    x = net.op("Reshape", net.images(8), net.constant([1, 2, -1]))
    x = net.op("InstanceNormalization", x, net.weight(2), net.weight(2), name="mixer")
    net.images_end(net.op("Reshape", x, net.constant([1, 8, 8, 8])), 8)


def softmax(net: Net) -> None:
    net.images_end(net.op("Softmax", net.images(8), axis=1, name="mixer"), 8)


def attention_scores(net: Net) -> None:
    x = net.tokens(8)
    scores = net.op("MatMul", x, net.op("Transpose", net.dense(x, 8, 8), perm=[0, 2, 1]), name="mixer")
    net.tokens_end(net.op("MatMul", net.op("Softmax", scores), x), 8)


def local_response(net: Net) -> None:
    net.images_end(net.op("LRN", net.images(8), size=3, name="mixer"), 8)


def maximum_of_channels(net: Net) -> None:
    x = net.images(8)
    net.images_end(net.op("Mul", x, net.op("ReduceMax", x, net.constant([1]), keepdims=1, name="mixer")), 8)


def logarithm(net: Net) -> None:
    net.images_end(net.op("Log", net.op("Sigmoid", net.images(8)), name="mixer"), 8)


def quotient(net: Net) -> None:
    x = net.images(8)
    net.images_end(net.op("Div", x, net.op("Sigmoid", net.conv(x, 8, 8)), name="mixer"), 8)


def quotient_of_a_computed_constant(net: Net) -> None:
    divisor = net.op("Sub", net.weight(8, 1, 1), net.weight(8, 1, 1))
    net.images_end(net.op("Div", net.images(8), divisor, name="mixer"), 8)


def number_of_channels(net: Net) -> None:
    x = net.images(8)
    count = net.op("Cast", net.op("Shape", x, start=1, end=2), to=onnx.TensorProto.FLOAT, name="mixer")
    net.images_end(net.op("Mul", x, count), 8)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (layer_norm, "normalizes over an axis that grows from 8 to 16"),
        (rms_norm_in_primitives, "reduces an axis that grows from 8 to 16"),
        (group_norm, "normalizes over groups of an axis that grows from 8 to 16"),
        (group_norm_in_primitives, "normalizes over an axis that grows from 256 to 512"),
        (softmax, "normalizes over an axis that grows from 8 to 16"),
        (attention_scores, "sums products of activations"),
        (local_response, "normalizes over neighbours along an axis that grows"),
        (maximum_of_channels, "reduces an axis that grows"),
        (logarithm, "may be infinite or undefined"),
        (quotient, "divides by features that are added"),
        (quotient_of_a_computed_constant, "divides by features that are added"),
        (number_of_channels, "computes with the size of an axis that grows"),
    ],
)
def test_what_mixes_features_is_refused_by_name(block: Callable[[Net], None], reason: str) -> None:
    net = net_of(block, opset=21)
    with pytest.raises(UnsupportedError, match=rf"node 'mixer' \(\w+\) {reason}.*Use `init='random'`"):
        Wide("0.75", init="embed")(net.model())


@pytest.mark.parametrize("attention", ["heads", "keep"])
def test_attention_whose_heads_keep_their_size_is_embedded(attention: str) -> None:
    net = Net()
    x = net.tokens(8)
    q, k, v = (net.op("Reshape", net.dense(x, 8, 8), net.constant([1, 5, 2, 4])) for _ in range(3))
    q, v = (net.op("Transpose", h, perm=[0, 2, 1, 3]) for h in (q, v))
    k = net.op("Transpose", k, perm=[0, 2, 3, 1])
    h = net.op("MatMul", net.op("Softmax", net.op("MatMul", q, k)), v)
    h = net.op("Reshape", net.op("Transpose", h, perm=[0, 2, 1, 3]), net.constant([1, 5, 8]))
    net.tokens_end(net.op("Add", x, net.dense(h, 8, 8)), 8)
    with pytest.raises(UnsupportedError, match="`attention='heads'` or `'keep'`"):
        Wide("0.75", init="embed")(net.model())
    embedded(net.model(), net.feeds, attention=attention)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init": "kaiming"}, "init 'kaiming' is unknown"),
        ({"init": "embed", "keep_dense": ["w0"]}, "drop `keep_dense`"),
        ({"init": "embed", "resize_output": ["y"]}, "drop `resize_output`"),
        ({"init": "embed", "pattern": "2:4"}, "drop `pattern`"),
        ({"init": "embed", "distribution": "erk"}, "drop `pattern` and `distribution`"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Wide("0.75", **settings)


def test_only_what_was_chosen_grows_and_all_that_grows_is_sparse() -> None:
    result = Wide("0.75", init="embed", only=["w2"])(perceptron(4, 6, 6, 6, 6, 4))
    statuses = [layer["status"] for layer in result.report["layers"]]
    assert statuses == ["unchanged", "sparse", "sparse", "sparse", "unchanged"]


def test_an_axis_that_nobody_stores_may_be_of_any_length() -> None:
    model = linear({f"w{i}": random_weight(8, 8, seed=i) for i in range(4)})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**40
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2**40
    result = Wide("0.75", init="embed")(model)
    assert [len(array_of(c)) for n, c in result.model.initializers().items() if n == "w1"] == [16]
