"""What tests look at after a model was saved, or was not."""

from __future__ import annotations

import onnx
import onnxruntime
from builders import mask_weights, random_weight

from sift_onnx.model import Model

# Large enough to be streamed, 80 kB each.
W, V = random_weight(200, 100), random_weight(100, 200, seed=1)


def listing(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def message(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


def contents(path):
    """The graph in a file, its data inside."""
    graph = onnx.load(path).graph
    for tensor in graph.initializer:
        tensor.ClearField("data_location")
    return graph


def masked_twice(proto):
    """A model with masks over both weights, with active zeros, one of them negative."""
    model = mask_weights(Model.load(proto))
    model.masked()["w"].weight.values[1] = -0.0
    return model


def outputs(model, feeds=None):
    """The first output in onnxruntime, of a path or a ModelProto."""
    content = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()} & {"x"}
    return session.run(None, feeds or {name: random_weight(3, 6) for name in names})[0]
