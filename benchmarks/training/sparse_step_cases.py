"""What `sparse_step.py` times: training steps of whole models, and the three products of single layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import sift_onnx
from sift_onnx.models import build, export
from sift_onnx.training import sparse, sparsify_layers

__all__ = ["CONVOLUTIONS", "LINEARS", "Convolution", "Linear", "Step", "TrainedModel", "decoder", "resnet18"]

_TOKENS, _SEQUENCE, _SEQUENCES = 64, 256, 8


class Step:
    """Forward, backward, SGD with momentum and weight decay."""

    def __init__(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        self.module = module.train()
        self.inputs, self.targets = inputs, targets
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
        self.algorithm: Any = None

    def __call__(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        scores = self.module(self.inputs)
        loss = functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), self.targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_bytes(self) -> int:
        """Of parameters, gradients and optimizer states."""
        params = list(self.module.parameters())
        tensors = [*params, *(p.grad for p in params if p.grad is not None)]
        tensors += [t for state in self.optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        return sum(t.numel() * t.element_size() for t in tensors)


@dataclass(frozen=True)
class TrainedModel:
    """An architecture and the batch that it is trained on.

    Attributes:
        name: of the architecture.
        inputs: of the batch.
        targets: of the batch, one for each row of scores.
        options: of :func:`sift_onnx.models.export` and :func:`sift_onnx.models.build`.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    options: Mapping[str, Any] = field(default_factory=dict)

    def original(self, channels_last: bool = False) -> Step:
        """The dense original in plain torch."""
        module, inputs = build(self.name, **self.options), self.inputs
        if channels_last:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs = inputs.to(memory_format=torch.channels_last)
        return Step(module, inputs, self.targets)

    def same_width(self, folder: Path, sparsity: float) -> Step:
        """The wide model without masks."""
        wide = folder / f"{self.name}-{sparsity:g}.onnx"
        if not wide.exists():
            sift_onnx.transform(str(self._dense(folder)), wide=sparsity).save(wide)
        return Step(sift_onnx.to_torch(wide), self.inputs, self.targets)

    def masked(self, folder: Path, sparsity: float, config: Any = None) -> Step:
        """The wide model, its zeros multiplied.

        Args:
            folder: for the exported model.
            sparsity: of the transform.
            config: what :func:`sift_onnx.training.sparse.configure` takes; the model's masks, static, if it is None.
        """
        step = self.same_width(folder, sparsity)
        return _attached(step, config or {"algorithm": "static", "sparsity": "masks", "param_filter": "*"})

    def sparse(self, folder: Path, sparsity: float, config: Any = None) -> Step:
        """The same on the kernels that skip zeros."""
        return _on_kernels(self.masked(folder, sparsity, config))

    def pruned(self, folder: Path, config: Any) -> Step:
        """The dense original under masks of ``config``, on the kernels."""
        return _on_kernels(_attached(Step(sift_onnx.to_torch(self._dense(folder)), self.inputs, self.targets), config))

    def _dense(self, folder: Path) -> Path:
        dense = folder / f"{self.name}.onnx"
        if not dense.exists():
            export(self.name, dense, keep_batch_norm=True, batch="dynamic", **self.options)
        return dense


def _attached(step: Step, config: Any) -> Step:
    algorithm = sparse.configure(config)
    assert algorithm is not None
    step.algorithm = algorithm.attach(step.module, step.optimizer)
    return step


def _on_kernels(step: Step) -> Step:
    sparsify_layers(step.module, step.optimizer, kernels="sparse")
    return step


def resnet18(batch: int) -> TrainedModel:
    """ResNet-18 on images of 224 x 224."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 224, 224, generator=generator)
    labels = torch.randint(0, 1000, (batch,), generator=generator)
    # Branches that start at zero would have gradients of zero.
    return TrainedModel("resnet18", images, labels, {"zero_init_residual": False})


def decoder() -> TrainedModel:
    """Four layers of GPT-3 Small; embedding and head have few tokens, so that the layers are what counts."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, _TOKENS, (_SEQUENCES, _SEQUENCE), generator=generator)
    options = {"num_classes": _TOKENS, "layers": 4, "sequence": _SEQUENCE}
    return TrainedModel("gpt3-small", ids, ids.reshape(-1), options)


