"""Text, byte by byte, and a small GPT that learns it in two stages: pre-trained on much text, fine-tuned on other text.

Small: pre-training on the source code of Python's standard library, fine-tuning on the documentation of its keywords
and types, both of which come with Python. Large: files of your own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

import click
import numpy as np
import onnxruntime
import torch

import sift_onnx
from sift_onnx.models.export import export
from sift_onnx.passes import Densify
from sift_onnx.training.trainer import TrainingSettings, train_file

__all__ = [
    "LARGE_TEXTS",
    "SETTINGS",
    "TextSetting",
    "Windows",
    "fine_tune",
    "make_model",
    "mask_recipe",
    "pre_train",
    "text_of",
]

# Where the large setting finds its two files, with a colon between them.
LARGE_TEXTS = "SIFT_REPRODUCE_TEXTS"
BYTES = 256
# Modules of the standard library; its tests and what is installed beside it are left out.
SOURCES = (
    "*.py",
    "asyncio/*.py",
    "concurrent/*/*.py",
    "email/*.py",
    "http/*.py",
    "json/*.py",
    "logging/*.py",
    "xml/*/*.py",
)


@dataclass(frozen=True)
class TextSetting:
    """How much is trained.

    Attributes:
        data: what the texts are, and the model.
        width: factor on the sizes of GPT-3 Small.
        layers: of the model.
        sequence: bytes of an example.
        batch: examples of a step.
        pre_training: steps.
        fine_tuning: steps.
        rates: learning rates of pre-training to choose from.
        fine_rates: the same of fine-tuning.
        seeds: runs that are reported.
        windows: examples that a perplexity is of.
        update: steps between updates of masks, with RigL.
    """

    data: str
    width: float
    layers: int
    sequence: int
    batch: int
    pre_training: int
    fine_tuning: int
    rates: tuple[float, ...]
    fine_rates: tuple[float, ...]
    seeds: int
    windows: int
    update: int = 50


SETTINGS = {
    "small": TextSetting(
        "source code of Python's standard library to pre-train on, documentation of its keywords and types to "
        "fine-tune on; a GPT of two layers, 60 features and a vocabulary of bytes, 64 bytes at a time",
        1 / 12, 2, 64, 16, 600, 200, (0.002, 0.004, 0.008), (0.0005, 0.001, 0.002), 3, 256,
    ),
    "large": TextSetting(
        "two texts as given; a GPT of twelve layers, 384 features and a vocabulary of bytes, 256 bytes at a time",
        0.5, 12, 256, 64, 10_000, 1_000, (0.0003, 0.0006, 0.0012), (0.00003, 0.0001, 0.0003), 3, 1024,
    ),
}  # fmt: skip
SETTINGS["standard"] = dataclasses.replace(SETTINGS["small"], seeds=5)
SETTINGS["pilot"] = dataclasses.replace(SETTINGS["small"], pre_training=60, rates=(0.004,), seeds=2, update=10)


@functools.cache
def _texts(setting: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """To pre-train and to fine-tune on, as bytes."""
    if setting != "large":
        library = Path(sysconfig.get_paths()["stdlib"])
        files = sorted({path for pattern in SOURCES for path in library.glob(pattern)})
        first = b"\n".join(path.read_bytes() for path in files)
        second = "\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()
    else:
        names = os.environ.get(LARGE_TEXTS, "").split(":")
        if len(names) != 2:
            raise click.ClickException(f"the large setting needs text: set {LARGE_TEXTS} to two files, A:B")
        first, second = (Path(name).read_bytes() for name in names)
    return np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8)


def _part(text: np.ndarray[Any, Any], part: str) -> np.ndarray[Any, Any]:
    """Eight tenths to train on, one for validation, one to test on."""
    begin, end = {"train": (0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1)}[part]
    return text[int(begin * len(text)) : int(end * len(text))]


class Windows:
    """Batches of stretches of text, other ones in each epoch."""

    def __init__(self, text: np.ndarray[Any, Any], chosen: TextSetting) -> None:
        self._text = torch.from_numpy(text.astype(np.int64))
        self._chosen = chosen

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        length = self._chosen.sequence
        for _ in range(len(self)):
            starts = torch.randint(0, len(self._text) - length, (self._chosen.batch, 1))
            yield (self._text[starts + torch.arange(length)],)


def _train(
    source: Path,
    target: Path,
    text: np.ndarray[Any, Any],
    chosen: TextSetting,
    rate: float,
    steps: int,
    masks: dict[str, Any] | None = None,
    **how: Any,
) -> None:
    settings = TrainingSettings.of_recipe(
        {
            "loss": "next-token",
            "steps": steps,
            "optimizer": {"type": "adamw", "lr": rate, "weight_decay": 0.1},
            "schedule": {"type": "cosine", "warmup": steps // 10},
            "clip_norm": 1.0,
            "sparsity": masks,
            "seed": how["seed"],
            "log_every": 10_000,
        }
    )
    train_file(source, target, {"train": Windows(_part(text, "train"), chosen)}, settings, device=how["device"])


def _perplexity(path: Path, text: np.ndarray[Any, Any], chosen: TextSetting) -> float:
    """Of the next byte, by onnxruntime with the written file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    starts = np.linspace(0, len(text) - chosen.sequence - 1, chosen.windows).astype(np.int64)
    total = count = 0.0
    for chunk in np.array_split(starts, max(1, chosen.windows // 64)):
        tokens = text[chunk[:, None] + np.arange(chosen.sequence)].astype(np.int64)
        (logits,) = session.run(None, {session.get_inputs()[0].name: tokens})
        losses = torch.nn.functional.cross_entropy(
            torch.from_numpy(logits[:, :-1].reshape(-1, logits.shape[-1])), torch.from_numpy(tokens[:, 1:].reshape(-1)),
            reduction="sum",
        )  # fmt: skip
        total, count = total + float(losses), count + tokens[:, 1:].size
    return math.exp(total / count)


def text_of(setting: str, part: str = "train") -> np.ndarray[Any, Any]:
    """What models are pre-trained on, or its part for ``validation`` or ``test``."""
    return _part(_texts(setting)[0], part)


def make_model(setting: str, sparsity: str, scale: float, seed: int, folder: Path, budget: str) -> Path:
    """The file of a model before its training, see :func:`pre_train`."""
    chosen = SETTINGS[setting]
    path = folder / "model.onnx"
    export(
        "gpt3-small", path, width=scale * chosen.width, num_classes=BYTES, batch="dynamic",
        sequence=chosen.sequence, layers=chosen.layers, seed=seed, force=True,
    )  # fmt: skip
    if sparsity:
        sift_onnx.transform(str(path), wide=sparsity, budget=budget, seed=seed).save(path, force=True)
    return path


def mask_recipe(chosen: TextSetting, steps: int) -> dict[str, Any]:
    """RigL on the masks of a transformed model, until three quarters of the training."""
    stop = steps * 3 // 4
    return {
        "algorithm": "rigl",
        "sparsity": "masks",
        "update": {"freq": chosen.update, "stop": stop},
        "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": stop},
        "param_filter": "*",
    }


def pre_train(
    setting: str,
    sparsity: str,
    rate: float,
    seed: int,
    device: str,
    folder: str,
    scale: float = 1.0,
    algorithm: str = "static",
    length: float = 1.0,
    budget: str = "layer",
) -> dict[str, Any]:
    """Export, widen and pre-train a model.

    Args:
        setting: a key of ``SETTINGS``.
        sparsity: of Sparse Wide; empty for the dense model.
        rate: learning rate.
        seed: of weights, masks and examples.
        device: of the training.
        folder: where the model is kept.
        scale: of the dense model, a factor on the setting's width.
        algorithm: ``static`` or ``rigl``.
        length: of the training, as a share of the setting's.
        budget: of the transform: what keeps its multiply-accumulates, every ``layer`` or the whole ``model``.

    Returns:
        ``file`` of the model, its ``perplexity`` on validation text and on ``test`` text, and its ``macs`` for an
        example, those of attention left out.
    """
    chosen = SETTINGS[setting]
    text, _ = _texts(setting)
    target = (
        Path(folder) / f"{setting}-{sparsity or 'dense'}-{rate:g}-{seed}-{scale:g}-{algorithm}-{length:g}-{budget}.onnx"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        model = make_model(setting, sparsity, scale, seed, Path(temporary), budget)
        target.unlink(missing_ok=True)
        steps = round(length * chosen.pre_training)
        masks = mask_recipe(chosen, steps) if algorithm == "rigl" else None
        _train(model, target, text, chosen, rate, steps, masks, seed=seed, device=device)
    return {
        "file": str(target),
        "perplexity": _perplexity(target, _part(text, "validation"), chosen),
        "test": _perplexity(target, _part(text, "test"), chosen),
        "macs": sift_onnx.inspect(str(target)).totals.effective_macs,
    }


def fine_tune(setting: str, file: str, dense: bool, rate: float, seed: int, device: str) -> dict[str, float]:
    """Fine-tune a pre-trained model, sparse as it is or dense; perplexity on ``validation`` and ``test`` text."""
    chosen = SETTINGS[setting]
    _, text = _texts(setting)
    with tempfile.TemporaryDirectory() as temporary:
        source, target = Path(file), Path(temporary) / "tuned.onnx"
        if dense:
            source = Path(temporary) / "dense.onnx"
            Densify()(file).model.save(source)
        _train(source, target, text, chosen, rate, chosen.fine_tuning, seed=seed, device=device)
        return {part: _perplexity(target, _part(text, part), chosen) for part in ("validation", "test")}
