"""Small models as files, and data for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.training.trainer import TrainingSettings

CLASSES = 4


def classifier(path: Path, *, norm: bool = True, width: int = 8, bias: bool = False) -> Path:
    """Two convolutions, normalization and dropout or neither, and a classifier of images ``[n, 1, 6, 6]``."""
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "stem.weight": rng.standard_normal((width, 1, 3, 3)) / 3,
        "body.weight": rng.standard_normal((2 * width, width, 3, 3)) / (3 * width**0.5),
        "head.weight": rng.standard_normal((CLASSES, 2 * width)) / (2 * width) ** 0.5,
        "head.bias": np.zeros(CLASSES),
    }
    if norm:
        weights |= {"norm.weight": np.ones(width), "norm.bias": np.zeros(width)}
        weights |= {"norm.mean": np.zeros(width), "norm.var": np.ones(width), "ratio": np.array(0.2)}
    if bias:
        weights["stem.bias"] = np.full(width, 0.1)
    nodes = [
        helper.make_node("Conv", ["x", "stem.weight", *(["stem.bias"] if bias else [])], ["a"], pads=[1] * 4),
        helper.make_node(
            "BatchNormalization", ["a", "norm.weight", "norm.bias", "norm.mean", "norm.var"], ["b"], name="norm"
        ),
        helper.make_node("Relu", ["b" if norm else "a"], ["c"]),
        helper.make_node("Dropout", ["c", "ratio"], ["d"]),
        helper.make_node("Conv", ["d" if norm else "c", "body.weight"], ["e"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["e"], ["f"]),
        helper.make_node("GlobalAveragePool", ["f"], ["g"]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("Gemm", ["h", "head.weight", "head.bias"], ["y"], transB=1),
    ]
    nodes = [node for node in nodes if norm or node.op_type not in ("BatchNormalization", "Dropout")]
    return _saved(path, nodes, weights, ("x", TensorProto.FLOAT, ["n", 1, 6, 6]), ["n", CLASSES])


def language_model(path: Path, vocabulary: int = 7, width: int = 12) -> Path:
    """A table and two layers, on tokens ``[n, t]``."""
    rng = np.random.default_rng(0)
    weights = {
        "embedding": rng.standard_normal((vocabulary, width)),
        "inner.weight": rng.standard_normal((width, width)) / width**0.5,
        "head.weight": rng.standard_normal((width, vocabulary)) / width**0.5,
    }
    nodes = [
        helper.make_node("Gather", ["embedding", "tokens"], ["a"]),
        helper.make_node("MatMul", ["a", "inner.weight"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "head.weight"], ["y"]),
    ]
    return _saved(path, nodes, weights, ("tokens", TensorProto.INT64, ["n", "t"]), ["n", "t", vocabulary])


def _saved(path: Path, nodes: list[Any], weights: dict[str, Any], source: Any, output: list[Any]) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(*source)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def examples(count: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images whose bright quarter is their class, with noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    images = rng.standard_normal((count, 1, 6, 6)).astype(np.float32) * 0.3
    for image, label in zip(images, labels, strict=True):
        image[0, :, :] += label * np.array([-1, 1, 0.5])[np.arange(6) % 3]
    return images, labels


def arrays(path: Path, count: int = 64, **more: Any) -> Path:
    """A file of training and validation data."""
    x, y = examples(count)
    val_x, val_y = examples(40, seed=1)
    np.savez(path, **{"x": x, "target": y, "val_x": val_x, "val_target": val_y, **more})
    return path


def settings(**changes: Any) -> TrainingSettings:
    """A short training."""
    base = {"epochs": 2, "batch_size": 16, "optimizer": {"lr": 0.05}, "log_every": 1}
    return TrainingSettings.of_recipe(base | changes)
