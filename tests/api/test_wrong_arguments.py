"""Arguments of the wrong kind, from Python: an error of this package's that names them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import convolutions, linear, random_weight

import sift_onnx
from sift_onnx.errors import UsageError
from sift_onnx.passes import InsertBatchNorm, Wide

MODEL = convolutions()
PRODUCT = linear({"weight": random_weight(4, 4)})
FEED = {"x": np.zeros((1, 4, 6, 6), np.float32)}
CALLS = {
    "load a name with a null": (lambda: sift_onnx.load("a\0b"), r"a\\x00b.*null"),
    "save to a name with a null": (lambda: sift_onnx.save(MODEL, "a\0b"), r"a\\x00b.*null"),
    "a session of a name with a null": (lambda: sift_onnx.InferenceSession("a\0b"), r"a\\x00b.*null"),
    "check a name with a null": (lambda: sift_onnx.check("a\0b"), r"a\\x00b.*null"),
    "report of a name with a null": (lambda: sift_onnx.report("a\0b", "page.html"), r"a\\x00b.*null"),
    "load an empty name": (lambda: sift_onnx.load(""), "the name is empty"),
    "save to an empty name": (lambda: sift_onnx.save(MODEL, ""), "the name is empty"),
    "threads in words": (lambda: sift_onnx.InferenceSession(MODEL, threads="2"), "threads is '2'"),
    "half a thread": (lambda: sift_onnx.InferenceSession(MODEL, threads=1.5), "threads is 1.5"),
    "a yes for threads": (lambda: sift_onnx.InferenceSession(MODEL, threads=True), "threads is True"),
    "no feeds": (lambda: sift_onnx.InferenceSession(MODEL, 1).run(None, None), "input_feed is a NoneType"),
    "a list of feeds": (lambda: sift_onnx.InferenceSession(MODEL, 1).run(None, [FEED["x"]]), "input_feed is a list"),
    "half a step": (lambda: Wide(0.5, round_to=1.5), "'round_to' of wide is 1.5; write a whole number"),
    "a number for a machine": (lambda: sift_onnx.simulate(MODEL, preset=3), "3 is no machine"),
    "batches in words": (lambda: sift_onnx.benchmark(MODEL, batch="1,2"), "batch is '1,2'; pass a whole number"),
    "half a batch": (lambda: sift_onnx.benchmark(MODEL, batch=1.5), "batch is 1.5; pass a whole number"),
    "a shape in words": (lambda: sift_onnx.check(MODEL, input_shapes={"x": "1,4"}), "shape of input 'x' is '1,4'"),
    "a size for a shape": (lambda: sift_onnx.check(MODEL, input_shapes={"x": 4}), "shape of input 'x' is 4"),
    "no data": (lambda: InsertBatchNorm(None)(MODEL), "data is of type NoneType; pass batches"),
    "a batch for batches": (lambda: InsertBatchNorm(FEED)(PRODUCT), "data is of type dict; pass batches"),
    "batches without names": (
        lambda: InsertBatchNorm([FEED["x"]])(PRODUCT),
        "a batch is of type ndarray; pass an array",
    ),
    "an empty ModelProto": (lambda: sift_onnx.load(onnx.ModelProto()), "ModelProto .* has no graph or no opset"),
    "no bytes": (lambda: sift_onnx.load(b""), "has no graph or no opset"),
    "half an item": (lambda: sift_onnx.simulate(MODEL, batch=1.5), "batch is 1.5"),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_argument_of_the_wrong_kind_is_named(call):
    run, message = CALLS[call]
    with pytest.raises(UsageError, match=message):
        run()


def test_numbers_of_numpy_are_numbers():
    assert sift_onnx.InferenceSession(MODEL, threads=np.int64(2)).threads == 2
    assert sift_onnx.simulate(MODEL, batch=np.int32(2)).to_dict()["preset"]


def test_batches_of_one_type_of_numpy_are_batches():
    found = sift_onnx.benchmark(MODEL, backend="onnxruntime", batch=np.array([1, 2]), seconds=0.01, warmup=0)
    assert [run.batch for run in found.runs] == [1, 2]


@pytest.mark.parametrize("value", [FEED["x"], FEED, 1.0])
def test_a_module_that_is_called_without_tensors_says_what_it_takes(value):
    pytest.importorskip("torch")
    module = sift_onnx.to_torch(MODEL)
    for call in (lambda: module(value), lambda: module(x=value)):
        with pytest.raises(UsageError, match=r"the module takes torch tensors, not .*; torch\.from_numpy"):
            call()


def test_what_is_no_module_is_not_written_back():
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match="NoneType"):
        sift_onnx.write_back(MODEL, None)
