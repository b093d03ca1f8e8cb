"""Transform, train with evolving masks, write back: is what was trained what the file holds and computes?

    python benchmarks/training/round_trip.py                                        # four architectures
    python benchmarks/training/round_trip.py --model gpt3-small --algorithm set --steps 100 --width 0.25

Exports an architecture, widens it, trains it with `train_file` on real data, and compares the written file with the
last checkpoint, which is the trainer's own state: outputs of onnxruntime against those of torch on a further batch,
masks bit by bit, non-zeros of each layer against those before training, and what is not trained byte by byte.
Images are scikit-learn's digits, 8x8 pixels made 32x32 (`pip install scikit-learn`); text is the documentation of
Python that comes with Python, byte by byte. Prints a Markdown table; the exit code is 1 if a comparison fails.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from pydoc_data import topics
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime
import torch
from digits_data import digits

import sift_onnx
from sift_onnx.models.export import export
from sift_onnx.training.trainer import TrainingSettings, train_file
from sift_onnx.training.trainer.state.checkpoint import load_checkpoint, newest_checkpoint
from sift_onnx.weights.mask_storage import MASKS_KEY

TOLERANCE = 1e-4
BYTES = 256
IGNORED = -100
SEQUENCE = 32


@dataclass(frozen=True)
class Task:
    """What an architecture is trained on.

    Attributes:
        batches: called with the number of batches, their size and a generator; inputs and target of each.
        loss: as in a recipe.
        optimizer: as in a recipe.
        classes: that the model tells apart.
    """

    batches: Callable[[int, int, torch.Generator], Iterator[tuple[torch.Tensor, ...]]]
    loss: str
    optimizer: dict[str, Any]
    classes: int


def images(count: int, size: int, generator: torch.Generator) -> Iterator[tuple[torch.Tensor, ...]]:
    """Digits of three equal channels, 32x32."""
    pixels, labels = digits()
    for _ in range(count):
        chosen = torch.randint(0, len(labels), (size,), generator=generator)
        large = torch.nn.functional.interpolate(pixels[chosen], size=(32, 32), mode="bilinear")
        yield large.expand(-1, 3, -1, -1).contiguous(), labels[chosen]


def text() -> torch.Tensor:
    """The documentation of Python's keywords and types, as bytes."""
    return torch.tensor(list("\n".join(topics.topics.values()).encode()))


def windows(count: int, size: int, generator: torch.Generator) -> Iterator[tuple[torch.Tensor, ...]]:
    """Stretches of text, for next-token prediction."""
    data = text()
    for _ in range(count):
        starts = torch.randint(0, len(data) - SEQUENCE, (size, 1), generator=generator)
        yield (data[starts + torch.arange(SEQUENCE)],)


def pairs(count: int, size: int, generator: torch.Generator) -> Iterator[tuple[torch.Tensor, ...]]:
    """Two halves of text with 15 % of the bytes masked; the second one follows the first, or comes from elsewhere.

    The target has the masked bytes, and whether the second half comes from elsewhere as its last column.
    """
    data, half = text(), SEQUENCE // 2
    for _ in range(count):
        starts = torch.randint(0, len(data) - SEQUENCE, (2, size, 1), generator=generator)
        elsewhere = torch.randint(0, 2, (size, 1), generator=generator)
        second = torch.where(elsewhere == 1, starts[1], starts[0] + half)
        places = torch.cat([starts[0] + torch.arange(half), second + torch.arange(SEQUENCE - half)], 1)
        tokens = data[places]
        masked = torch.rand(tokens.shape, generator=generator) < 0.15
        target = torch.cat([torch.where(masked, tokens, IGNORED), elsewhere], 1)
        # Zero bytes do not occur in text.
        inputs = torch.where(masked, 0, tokens)
        types = (torch.arange(SEQUENCE) >= half).long().expand_as(tokens).contiguous()
        yield inputs, torch.ones_like(tokens), types, target


