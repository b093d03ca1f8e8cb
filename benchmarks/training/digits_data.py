"""scikit-learn's digits and a small network for them; needs `pip install scikit-learn`.

1,797 images of 8x8 pixels in 17 shades. The last half is the test set, which no choice depends on. The other half is
split by seed into 600 images to train on and 300 for validation, which hyper-parameters are chosen by.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

__all__ = ["BATCH", "TRAINED", "Examples", "Shifted", "accuracy", "digits", "network", "split", "test_set"]

TRAINED, POOL, BATCH = 600, 900, 60
_TESTED_AT_ONCE = 1000

Examples = tuple[torch.Tensor, torch.Tensor]


@functools.cache
def digits() -> Examples:
    """Images ``[1797, 1, 8, 8]`` from 0 to 1, in an order of their own, and their digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("this benchmark needs the digits of scikit-learn, which is no dependency: pip install scikit-learn")
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.from_numpy(data.images[order]).float()[:, None] / 16
    return images, torch.from_numpy(data.target[order]).long()


def split(seed: int) -> tuple[Examples, Examples]:
    """Images and digits to train on, and for validation."""
    images, labels = digits()
    order = np.random.default_rng((seed, 1)).permutation(POOL)
    train, validation = order[:TRAINED], order[TRAINED:]
    return (images[train], labels[train]), (images[validation], labels[validation])


def test_set() -> Examples:
    """897 images and their digits."""
    images, labels = digits()
    return images[POOL:], labels[POOL:]


class Shifted:
    """Batches of images, in a new order and shifted by up to ``shift`` pixels in each epoch."""

    def __init__(self, examples: Examples, batch: int = BATCH, shift: int = 1) -> None:
        images, self._labels = examples
        self._batch, self._size, self._shift = batch, images.shape[2:], shift
        self._padded = torch.nn.functional.pad(images, (shift,) * 4)

    def __len__(self) -> int:
        return len(self._labels) // self._batch

    def __iter__(self) -> Iterator[Examples]:
        order = torch.randperm(len(self._labels))
        rows, columns = (torch.arange(size) for size in self._size)
        for chosen in order.split(self._batch)[: len(self)]:
            dy, dx = torch.randint(0, 2 * self._shift + 1, (2, len(chosen), 1))
            grid = (chosen[:, None, None], slice(None), (rows + dy)[:, :, None], (columns + dx)[:, None, :])
            yield self._padded[grid].permute(0, 3, 1, 2).contiguous(), self._labels[chosen]


def accuracy(model: Path, examples: Examples) -> float:
    """Share of labels that onnxruntime finds with a model file, in percent."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    name, found = session.get_inputs()[0].name, 0
    # In parts: activations of wide networks on all images at once would take gigabytes.
    for images, labels in zip(*(part.split(_TESTED_AT_ONCE) for part in examples), strict=True):
        (scores,) = session.run(None, {name: images.numpy()})
        found += int((scores.argmax(1) == labels.numpy()).sum())
    return 100 * found / len(examples[1])


def network(path: Path, width: int, seed: int) -> None:
    """Convolutions of w, 2w, 2w and 2w channels, each with BatchNormalization and ReLU; mean; classifier."""
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray[Any, Any]] = {}
    nodes, x = [], "image"
    channels = [1, width, 2 * width, 2 * width, 2 * width]
    for i, stride in enumerate((1, 2, 1, 1)):
        shape = (channels[i + 1], channels[i], 3, 3)
        weights[f"conv{i}.weight"] = rng.standard_normal(shape) * (2 / (9 * channels[i])) ** 0.5
        for name, value in (("weight", 1), ("bias", 0), ("mean", 0), ("var", 1)):
            weights[f"norm{i}.{name}"] = np.full(shape[0], value)
        norm = [f"conv{i}", *(f"norm{i}.{name}" for name in ("weight", "bias", "mean", "var"))]
        nodes += [
            helper.make_node("Conv", [x, f"conv{i}.weight"], [f"conv{i}"], pads=[1] * 4, strides=[stride] * 2),
            helper.make_node("BatchNormalization", norm, [f"norm{i}"]),
            helper.make_node("Relu", [f"norm{i}"], [f"relu{i}"]),
        ]
        x = f"relu{i}"
    weights["head.weight"] = rng.standard_normal((10, channels[-1])) / channels[-1] ** 0.5
    weights["head.bias"] = np.zeros(10)
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["features"]),
        helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["scores"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