@dataclass(frozen=True)
class Convolution:
    """A 3x3 convolution of ResNet-18 and what Sparse Wide makes of it.

    Attributes:
        channels: of the dense original, in and out.
        size: of the image, pixels along an axis.
    """

    channels: int
    size: int

    @property
    def title(self) -> str:
        """What rows call it."""
        return f"3x3, {self.channels} channels at {self.size}"

    def products(self, sparsity: float, batch: int, threads: int) -> dict[str, tuple[Callable[[], Any], ...]]:
        """Forward, input gradient and weight gradient: ours, torch's with masked weights, torch's of the original."""
        generator = torch.Generator().manual_seed(0)
        wide = round(self.channels * (1 / (1 - sparsity)) ** 0.5)
        ours = _SparseConvolution(wide, 9 * self.channels**2, batch, self.size, generator, threads)
        masked = _torch_products(ours.dense(), batch, self.size, generator)
        original = _torch_products(torch.randn(self.channels, self.channels, 3, 3), batch, self.size, generator)
        return {
            "forward": (ours.forward, masked["forward"], original["forward"]),
            "input gradient": (ours.input_gradient, masked["input gradient"], original["input gradient"]),
            "weight gradient": (ours.weight_gradient, masked["weight gradient"], original["weight gradient"]),
        }


CONVOLUTIONS = (Convolution(64, 56), Convolution(128, 28), Convolution(256, 14), Convolution(512, 7))


class _SparseConvolution:
    """The kernels of a 3x3 convolution and their operands, in lanes."""

    def __init__(self, channels: int, nnz: int, batch: int, size: int, generator: Any, threads: int) -> None:
        from sift_onnx.backends.cpu import _kernels as kernels

        self._weight_shape = (channels, channels, 3, 3)
        self._indices = torch.randperm(9 * channels**2, generator=generator)[:nnz].sort().values
        self._values = torch.randn(nnz, generator=generator)
        self._pool = kernels.ThreadPool(threads)
        self._shape = (batch, channels, size, size)
        arguments = (channels, 9 * channels, self._indices.numpy())
        geometry: dict[str, Any] = {"kernel": (3, 3), "pads": (1, 1, 1, 1)}
        self._products = kernels.TrainableConv(*arguments, **geometry)
        self._gradient = kernels.WeightGradient(*arguments, **geometry)
        self._products.update(self._values)
        lanes = (-(-batch // 16), channels, size, size, 16)
        self._x, self._dy = torch.randn(lanes, generator=generator), torch.randn(lanes, generator=generator)
        self._y, self._dx, self._dw = torch.empty(lanes), torch.empty(lanes), torch.empty(nnz)

    def dense(self) -> Tensor:
        """The weight as torch has it."""
        flat = torch.zeros(self._weight_shape)
        flat.view(-1)[self._indices] = self._values
        return flat

    def forward(self) -> None:
        """With the values refreshed, of both products, as in each training step."""
        self._products.update(self._values)
        self._products.forward(self._pool, self._shape, self._x, self._y)

    def input_gradient(self) -> None:
        self._products.input_gradient(self._pool, self._shape, self._dy, self._dx)

    def weight_gradient(self) -> None:
        self._gradient.run(self._pool, self._shape, self._x, self._dy, self._dw)


def _torch_products(weight: Tensor, batch: int, size: int, generator: Any) -> dict[str, Callable[[], Any]]:
    x = torch.randn(batch, weight.shape[1], size, size, generator=generator)
    dy = torch.randn(batch, weight.shape[0], size, size, generator=generator)
    arguments = (dy, x, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    backward = torch.ops.aten.convolution_backward
    return {
        "forward": lambda: functional.conv2d(x, weight, padding=1),
        "input gradient": lambda: backward(*arguments, (True, False, False)),
        "weight gradient": lambda: backward(*arguments, (False, True, False)),
    }


@dataclass(frozen=True)
class Linear:
    """A linear layer."""

    inputs: int
    outputs: int

    @property
    def title(self) -> str:
        """What rows call it."""
        return f"linear, {self.inputs} x {self.outputs}"

    def dense(self, rows: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Forward, and forward with backward, of torch."""
        return self._runs(nn.Linear(self.inputs, self.outputs), rows)

    def sparse(self, rows: int, sparsity: float) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """The same of a sparse layer, conversions of the layout included."""
        layer = nn.Sequential(nn.Linear(self.inputs, self.outputs))
        sparse.Static(sparsity).apply(layer)
        return self._runs(sparsify_layers(layer, kernels="sparse"), rows)

    def _runs(self, layer: nn.Module, rows: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(rows, self.inputs, generator=generator, requires_grad=True)
        gradient = torch.randn(rows, self.outputs, generator=generator)
        return lambda: layer(x), lambda: layer(x).backward(gradient)


LINEARS = (Linear(768, 3072), Linear(1536, 6144))
