"""What tests look at after a model was saved, or was not."""

from __future__ import annotations

import onnx
from builders import random_weight

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
