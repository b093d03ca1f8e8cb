"""Model files: large tensors are streamed, the graph comes last, and the bytes are the same each time."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
from builders import linear, mask_weights
from onnx import numpy_helper
from saved_files import V, W, listing

from sift_onnx.model import Model


def fields_of(data):
    """Field numbers of a serialized message, in order."""
    numbers, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        assert key & 7 in (0, 2)
        value, at = varint(data, at)
        at += value if key & 7 == 2 else 0
        numbers.append(key >> 3)
    return numbers


def varint(data, at):
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value, at


def test_streamed_file_is_the_model(model, tmp_path):
    model.save(tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx") == linear({"w": W, "v": V})
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    assert list(listing(tmp_path)) == ["m.onnx"]


def test_graph_is_written_once_and_last(model, tmp_path):
    model.metadata["key"] = "value"
    model.save(tmp_path / "m.onnx")
    numbers = fields_of((tmp_path / "m.onnx").read_bytes())
    graph = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
    assert numbers.count(graph) == 1
    assert numbers[-1] == graph


def test_large_tensors_of_every_kind_are_written(tmp_path):
    typed = onnx.helper.make_tensor("typed", onnx.TensorProto.FLOAT, W.shape, W.reshape(-1))
    text = onnx.helper.make_tensor("text", onnx.TensorProto.STRING, [9000], ["a" * 9] * 9000)
    source = linear({"w": W})
    for tensor in (typed, text, numpy_helper.from_array(V, "unread")):
        source.graph.initializer.append(tensor)
    source.graph.node.insert(0, onnx.helper.make_node("Identity", ["typed"], ["t"]))
    source.graph.node.insert(0, onnx.helper.make_node("Identity", ["text"], ["s"]))
    Model.load(source).save(tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx") == source
    onnx.checker.check_model(str(tmp_path / "m.onnx"))


def test_masked_weight_is_streamed_as_its_dense_tensor(model, tmp_path):
    masked = mask_weights(model)
    masked.save(tmp_path / "m.onnx")
    for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer:
        assert np.array_equal(numpy_helper.to_array(tensor), masked.masked()[tensor.name].values)


def test_same_model_gives_the_same_bytes(model, tmp_path):
    masked = mask_weights(model)
    for name in ("a", "b"):
        masked.copy().save(tmp_path / name)
    Model.load(tmp_path / "a").save(tmp_path / "c")
    first, *others = (tmp_path / name for name in "abc")
    assert all(other.read_bytes() == first.read_bytes() for other in others)


def test_bytes_do_not_depend_on_the_order_of_sets(model, tmp_path):
    source = model.to_proto()
    for domain in ("com.example.a", "com.example.b", "com.example.c"):
        node = source.graph.node.add(op_type="F", domain=domain)
        node.output.append(domain)
    onnx.save(source, tmp_path / "in")
    code = "import sys; from sift_onnx.model import Model; Model.load(sys.argv[1]).save(sys.argv[2])"
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(tmp_path / "in"), str(tmp_path / seed)]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
