"""Dense against Sparse Wide at equal FLOPs on real data, through the tool's own transform and train.

    python benchmarks/digits.py [--seeds 5] [--width 4] [--epochs 40] [--sparsities 0.5,0.75,0.9] [--json FILE]

Data: scikit-learn's digits, 1,797 images of 8x8, from `pip install scikit-learn`; 600 to train on, shifted by up to one
pixel, the rest to test on. Model: four convolutions with BatchNormalization and a classifier. Widening keeps the
model's multiply-accumulates: the first and last layers stay dense, and the others repay what they cost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

import sift_onnx
from sift_onnx.training.trainer import TrainingSettings, train_file

ALGORITHMS = ("static", "set", "rigl")
TRAINED, BATCH, FREQUENCY = 600, 60, 20


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images ``[1797, 1, 8, 8]`` from 0 to 1, in an order of their own, and their digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("benchmarks/digits.py needs the digits of scikit-learn: pip install scikit-learn")
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.from_numpy(data.images[order]).float()[:, None] / 16
    return images, torch.from_numpy(data.target[order]).long()


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


class Shifted:
    """Batches of the training images, in a new order and shifted by up to one pixel in each epoch."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels) // BATCH

    def __iter__(self) -> Any:
        order = torch.randperm(len(self._labels))
        rows = torch.arange(8)
        for chosen in order.split(BATCH)[: len(self)]:
            dy, dx = torch.randint(0, 3, (2, len(chosen), 1))
            grid = (chosen[:, None, None], 0, (rows + dy)[:, :, None], (rows + dx)[:, None, :])
            yield self._padded[grid][:, None], self._labels[chosen]


def accuracy(model: Path, data: dict[str, Any], sparsity: Any, epochs: int, seed: int) -> float:
    """Test accuracy in percent of a model after training."""
    settings = TrainingSettings.of_recipe(
        {
            "epochs": epochs,
            "optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0005},
            "schedule": {"type": "cosine"},
            "sparsity": sparsity,
            "seed": seed,
            "log_every": 1000,
        }
    )
    found = train_file(model, model.with_suffix(".trained.onnx"), data, settings, device="cpu", force=True)
    assert found is not None
    return 100 * float(found["validation"]["accuracy"])


def recipe(algorithm: str, steps: int) -> dict[str, Any]:
    """The masks of the transformed model, evolving until three quarters of the training."""
    if algorithm == "static":
        return {"algorithm": "static", "sparsity": "masks", "param_filter": "*"}
    stop = steps * 3 // 4
    drop = {"type": "cosine", "init": 0.3, "half_period": stop}
    update = {"freq": FREQUENCY, "stop": stop}
    return {"algorithm": algorithm, "sparsity": "masks", "update": update, "drop_fraction": drop, "param_filter": "*"}


def main() -> None:
    """Train every combination at every seed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--width", type=int, default=4, help="channels of the first convolution")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--sparsities", default="0.5,0.75,0.9")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = digits()
    train, test = Shifted(images[:TRAINED], labels[:TRAINED]), (images[TRAINED:], labels[TRAINED:])
    data = {"train": train, "validation": [test]}
    steps = options.epochs * len(train)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            dense = Path(folder) / "dense.onnx"
            network(dense, options.width, seed)
            found.setdefault("dense", []).append(accuracy(dense, data, None, options.epochs, seed))
            for sparsity in options.sparsities.split(","):
                wide = Path(folder) / "wide.onnx"
                sift_onnx.transform(str(dense), wide=sparsity, seed=seed).save(wide, force=True)
                for algorithm in ALGORITHMS:
                    name = f"{float(sparsity):.0%} {algorithm}"
                    result = accuracy(wide, data, recipe(algorithm, steps), options.epochs, seed)
                    found.setdefault(name, []).append(result)
            print(
                f"seed {seed}: " + ", ".join(f"{name} {values[-1]:.1f}" for name, values in found.items()), flush=True
            )
            if options.json:
                document = {"schema": 1, "width": options.width, "epochs": options.epochs, "accuracy": found}
                Path(options.json).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"\nwidth {options.width}, {options.seeds} seeds: test accuracy in %, mean +- standard deviation over seeds")
    for name, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:14} {statistics.mean(values):5.1f} +- {spread:.1f}")


if __name__ == "__main__":
    main()