def pretraining_loss(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    """Of BERT's two heads: masked bytes, and whether the halves belong together."""
    tokens, sentences = outputs
    cross_entropy = torch.nn.functional.cross_entropy
    words = cross_entropy(tokens.transpose(1, 2), target[:, :-1], ignore_index=IGNORED)
    return words + cross_entropy(sentences, target[:, -1])


SGD = {"type": "sgd", "lr": 0.05, "weight_decay": 5e-4}
ADAMW = {"type": "adamw", "lr": 1e-3, "weight_decay": 0.01}
TASKS = {
    "resnet18-cifar": Task(images, "classification", SGD, 10),
    "mobilenetv2-cifar": Task(images, "classification", SGD, 10),
    "bert-small": Task(pairs, f"{__file__}:pretraining_loss", ADAMW, BYTES),
    "gpt3-small": Task(windows, "next-token", ADAMW, BYTES),
}


class Batches:
    """Batches of a task: other ones in each epoch."""

    def __init__(self, task: Task, count: int, size: int) -> None:
        self._task, self._count, self._size = task, count, size

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        # torch's own generator, which the trainer seeds for each epoch.
        yield from self._task.batches(self._count, self._size, torch.default_generator)


@click.command()
@click.option("--model", "patterns", multiple=True, default=("*",), help="Glob over the architectures (repeatable).")
@click.option("--algorithm", "algorithms", multiple=True, default=("rigl", "set"), show_default=True)
@click.option("--sparsity", default="0.75", show_default=True)
@click.option("--width", type=float, default=1.0, show_default=True, help="Factor on the channels.")
@click.option("--layers", type=int, default=4, show_default=True, help="Of a language model.")
@click.option("--steps", type=int, default=300, show_default=True)
@click.option("--batch", type=int, default=16, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
def main(
    patterns: tuple[str, ...],
    algorithms: tuple[str, ...],
    sparsity: str,
    width: float,
    layers: int,
    steps: int,
    batch: int,
    threads: int,
) -> None:
    """Train each architecture with each algorithm, and compare."""
    torch.set_num_threads(threads)
    click.echo(
        "| model | parameters, wide | algorithm | steps | loss, first and last tenth | masks changed in | weights that "
        "changed sides | largest difference of outputs | masks in the file | non-zeros per layer |"
    )
    click.echo("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |")
    wrong = 0
    for name, task in TASKS.items():
        if not any(fnmatch(name, pattern) for pattern in patterns):
            continue
        with tempfile.TemporaryDirectory() as folder:
            original, wide = Path(folder) / "original.onnx", Path(folder) / "wide.onnx"
            sizes = {"keep_batch_norm": True} if task.batches is images else {"layers": layers, "sequence": SEQUENCE}
            export(name, original, width=width, num_classes=task.classes, batch="dynamic", **sizes)
            sift_onnx.transform(str(original), wide=sparsity).save(wide)
            for algorithm in algorithms:
                line, right = round_trip(name, wide, algorithm, steps, batch)
                click.echo(line)
                wrong += not right
    sys.exit(wrong > 0)


def round_trip(name: str, wide: Path, algorithm: str, steps: int, batch: int) -> tuple[str, bool]:
    """Train the file ``wide`` and compare; the line of the table, and whether all is as it should be."""
    task, out, checkpoints = TASKS[name], wide.with_name("out.onnx"), wide.with_name("checkpoints")
    stop = steps * 3 // 4
    settings = TrainingSettings.of_recipe(
        {
            "steps": steps,
            "loss": task.loss,
            "optimizer": task.optimizer,
            "schedule": {"type": "cosine", "warmup": steps // 10},
            "sparsity": {
                "algorithm": algorithm,
                "sparsity": "masks",
                "param_filter": "*",
                "update": {"freq": max(steps // 30, 1), "stop": stop},
                "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": stop},
            },
            "log_every": max(steps // 10, 1),
            "checkpoint_every": steps,
        }
    )
    losses: list[float] = []
    train_file(
        wide,
        out,
        {"train": Batches(task, steps, batch)},
        settings,
        device="cpu",
        checkpoints=checkpoints,
        force=True,
        report=lambda event: losses.append(event["loss"]) if event["event"] == "step" else None,
    )
    state = load_checkpoint(newest_checkpoint(checkpoints))["model"]
    before, after = sift_onnx.masks(wide), sift_onnx.masks(out)
    trained = {key.removesuffix("_mask"): mask.numpy() for key, mask in state.items() if key.endswith("_mask")}
    same = after.keys() == trained.keys() and all(np.array_equal(after[key], trained[key]) for key in after)
    counts = all(before[key].sum() == after[key].sum() for key in before) and before.keys() == after.keys()
    changed = [key for key in before if not np.array_equal(before[key], after[key])]
    moved = sum(int((before[key] & ~after[key]).sum()) for key in before)
    difference = largest_difference(wide, out, state, task, batch)
    untouched = rest(onnx.load(wide)) == rest(onnx.load(out))
    parameters = sum(int(np.prod(tensor.dims)) for tensor in onnx.load(wide).graph.initializer)
    line = (
        f"| {name} | {parameters / 1e6:.1f} M | {algorithm} | {steps} | {losses[0]:.2f} to {losses[-1]:.2f} | "
        f"{len(changed)} of {len(before)} layers | {moved:,} | {difference:.1e} | {verdict(same)} | "
        f"{verdict(counts)} |"
    )
    return line, same and counts and untouched and difference <= TOLERANCE and len(changed) == len(before)


def largest_difference(wide: Path, out: Path, state: dict[str, Any], task: Task, batch: int) -> float:
    """Between torch with the trainer's state and onnxruntime with the file, relative to the largest output."""
    module = sift_onnx.to_torch(str(wide)).eval()
    module.load_state_dict({key: value for key, value in state.items() if not key.endswith("_mask")})
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    (batches,) = task.batches(1, batch, torch.Generator().manual_seed(1))
    inputs = batches[: len(session.get_inputs())]
    with torch.no_grad():
        expected = module(*inputs)
    names = [value.name for value in session.get_inputs()]
    found = session.run(None, {key: value.numpy() for key, value in zip(names, inputs, strict=True)})
    outputs = expected if isinstance(expected, tuple) else (expected,)
    return max(float(np.abs(a - b.numpy()).max() / b.abs().max()) for a, b in zip(found, outputs, strict=True))


def rest(proto: onnx.ModelProto) -> bytes:
    """Everything but the values of floating-point tensors and the notes on masks."""
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.ClearField("raw_data")
    for i in range(len(proto.metadata_props) - 1, -1, -1):
        if proto.metadata_props[i].key == MASKS_KEY:
            del proto.metadata_props[i]
    return proto.SerializeToString(deterministic=True)


def verdict(right: bool) -> str:
    """In the words of the table."""
    return "equal" if right else "**differ**"


if __name__ == "__main__":
    main()
