"""Which architectures there are, without importing torch.

An architecture is a row of ``ARCHITECTURES``: what a list of models shows, and by name what builds it. A new one is a
module with a builder, ``builder(width, num_classes, **options) -> torch.nn.Module``, and a row here.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sift_onnx.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["ARCHITECTURES", "Architecture", "build", "example_inputs", "find", "require_torch"]


@dataclass(frozen=True)
class Architecture:
    """A row of the registry.

    Attributes:
        name: what the command line calls it.
        description: one line.
        paper: where the Sparse-IFT paper uses it, or a dash.
        input_shape: shape of one input item, without the batch axis.
        num_classes: size of the last axis of the output, unless another is asked for.
        builder: ``module:function``, called with ``width`` (a factor on every hidden size; 1.0 is the published model),
            ``num_classes``, ``arguments`` and those of ``options`` that were given.
        arguments: keyword arguments that the builder always gets.
        options: names of further keyword arguments that a user may give to the builder.
        example_inputs: ``module:function``, called with the architecture and a batch size; returns the tuple of
            tensors to trace the model with, one per input name, batch axis first.
        input_names: names of the graph's inputs.
        output_names: names of the graph's outputs.
    """

    name: str
    description: str
    paper: str
    input_shape: tuple[int, ...]
    num_classes: int
    builder: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    example_inputs: str = "sift_onnx.models.example_inputs:images"
    input_names: tuple[str, ...] = ("input",)
    output_names: tuple[str, ...] = ("logits",)


def _resnet(name: str, depth: int, stem: str, paper: str) -> Architecture:
    imagenet = stem == "imagenet"
    return Architecture(
        name=name,
        description=f"ResNet-{depth}, stem 7x7/2 and pooling" if imagenet else f"ResNet-{depth}, stem 3x3",
        paper=paper,
        input_shape=(3, 224, 224) if imagenet else (3, 32, 32),
        num_classes=1000 if imagenet else 100,
        builder=f"sift_onnx.models.resnet:resnet{depth}",
        arguments={"stem": stem},
        options=("zero_init_residual",),
    )


ARCHITECTURES: Mapping[str, Architecture] = {
    row.name: row
    for row in (
        _resnet("resnet18", 18, "imagenet", "Tables 6 and 7, Figure 3"),
        _resnet("resnet34", 34, "imagenet", "Table 6"),
        _resnet("resnet50", 50, "imagenet", "- (BotNet-50 is built on it)"),
        _resnet("resnet18-cifar", 18, "cifar", "Tables 2, 3, 4, 9 and 11"),
        _resnet("resnet34-cifar", 34, "cifar", "-"),
        _resnet("resnet50-cifar", 50, "cifar", "-"),
    )
}


def find(name: str) -> Architecture:
    """The architecture called ``name``.

    Raises:
        UsageError: there is none; the message lists near matches.
    """
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), ARCHITECTURES, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(ARCHITECTURES)}"
    raise UsageError(f"no model is called {name!r}; {hint}")


def require_torch() -> None:
    """Import torch.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError(
            "torch, which builds the models, is not installed: pip install 'sift-onnx[train]'"
        ) from None


def build(
    name: str,
    *,
    width: float = 1.0,
    num_classes: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    **options: bool | None,
) -> nn.Module:
    """Build a freshly initialized model, in evaluation mode.

    Args:
        name: a key of ``ARCHITECTURES``.
        width: factor on every hidden size; 1.0 is the published model.
        num_classes: size of the last axis of the output; the architecture's own by default.
        seed: seed of the initial weights. The state of torch's global generator is left as it was.
        device: where the weights are made; ``"meta"`` makes a model of shapes without values.
        options: those that the architecture takes, e.g. ``zero_init_residual``; None leaves one at its default.

    Raises:
        UsageError: an unknown name or option, or a size out of range.
        MissingExtraError: torch is not installed.
    """
    architecture = find(name)
    given = {key: value for key, value in options.items() if value is not None}
    unknown = sorted(set(given) - set(architecture.options))
    if unknown:
        raise UsageError(
            f"{name} has no option {', '.join(unknown)}; it takes {', '.join(architecture.options) or 'none'}"
        )
    require_torch()
    import torch

    builder = _resolve(architecture.builder)
    classes = architecture.num_classes if num_classes is None else num_classes
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        module: nn.Module = builder(width=width, num_classes=classes, **architecture.arguments, **given)
    return module.eval()


def example_inputs(architecture: Architecture, batch: int) -> tuple[Tensor, ...]:
    """Tensors to trace a model of this architecture with, one per input name, ``batch`` items each."""
    tensors: tuple[Tensor, ...] = _resolve(architecture.example_inputs)(architecture, batch)
    return tensors


def _resolve(reference: str) -> Any:
    module, _, function = reference.partition(":")
    return getattr(importlib.import_module(module), function)
