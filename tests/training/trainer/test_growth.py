"""A trained model that is widened with its weights in it reaches the new channels by RigL."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from training.trainer.cases import classifier, examples, settings

import sift_onnx
from sift_onnx.training.trainer import train_file

LAYERS = ("stem.weight", "body.weight", "head.weight")
STEPS = 200


def hard_examples(count: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """With so much noise that a short training leaves something to learn."""
    images, labels = examples(count, seed)
    noise = np.random.default_rng(seed + 10).standard_normal(images.shape)
    return images + noise.astype(np.float32), labels


def scores(path: Path) -> tuple[np.ndarray[Any, Any], float]:
    """Outputs for images that are not trained on, and the share of them that are right."""
    images, labels = hard_examples(400, seed=1)
    (found,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, {"x": images})
    return found, float((found.argmax(1) == labels).mean())


def test_channels_that_are_added_without_a_weight_come_into_use(tmp_path: Path) -> None:
    trained, wide, grown = tmp_path / "trained.onnx", tmp_path / "wide.onnx", tmp_path / "grown.onnx"
    images, labels = hard_examples(512, seed=0)
    np.savez(tmp_path / "d.npz", x=images, target=labels)
    fresh = classifier(tmp_path / "fresh.onnx", width=4)
    training: dict[str, Any] = {"epochs": None, "optimizer": {"lr": 0.1}}
    train_file(fresh, trained, tmp_path / "d.npz", settings(steps=60, **training), device="cpu")
    sift_onnx.transform(str(trained), wide=0.75, init="embed").save(wide)
    np.testing.assert_allclose(scores(wide)[0], scores(trained)[0], rtol=1e-4, atol=1e-5)

    rigl = {
        "algorithm": "rigl",
        "sparsity": "masks",
        "param_filter": "*",
        "update": {"freq": 10},
        "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": STEPS},
    }
    train_file(wide, grown, tmp_path / "d.npz", settings(steps=STEPS, sparsity=rigl, **training), device="cpu")
    before, after = sift_onnx.masks(wide), sift_onnx.masks(grown)
    assert before.keys() == after.keys() == set(LAYERS)
    assert {name: mask.sum() for name, mask in before.items()} == {name: mask.sum() for name, mask in after.items()}
    in_use = 0
    for layer, following in itertools.pairwise(LAYERS):
        added = ~before[layer].reshape(len(before[layer]), -1).any(1)
        assert added.sum() == len(added) // 2
        assert not before[following][:, added].any()
        assert after[following][:, added].any()
        features = len(added)
        incoming = after[layer].reshape(features, -1).any(1)
        outgoing = after[following].swapaxes(0, 1).reshape(features, -1).any(1)
        in_use += int((added & incoming & outgoing).sum())
    assert in_use > 0
    assert scores(grown)[1] >= scores(trained)[1]
