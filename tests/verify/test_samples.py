"""The checks of modes, and of samples alone and in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from nets import Net
from onnx import helper

from sift_onnx.backends.base import get_backend
from sift_onnx.passes import InferenceMode
from sift_onnx.records.check import Check
from sift_onnx.verify.checks import check_model

Checks = dict[str, Check]


@pytest.fixture
def checks(tmp_path: Path) -> Any:
    """Check the model of a net, and give the two checks by name."""

    def check(proto: onnx.ModelProto, **options: Any) -> tuple[Check, Check]:
        onnx.save(proto, tmp_path / "m.onnx")
        result = check_model(tmp_path / "m.onnx", compile_model=get_backend("onnxruntime").compile, **options)
        found = {entry.name: entry for entry in result.checks}
        others = [entry for entry in result.checks if entry.name not in ("inference-mode", "alone-and-in-batch")]
        assert all(entry.ok for entry in others), others
        return found["inference-mode"], found["alone-and-in-batch"]

    return check


def opened(proto: onnx.ModelProto, *axes: Any) -> onnx.ModelProto:
    """The model with other names or sizes for the first axes of the first input; outputs get unknown ones."""
    for value, sizes in ((proto.graph.input[0], axes), *((value, (None,) * len(axes)) for value in proto.graph.output)):
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
            dim.Clear()
            if isinstance(size, int):
                dim.dim_value = size
            elif size is not None:
                dim.dim_param = size
    return proto


def normalized(**attributes: Any) -> onnx.ModelProto:
    """A convolution and its normalization, which reads ``inputs``."""
    net = Net(17)
    values = {"scale": 1.0, "shift": 0.5, "mean": 0.0, "var": 1.0}
    parameters = [net.constant(np.full(6, value, np.float32), name) for name, value in values.items()]
    conv = net.conv(net.input("x", 1, 3, 32, 32), 3, 6, 3, name="a")
    outputs = 3 if attributes.get("training_mode") else 1
    y = net.op("BatchNormalization", conv, *parameters, name="bn", outputs=outputs, **attributes)
    net.output(net.conv(y if outputs == 1 else y[0], 6, 2, name="head"))
    return net.model()


@pytest.mark.parametrize("axis", ["batch", "N", "batchSize", "batch_size", "x_dynamic_axes_1", "s77", ""])
def test_a_normalization_in_training_mode_fails_both_checks(checks: Any, axis: str) -> None:
    proto = opened(normalized(training_mode=1), axis)
    mode, samples = checks(proto)
    assert not mode.ok
    assert "'bn' (BatchNormalization)" in mode.detail
    assert not samples.ok
    assert "output 'head', sample 1 of 3" in samples.detail
    assert samples.detail.endswith("in training mode: 'bn' (BatchNormalization)")
    mode, samples = checks(InferenceMode()(proto).model.to_proto())
    assert (mode.ok, mode.detail) == (True, "no node is in training mode, none draws random numbers")
    assert (samples.ok, samples.detail) == (True, "3 samples give the same alone and in a batch: 'head'")


def test_a_fixed_batch_is_told_and_passes(checks: Any) -> None:
    mode, samples = checks(normalized(training_mode=1))
    assert not mode.ok
    assert (samples.ok, samples.detail) == (True, "not applicable: the first axis of input 'x' is fixed at 1")


def test_statistics_that_nodes_compute_of_the_batch_fail(checks: Any) -> None:
    net = Net(17)
    y = net.dense(net.input("x", 1, 4), 4, 8, name="a")
    centred = net.op("Sub", y, net.op("ReduceMean", y, axes=[0], name="mean"), name="centred")
    net.output(net.dense(centred, 8, 2, name="b"))
    mode, samples = checks(opened(net.model(), "s0"))
    assert mode.ok
    assert not samples.ok
    assert "nodes that reduce axis 0: 'mean' (ReduceMean)" in samples.detail
    assert samples.detail.endswith(
        "if axis 0 of input 'x' is not a batch, give it the name of what it is in the export"
    )


def test_a_normalization_over_the_batch_fails(checks: Any) -> None:
    """Its default axes have the batch among them."""
    net = Net(12)
    y = net.op("MeanVarianceNormalization", net.conv(net.input("x", 1, 3, 6, 6), 3, 4, name="a"), name="normal")
    net.output(net.conv(y, 4, 2, name="b"))
    samples = checks(opened(net.model(), "N"))[1]
    assert not samples.ok
    assert "nodes that reduce axis 0: 'normal' (MeanVarianceNormalization)" in samples.detail


def test_nodes_that_draw_are_named(checks: Any) -> None:
    net = Net(17)
    x = net.input("x", 1, 4)
    net.output(net.op("Add", net.dense(x, 4, 4), net.op("RandomNormalLike", x, name="noise")))
    mode, samples = checks(opened(net.model(), "batch"))
    assert not mode.ok
    assert "draw random numbers: 'noise' (RandomNormalLike)" in mode.detail
    assert samples.ok
    assert samples.detail.startswith("not applicable: every run draws")


def test_nodes_in_functions_are_found(checks: Any) -> None:
    net = Net(17)
    body = [helper.make_node("RandomNormalLike", ["a"], ["b"], name="noise")]
    net.functions.append(helper.make_function("local", "Noise", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    x = net.input("x", 2, 4)
    net.output(net.op("Add", x, net.op("Noise", x, domain="local")), 2, 4)
    assert "'noise' (RandomNormalLike)" in checks(net.model())[0].detail


def attention(*, mixed: bool) -> onnx.ModelProto:
    """Attention under a mask of each sample; ``mixed`` takes the mask of all of them."""
    net = Net(17)
    x = net.op("Gather", net.weight(2, 8, name="table"), net.input("ids", 1, 5, values=np.ones((1, 5), np.int64)))
    mask = net.op("Cast", net.input("mask", 1, 5, values=np.ones((1, 5), np.int64)), to=1)
    mask = net.op("ReduceMin", mask, axes=[0], name="shared") if mixed else mask
    hidden = net.op("Mul", net.op("Sub", mask, net.constant(np.float32(1))), net.constant(np.float32(1e4)))
    hidden = net.op("Unsqueeze", hidden, net.constant(np.array([1])))
    scores = net.op("Softmax", net.op("Add", net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1])), hidden))
    net.output(net.dense(net.op("MatMul", scores, x), 8, 3, name="head"))
    proto = net.model()
    for value in (*proto.graph.input, *proto.graph.output):
        for dim, name in zip(value.type.tensor_type.shape.dim, ("batch", "sequence"), strict=False):
            dim.dim_param = name
    return proto


@pytest.mark.parametrize("mixed", [False, True])
def test_every_sample_has_a_mask_of_its_own(checks: Any, mixed: bool) -> None:
    samples = checks(attention(mixed=mixed), input_shapes={"ids": (1, 5), "mask": (1, 5)})[1]
    assert samples.ok is not mixed
    assert not samples.detail.startswith("not applicable")


def recurrent(*axes: Any, reduced: bool = False) -> onnx.ModelProto:
    """An LSTM on ``[sequence, batch, features]``."""
    net = Net(17)
    x = net.input("x", 5, 1, 4)
    weights = [net.weight(1, 24, 4, name="w"), net.weight(1, 24, 6, name="r")]
    h = net.op("Squeeze", net.op("LSTM", x, *weights, hidden_size=6, name="lstm"), net.constant(np.array([1])))
    h = net.op("Sub", h, net.op("ReduceMax", h, axes=[1])) if reduced else h
    net.output(net.dense(h, 6, 2, name="head"))
    return opened(net.model(), *axes)


def test_a_sequence_along_the_first_axis_is_no_batch(checks: Any) -> None:
    for name in ("sequence", "T", "seq_len", "n_tokens", "x_dynamic_axes_1", ""):
        samples = checks(recurrent(name, 1))[1]
        assert samples.ok
        assert samples.detail.startswith("not applicable"), name


@pytest.mark.parametrize("reduced", [False, True])
def test_a_batch_is_found_by_its_name_wherever_it_is(checks: Any, reduced: bool) -> None:
    samples = checks(recurrent("sequence", "batch", reduced=reduced), input_shapes={"x": (5, 2, 4)})[1]
    assert samples.ok is not reduced
    assert not samples.detail.startswith("not applicable")


def test_inputs_with_other_open_axes_are_no_samples(checks: Any) -> None:
    """As in networks on graphs, whose nodes are the first axis."""
    net = Net(17)
    x = net.input("x", 6, 4)
    edges = net.input("edges", 2, 7, values=np.zeros((2, 7), np.int64))
    sources = net.op("Gather", edges, net.constant(0))
    net.output(net.op("Add", x, net.op("ReduceMean", net.op("Gather", x, sources), axes=[0])))
    proto = opened(net.model(), "x_dim")
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "e"
    samples = checks(proto, input_shapes={"x": (6, 4), "edges": (2, 7)})[1]
    assert samples.detail == "not applicable: input 'edges' has an open axis that is not a batch"
    assert samples.ok


def test_dynamic_quantization_is_not_compared(checks: Any) -> None:
    net = Net(17)
    x = net.input("x", 1, 4)
    y = net.op("DynamicQuantizeLinear", x, name="quantized", outputs=3)
    net.output(net.op("DequantizeLinear", *[y[0], y[1], y[2]]))
    samples = checks(opened(net.model(), "batch"))[1]
    assert samples.ok
    assert "takes its scale from the whole batch: 'quantized' (DynamicQuantizeLinear)" in samples.detail


def test_a_model_for_one_sample_whose_batch_is_open_is_told(checks: Any) -> None:
    net = Net(17)
    net.output(net.op("Reshape", net.input("x", 1, 4), net.constant(np.array([2, 2]))))
    samples = checks(opened(net.model(), "batch"))[1]
    assert samples.ok
    assert samples.detail.startswith("not applicable: it does not run at a batch of 3: onnxruntime cannot run")


def test_outputs_without_a_batch_are_told(checks: Any) -> None:
    net = Net(17)
    net.output(net.op("ReduceMean", net.input("x", 1, 4), keepdims=0))
    samples = checks(opened(net.model(), "batch"))[1]
    assert (samples.ok, samples.detail) == (True, "not applicable: no output has a batch axis")
