"""Wide with ``init="embed"``: where old weights lie, how added features are reached, and repetition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from builders import linear, mask_weights, random_weight
from embedded_models import Array, embedded, net_of, perceptron, squeeze_and_excitation
from nets import Net, run
from onnx import numpy_helper

from sift_onnx.errors import PreconditionError
from sift_onnx.graphs.constants import array_of, sparse_weight_of
from sift_onnx.model import Model
from sift_onnx.passes import Wide

# Where things lie.


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
