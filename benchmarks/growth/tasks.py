"""What small transformers learn: the next byte of a text, or what a picture shows."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
import onnxruntime
import torch
from torch import nn
from transformers_in_torch import Gpt, VisionTransformer

from sift_onnx.datasets.idx import read_idx

__all__ = ["TASKS", "Task", "make_task"]

TASKS = ("gpt", "vit")
HEADS, LAYERS = 4, 2


class Task(Protocol):
    """A kind of examples, and a model for them.

    Attributes:
        loss: as recipes name it.
        examples: batches to train on.
    """

    loss: str

    @property
    def examples(self) -> Iterable[tuple[torch.Tensor, ...]]: ...

    def export(self, path: Path, seed: int) -> None:
        """Write an untrained model."""

    def evaluate(self, path: Path) -> dict[str, float]:
        """The mean loss in nats on examples to test on, and what else is of interest, by onnxruntime."""


def make_task(name: str, data: Path | None) -> Task:
    """The task of that name; ``data`` is the folder of Fashion-MNIST, for pictures."""
    if name == "gpt":
        return Text()
    if data is None:
        raise click.UsageError("vit needs --data, a folder with the IDX files of Fashion-MNIST")
    return Pictures(data)


class Text:
    """The source code of Python's standard library, byte by byte; a GPT of two layers."""

    loss = "next-token"
    width, length, batch, tested = 24, 64, 16, 512

    def __init__(self) -> None:
        library = Path(sysconfig.get_paths()["stdlib"])
        text = np.frombuffer(b"\n".join(path.read_bytes() for path in sorted(library.glob("*.py"))), np.uint8)
        self._train, self._test = np.split(text, [len(text) * 9 // 10])

    @property
    def examples(self) -> Iterable[tuple[torch.Tensor, ...]]:
        return _Windows(self._train, self.length, self.batch)

    def export(self, path: Path, seed: int) -> None:
        torch.manual_seed(seed)
        _write(Gpt(self.width, HEADS, LAYERS, self.length), torch.zeros(2, self.length, dtype=torch.int64), path)

    def evaluate(self, path: Path) -> dict[str, float]:
        starts = np.linspace(0, len(self._test) - self.length - 1, self.tested).astype(np.int64)
        tokens = self._test[starts[:, None] + np.arange(self.length)].astype(np.int64)
        logits = torch.cat([torch.from_numpy(_run(path, part)) for part in np.array_split(tokens, 8)])
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), torch.from_numpy(tokens[:, 1:]).flatten())
        return {"loss": float(loss), "bits per byte": float(loss) / math.log(2)}


class _Windows:
    def __init__(self, text: np.ndarray[Any, Any], length: int, batch: int) -> None:
        self._text, self._length, self._batch = torch.from_numpy(text.astype(np.int64)), length, batch

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        for _ in range(len(self)):
            starts = torch.randint(0, len(self._text) - self._length, (self._batch, 1))
            yield (self._text[starts + torch.arange(self._length)],)


class Pictures:
    """Fashion-MNIST; a vision transformer of two layers, on 16 patches of 7x7 pixels."""

    loss = "classification"
    width, batch = 24, 64

    def __init__(self, folder: Path) -> None:
        def part(name: str) -> tuple[torch.Tensor, torch.Tensor]:
            images = read_idx(next(folder.glob(f"{name}-images*")))
            labels = read_idx(next(folder.glob(f"{name}-labels*")))
            return torch.from_numpy((images[:, None] / 255 - 0.29).astype(np.float32) / 0.35), torch.from_numpy(
                labels.astype(np.int64)
            )

        self._train, self._test = part("train"), part("t10k")

    @property
    def examples(self) -> Iterable[tuple[torch.Tensor, ...]]:
        return _Shuffled(*self._train, self.batch)

    def export(self, path: Path, seed: int) -> None:
        torch.manual_seed(seed)
        _write(VisionTransformer(self.width, HEADS, LAYERS), torch.zeros(2, 1, 28, 28), path)

    def evaluate(self, path: Path) -> dict[str, float]:
        images, labels = self._test
        logits = torch.cat([torch.from_numpy(_run(path, part.numpy())) for part in images.split(1000)])
        correct = float((logits.argmax(1) == labels).float().mean())
        return {"loss": float(nn.functional.cross_entropy(logits, labels)), "accuracy": 100 * correct}


class _Shuffled:
    def __init__(self, images: torch.Tensor, labels: torch.Tensor, batch: int) -> None:
        self._images, self._labels, self._batch = images, labels, batch

    def __len__(self) -> int:
        return len(self._labels) // self._batch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        for chosen in torch.randperm(len(self._labels)).split(self._batch)[: len(self)]:
            yield self._images[chosen], self._labels[chosen]


def _write(module: nn.Module, example: torch.Tensor, path: Path) -> None:
    torch.onnx.export(
        module.eval(), (example,), str(path), dynamo=False, opset_version=17, input_names=["x"],
        dynamic_axes={"x": {0: "n"}},
    )  # fmt: skip


def _run(path: Path, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: values})
    return np.asarray(found)
