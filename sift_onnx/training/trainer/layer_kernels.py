"""Which kernels compute the masked layers of a training: sparse ones or torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sift_onnx import training
from sift_onnx.errors import UsageError, listing
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.trainer.process_group import Ranks
from sift_onnx.training.trainer.settings import KernelSetting

__all__ = ["LayerKernels", "choose_kernels"]


@dataclass(frozen=True)
class LayerChoice:
    """The kernels of a masked layer.

    Attributes:
        name: of the layer.
        kernels: ``sparse`` or ``dense``.
        reason: why these.
    """

    name: str
    kernels: str
    reason: str


@dataclass(frozen=True)
class LayerKernels:
    """The kernels of all masked layers.

    Attributes:
        setting: what was asked for.
        layers: what each layer got.
    """

    setting: KernelSetting
    layers: tuple[LayerChoice, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"setting": self.setting, "layers": [asdict(layer) for layer in self.layers]}

    def summary(self) -> str:
        """How many layers run on sparse kernels, and why others do not."""
        dense = [layer for layer in self.layers if layer.kernels == "dense"]
        total = len(self.layers)
        if not dense:
            return (
                "the masked layer runs on sparse kernels"
                if total == 1
                else f"all {total} masked layers run on sparse kernels"
            )
        reasons = {layer.reason for layer in dense}
        if len(reasons) == 1 and len(dense) == total:
            return f"no masked layer runs on sparse kernels: {dense[0].reason}"
        named = listing([f"{layer.name} ({layer.reason})" for layer in dense])
        return f"{total - len(dense)} of {total} masked layers run on sparse kernels; dense: {named}"


def choose_kernels(
    module: ImportedModule,
    optimizer: torch.optim.Optimizer,
    masked: Sequence[str],
    setting: KernelSetting,
    ranks: Ranks,
    *,
    is_sharded: bool,
    saved: Mapping[str, Any] | None,
) -> LayerKernels:
    """Give the masked layers of a model their kernels.

    Args:
        module: the model, with masks at work; its layers are replaced.
        optimizer: over its parameters.
        masked: the names of masked parameters.
        setting: of the training.
        ranks: that train together; all of them get what the first one chooses.
        is_sharded: whether they share out the parameters.
        saved: what :meth:`LayerKernels.to_dict` gave in the run that is resumed. Layers get the same kernels if the
            setting is the same, since the other kernels round otherwise.

    Raises:
        UsageError: sparse kernels are asked for where there are none.
    """
    obstacle = None
    if ranks.device.type != "cpu":
        obstacle = f"sparse kernels run on the CPU, and the training is on {ranks.device}"
    elif is_sharded:
        obstacle = "sparse kernels do not go with parallelism fsdp2"
    elif not hasattr(training, "sparsify_layers"):
        obstacle = "this build has no sparse kernels for training"
    if setting == "sparse" and obstacle is not None:
        raise UsageError(f"kernels sparse: {obstacle}; choose kernels auto or dense")
    if not masked or setting == "dense" or obstacle is not None:
        reason = obstacle if setting != "dense" and obstacle is not None else "kernels dense"
        return LayerKernels(setting, tuple(LayerChoice(name, "dense", reason) for name in masked))
    if saved is not None and saved["setting"] == setting:
        fixed = [LayerChoice(**layer) for layer in saved["layers"]]
    elif ranks.size > 1:
        fixed = ranks.of_leader(_replaced(module, optimizer, setting) if ranks.leads else None)
        if ranks.leads:
            return LayerKernels(setting, tuple(fixed))
    else:
        return LayerKernels(setting, tuple(_replaced(module, optimizer, setting)))
    _replaced(module, optimizer, {layer.name: layer.kernels for layer in fixed})
    return LayerKernels(setting, tuple(fixed))


def _replaced(
    module: ImportedModule, optimizer: torch.optim.Optimizer, kernels: str | Mapping[str, str]
) -> list[LayerChoice]:
    found: list[Any] = []
    sparsify_layers = getattr(training, "sparsify_layers")  # noqa: B009
    sparsify_layers(module, optimizer, kernels=kernels, report=found.append)
    return [LayerChoice(layer.name, layer.kernels, layer.reason) for layer in found]
