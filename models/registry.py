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
        input_shape: shape of one input item, without the batch axis; of a sequence, its usual length.
        num_classes: classes that the model tells apart, unless another number is asked for; of a language model, its
            vocabulary.
        builder: ``module:function`` or ``module:class``, called with ``width`` (a factor on every hidden size; 1.0 is
            the published model), ``num_classes``, ``arguments`` and those of ``options`` that were given.
        arguments: keyword arguments that the builder always gets.
        options: names of further keyword arguments that a user may give to the builder.
        example_inputs: ``module:function``, called with the architecture, a batch size and a sequence length or None;
            returns the tuple of tensors to trace the model with, one per input.
        inputs: names of the graph's inputs, in order, and what their first axes are called.
        outputs: names of the graph's outputs, in order, and what their first axes are called.
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
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"input": ("batch",)})
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"logits": ("batch",)})


def _classifier(
    name: str,
    builder: str,
    image_size: int,
    description: str,
    arguments: Mapping[str, Any],
    paper: str,
    options: tuple[str, ...] = (),
) -> Architecture:
    return Architecture(
        name=name,
        description=description,
        paper=paper,
        input_shape=(3, image_size, image_size),
        num_classes=100 if name.endswith("-cifar") else 1000,
        builder=f"sift_onnx.models.{builder}",
        arguments=arguments,
        options=options,
    )


def _residual(name: str, builder: str, description: str, paper: str, **arguments: Any) -> Architecture:
    stem, image_size = ("cifar", 32) if name.endswith("-cifar") else ("imagenet", 224)
    arguments["stem"] = stem
    return _classifier(name, builder, image_size, description, arguments, paper, ("zero_init_residual",))


def _gpt(name: str, builder: str, description: str, paper: str) -> Architecture:
    return Architecture(
        name=name,
        description=description,
        paper=paper,
        input_shape=(1024,),
        num_classes=50257,
        builder=f"sift_onnx.models.gpt:{builder}",
        options=("layers", "sequence"),
        example_inputs="sift_onnx.models.example_inputs:tokens",
        inputs={"input_ids": ("batch", "sequence")},
        outputs={"logits": ("batch", "sequence")},
    )


_BERT_SMALL = Architecture(
    name="bert-small",
    description="BERT, 4 layers of 512, with both heads of pre-training",
    paper="Tables 16 and 17",
    input_shape=(512,),
    num_classes=30522,
    builder="sift_onnx.models.bert:bert_small",
    options=("layers", "sequence"),
    example_inputs="sift_onnx.models.example_inputs:masked_tokens",
    inputs={name: ("batch", "sequence") for name in ("input_ids", "attention_mask", "token_type_ids")},
    outputs={"prediction_logits": ("batch", "sequence"), "seq_relationship_logits": ("batch",)},
)

_RETINANET = Architecture(
    name="retinanet-resnet18",
    description="RetinaNet, raw predictions at strides 8 to 128",
    paper="Tables 7 and 12",
    input_shape=(3, 256, 256),
    num_classes=80,
    builder="sift_onnx.models.retinanet:retinanet_resnet18",
    outputs={f"{kind}_p{level}": ("batch",) for kind in ("class_logits", "box_deltas") for level in range(3, 8)},
)

_DEEPLAB = Architecture(
    name="deeplabv3plus-resnet18",
    description="DeepLabV3+, output stride 16",
    paper="Tables 7 and 13",
    input_shape=(3, 512, 1024),
    num_classes=19,
    builder="sift_onnx.models.deeplab:deeplabv3plus_resnet18",
)

ARCHITECTURES: Mapping[str, Architecture] = {
    row.name: row
    for row in (
        _residual("resnet18", "resnet:resnet18", "ResNet-18, stem 7x7/2 and pooling", "Tables 6 and 7, Figure 3"),
        _residual("resnet34", "resnet:resnet34", "ResNet-34, stem 7x7/2 and pooling", "Table 6"),
        _residual("resnet50", "resnet:resnet50", "ResNet-50, stem 7x7/2 and pooling", "- (BoTNet-50 is built on it)"),
        _residual("resnet18-cifar", "resnet:resnet18", "ResNet-18, stem 3x3", "Tables 2, 3, 4, 9 and 11"),
        _residual("resnet34-cifar", "resnet:resnet34", "ResNet-34, stem 3x3", "-"),
        _residual("resnet50-cifar", "resnet:resnet50", "ResNet-50, stem 3x3", "-"),
        _classifier("mobilenetv2", "mobilenetv2:MobileNetV2", 224, "MobileNetV2", {}, "-"),
        _classifier(
            "mobilenetv2-cifar",
            "mobilenetv2:MobileNetV2",
            32,
            "MobileNetV2, stem of stride 1",
            {"stem_stride": 1},
            "Tables 5 and 10",
        ),
        _classifier("mobilevit-s", "mobilevit:MobileVit", 256, "MobileViT-S", {"image_size": 256}, "-"),
        _classifier(
            "mobilevit-s-cifar",
            "mobilevit:MobileVit",
            32,
            "MobileViT-S, two strides fewer",
            {"image_size": 32, "small_images": True},
            "Tables 5 and 10",
        ),
        _residual("botnet50", "botnet:botnet50", "BoTNet-50, attention at 14x14 and 7x7", "Table 6", image_size=224),
        _residual(
            "botnet50-cifar",
            "botnet:botnet50",
            "BoTNet-50, stem 3x3, attention at 8x8 and 4x4",
            "Tables 5 and 10",
            image_size=32,
        ),
        _gpt("gpt3-small", "gpt3_small", "GPT-3, 12 layers of 768", "Tables 8, 14, 15, 18 and 19"),
        _gpt("gpt3-medium", "gpt3_medium", "GPT-3, 24 layers of 1024", "Table 15"),
        _gpt("gpt3-1.3b", "gpt3_1_3b", "GPT-3, 24 layers of 2048", "-"),
        _BERT_SMALL,
        _RETINANET,
        _DEEPLAB,
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
    **options: bool | int | None,
) -> nn.Module:
    """Build a freshly initialized model, in evaluation mode.

    Args:
        name: a key of ``ARCHITECTURES``.
        width: factor on every hidden size; 1.0 is the published model.
        num_classes: classes that the model tells apart; the architecture's own by default.
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


def example_inputs(architecture: Architecture, batch: int, sequence: int | None = None) -> tuple[Tensor, ...]:
    """Tensors to trace a model of this architecture with, one per input.

    Args:
        architecture: whose inputs they are.
        batch: how many items there are.
        sequence: length of a sequence, where items are sequences; the usual one by default.
    """
    tensors: tuple[Tensor, ...] = _resolve(architecture.example_inputs)(architecture, batch, sequence)
    return tensors


def _resolve(reference: str) -> Any:
    module, _, function = reference.partition(":")
    return getattr(importlib.import_module(module), function)
