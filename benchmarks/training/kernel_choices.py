"""Training steps of small networks with the kernels that ``auto`` chooses, compared with dense ones.

    python benchmarks/training/kernel_choices.py [--only REGEX] [--threads 1] [--rounds 5]

``auto`` should be no slower than torch's kernels, whatever the network: of image batches of 8, few tokens, and masks
that are hardly sparse enough. A step is forward, backward and SGD with momentum. Both take turns in one process, and
``sparse`` with them, which shows what ``auto`` spares. Times are of the processor, the least of the rounds; the ratio
is the median of the rounds'.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import sift_onnx
from sift_onnx.models import export
from sift_onnx.training import LayerChoice, layer_rows, sparse, sparsify_layers

_CLASSES = 10
_LEAST = 256  # weights of a layer that gets a mask


class ViT(nn.Module):
    """A vision transformer of two layers."""

    def __init__(self, width: int = 192, patch: int = 16, size: int = 96) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2, width) * 0.02)
        layers = [nn.TransformerEncoderLayer(width, 3, 4 * width, 0.0, "gelu", batch_first=True) for _ in range(2)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2) + self.positions
        scores: Tensor = self.head(self.layers(tokens).mean(1))
        return scores


def perceptron() -> nn.Module:
    """Three products over a batch of rows."""
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, _CLASSES))


@dataclass(frozen=True)
class Case:
    """A network, its batch and its masks.

    Attributes:
        network: its name.
        batch: examples of a step.
        sparsity: of each layer.
    """

    network: str
    batch: int
    sparsity: float

    def __str__(self) -> str:
        return f"{self.network}, {self.sparsity:.0%}, batch {self.batch}"

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        draw = torch.Generator().manual_seed(0)
        if self.network == "gpt3-small":
            ids = torch.randint(0, 64, (self.batch, 128), generator=draw)
            return ids, ids.reshape(-1)
        sizes = {"perceptron": (784,), "vit": (3, 96, 96)}.get(self.network, (3, 32, 32))
        targets = torch.randint(0, _CLASSES, (self.batch,), generator=draw)
        return torch.randn(self.batch, *sizes, generator=draw), targets

    def model(self, folder: Path) -> Path:
        """The exported network."""
        path = folder / f"{self.network}.onnx"
        if path.exists():
            return path
        own = {"perceptron": perceptron, "vit": ViT}.get(self.network)
        if own is not None:
            options: dict[str, Any] = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}, "dynamo": False}
            torch.onnx.export(own().eval(), (self.data()[0],), str(path), opset_version=17, **options)
        elif self.network == "gpt3-small":
            export(self.network, path, num_classes=64, layers=1, sequence=128, batch="dynamic")
        else:
            export(self.network, path, keep_batch_norm=True, batch="dynamic")
        return path

    def step(self, folder: Path, kernels: Any, choices: list[LayerChoice]) -> Callable[[], None]:
        """A training step."""
        x, y = self.data()
        module = sift_onnx.to_torch(self.model(folder)).train()
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        masked = [n for n, p in module.named_parameters() if p.dim() > 1 and p.numel() > _LEAST]
        sparse.attach({"algorithm": "static", "sparsity": self.sparsity, "param_filter": masked}, module, optimizer)
        rows = layer_rows(module, x)
        sparsify_layers(module, optimizer, kernels, choices.append, batch_size=self.batch, rows=rows)

        def run() -> None:
            optimizer.zero_grad(set_to_none=True)
            scores = module(x)
            functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y).backward()
            optimizer.step()

        return run


def cases() -> Iterator[Case]:
    """Of each class of networks, with masks on either side of what ``auto`` takes."""
    for batch, sparsity in ((32, 0.9), (32, 0.7), (4, 0.9)):
        yield Case("perceptron", batch, sparsity)
    for batch, sparsity in ((8, 0.9), (8, 0.8), (2, 0.7), (1, 0.9)):
        yield Case("vit", batch, sparsity)
    for batch, sparsity in ((8, 0.9), (1, 0.75)):
        yield Case("gpt3-small", batch, sparsity)
    for batch, sparsity in ((8, 0.9), (8, 0.84), (16, 0.7)):
        yield Case("mobilenetv2-cifar", batch, sparsity)
    yield Case("resnet18-cifar", 16, 0.7)


def measure(case: Case, folder: Path, rounds: int) -> str:
    """A line of the table."""
    choices: list[LayerChoice] = []
    runs = {kernels: case.step(folder, kernels, choices) for kernels in ("auto", "dense", "sparse")}
    times: dict[str, list[float]] = {kernels: [] for kernels in runs}
    for number in range(rounds + 2):
        for kernels, run in runs.items():
            start = time.process_time()
            run()
            if number > 1:
                times[kernels].append(time.process_time() - start)
    of_auto = choices[: len(choices) // 3]
    taken = sum(choice.kernels == "sparse" for choice in of_auto)
    pairs = {name: zip(times[name], times["dense"], strict=True) for name in ("auto", "sparse")}
    auto, every = (statistics.median(a / b for a, b in pairs[name]) for name in pairs)
    least = 1e3 * min(times["dense"])
    return f"| {case} | {taken} of {len(of_auto)} | {auto:.2f} | {every:.2f} | {least:.0f} ms |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression; cases that it matches are run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| network | layers on sparse kernels | auto : dense | sparse : dense | dense |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            if re.search(options.only, str(case)):
                print(measure(case, Path(folder), options.rounds), flush=True)


if __name__ == "__main__":
    main()
