"""Small models and training loops for the tests of sparsity algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sift_onnx.training import sparse


def matrix(size: int = 20, seed: int = 0) -> torch.nn.Linear:
    """A layer of ``size * size`` weights and no bias."""
    torch.manual_seed(seed)
    return torch.nn.Linear(size, size, bias=False)


class Net(torch.nn.Module):
    """Two convolutions, batch normalisation and a classifier, for 8 x 8 images of 10 classes."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        super().__init__()
        self.stem = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.body = torch.nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.fc1 = torch.nn.Linear(16 * 16, 32)
        self.fc2 = torch.nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.body(torch.relu(self.norm(self.stem(x)))))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def images(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Blurred, shifted and noisy pictures of ten fixed patterns ``[count, 1, 8, 8]``, and which pattern it is."""
    patterns = torch.rand(10, 8, 8, generator=torch.Generator().manual_seed(99)).gt(0.5).float()
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=chance)
    shifts = torch.randint(-1, 2, (count, 2), generator=chance).tolist()
    pictures = torch.stack(
        [patterns[y].roll((dy, dx), (0, 1)) for y, (dy, dx) in zip(labels.tolist(), shifts, strict=True)]
    )
    return (pictures + 0.5 * torch.randn(pictures.shape, generator=chance))[:, None], labels


def batch_at(step: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a step: the same in every run."""
    return images(size, seed=1000 + step)


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    after_step: Callable[[int], None] = lambda _: None,
) -> float:
    """Train a :class:`Net` for the steps given; the last loss."""
    loss = torch.zeros(())
    for step in steps:
        x, y = batch_at(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        after_step(step)
    return loss.item()


def trace(algorithm: sparse.SparsityAlgorithm, steps: int) -> tuple[list[int], list[int]]:
    """Non-zeros of a 20 x 20 layer before training and after each step, and the steps that changed its mask."""
    model = matrix()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    algorithm.attach(model, optimizer)
    old: Any = model.weight_mask.clone()
    nnz, changes = [int(old.sum())], []
    for step in range(1, steps + 1):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().sum().backward()
        optimizer.step()
        nnz.append(int(model.weight_mask.sum()))
        if not torch.equal(old, model.weight_mask):
            changes.append(step)
        old = model.weight_mask.clone()
    return nnz, changes


def state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Every tensor that training changes."""
    moments = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return [*model.state_dict().values(), *moments]
