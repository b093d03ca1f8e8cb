"""The models of the zoo: built offline with random weights by the libraries that people export from, and by ours.

Every model has the structure that its library gives it. Where the published size would make a file of more than
150 MB, widths (and, where nothing else helps, layers) are smaller, and ``note`` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["MODELS", "Input", "ZooModel", "find"]

PIXELS = 224
# Batches and sequence lengths that a dynamic export is checked at; a static one has the first of each.
BATCHES = (1, 3)
LENGTHS = (64, 48)


@dataclass(frozen=True)
class Input:
    """An input of a model.

    Attributes:
        name: as the ONNX file has it.
        dtype: ``float32`` or ``int64``; integers are token ids below the vocabulary, or masks.
        shapes: the shapes to use: the first in a static export, all of them in a dynamic one.
        dynamic: names of the axes that are open in a dynamic export, by position.
    """

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    dynamic: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class ZooModel:
    """A model of the zoo.

    Attributes:
        name: part of the file's name.
        library: distribution that defines it.
        build: makes the module, in evaluation mode or not, with random weights.
        inputs: keyword arguments of its ``forward``, in order.
        note: how it differs from the published model.
        trained_like: whether parameters of one axis get random values, which fresh models have equal.
    """

    name: str
    library: str
    build: Callable[[], Any]
    inputs: tuple[Input, ...]
    note: str = ""
    trained_like: bool = False


def _image(argument: str = "x", pixels: int = PIXELS) -> tuple[Input, ...]:
    return (Input(argument, "float32", tuple((n, 3, pixels, pixels) for n in BATCHES), ((0, "batch"),)),)


def _tokens(*names: str) -> tuple[Input, ...]:
    shapes = tuple(zip(BATCHES, LENGTHS, strict=True))
    return tuple(Input(name, "int64", shapes, ((0, "batch"), (1, "sequence"))) for name in names)


def _timm(name: str, pixels: int = PIXELS, adapt: Callable[[Any], None] | None = None, note: str = "") -> ZooModel:
    def build() -> Any:
        import timm

        model = timm.create_model(name, pretrained=False)
        if adapt is not None:
            adapt(model)
        return model

    return ZooModel(name, "timm", build, _image(pixels=pixels), note)


def _torchvision(name: str, adapt: Callable[[Any], None] | None = None, note: str = "") -> ZooModel:
    def build() -> Any:
        import torchvision

        model = getattr(torchvision.models, name)(weights=None)
        if adapt is not None:
            adapt(model)
        return model

    return ZooModel(name, "torchvision", build, _image(), note)


def _transformers(name: str, model: str, config: str, note: str, **sizes: Any) -> ZooModel:
    def build() -> Any:
        import torch
        import transformers

        class Tuples(torch.nn.Module):
            """Gives a tuple, which both exporters take, where the library gives an object."""

            def __init__(self) -> None:
                super().__init__()
                self.model = getattr(transformers, model)(
                    getattr(transformers, config)(**sizes, attn_implementation="eager")
                )

            def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
                outputs: tuple[torch.Tensor, ...] = self.model(input_ids, attention_mask=attention_mask).to_tuple()
                return outputs

        return Tuples()

    return ZooModel(name, "transformers", build, _tokens("input_ids", "attention_mask"), note)


def _ours(name: str, inputs: tuple[Input, ...], note: str = "", **settings: Any) -> ZooModel:
    """An architecture of ``sift-onnx models``, as torch exports it when nothing is cleaned up afterwards."""

    def build() -> Any:
        from sift_onnx import models

        return models.build(name, **settings)

    return ZooModel(f"sift_{name}", "sift_onnx", build, inputs, note)


def _our_residual(name: str, pixels: int = PIXELS) -> ZooModel:
    # Exporters fold the scales of batch normalization, which would leave convolutions whose weights are all zero.
    return _ours(name, _image(pixels=pixels), zero_init_residual=False)


def _our_gpt(name: str, width: float, note: str) -> ZooModel:
    note = f"{note}, vocabulary 16384; layers and heads as published"
    return _ours(name, _tokens("input_ids"), note, width=width, num_classes=16384)


def _trained(model: ZooModel) -> ZooModel:
    return replace(model, name=f"{model.name}_trained", trained_like=True)


def _small_classifier(vgg: Any) -> None:
    from torch import nn

    vgg.classifier = nn.Sequential(nn.Linear(25088, 512), nn.ReLU(True), nn.Dropout(), nn.Linear(512, 1000))


def _six_layers(mixer: Any) -> None:
    mixer.blocks = mixer.blocks[:6]


def _four_layers(vit: Any) -> None:
    vit.encoder.layers = vit.encoder.layers[:4]


_BERT = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}

_RESNET50 = _timm("resnet50")
_MOBILENET = _timm("mobilenetv3_large_100")
_VIT = _timm("vit_tiny_patch16_224")

# In the order in which they are exported.
MODELS: tuple[ZooModel, ...] = (
    _RESNET50,
    _MOBILENET,
    _timm("densenet121"),
    _VIT,
    _transformers(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        "width 256 (4 heads of 64), vocabulary 16384; 12 layers as published",
        n_embd=256,
        n_head=4,
        n_layer=12,
        vocab_size=16384,
        use_cache=False,
    ),
    _transformers(
        "bert_classifier",
        "BertForSequenceClassification",
        "BertConfig",
        "width 256 (4 heads of 64); 12 layers as published",
        **_BERT,
    ),
    _transformers(
        "bert_bare",
        "BertModel",
        "BertConfig",
        "width 256 (4 heads of 64); 12 layers as published; hidden states are outputs",
        **_BERT,
    ),
    _trained(_RESNET50),
    _trained(_MOBILENET),
    _trained(_VIT),
    _torchvision("resnet18"),
    _torchvision("vgg11_bn", _small_classifier, "classifier of 512 instead of 4096 and 4096 features"),
    _timm("efficientnet_b0"),
    _timm("regnetx_004"),
    _timm("regnety_004"),
    _timm("mobilenetv2_100"),
    _torchvision("shufflenet_v2_x1_0"),
    _torchvision("squeezenet1_1"),
    _timm("resnet50_gn"),
    _transformers(
        "llama",
        "LlamaForCausalLM",
        "LlamaConfig",
        "width 256 (8 heads of 32, 2 for keys and values), vocabulary 16384; 16 layers as Llama 3.2 1B",
        hidden_size=256,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_hidden_layers=16,
        intermediate_size=1024,
        vocab_size=16384,
        use_cache=False,
    ),
    _timm("convnext_tiny"),
    _timm("botnet26t_256", pixels=256),
    _timm("mobilevit_s", pixels=256),
    _timm("swin_tiny_patch4_window7_224"),
    _timm("mixer_s32_224"),
    _timm("mixer_b16_224", adapt=_six_layers, note="6 of 12 layers"),
    _torchvision("vit_b_16", _four_layers, "4 of 12 layers"),
    _transformers(
        "distilbert",
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        "width 256 (4 heads of 64); 6 layers as published",
        dim=256,
        n_heads=4,
        hidden_dim=1024,
    ),
    _transformers("t5_encoder", "T5EncoderModel", "T5Config", "t5-small; hidden states are outputs"),
    _our_residual("botnet50"),
    _our_residual("botnet50-cifar", 32),
    _ours("mobilevit-s", _image(pixels=256)),
    _ours("mobilevit-s-cifar", _image(pixels=32)),
    _our_gpt("gpt3-small", 0.5, "heads of 32"),
    _our_gpt("gpt3-medium", 0.25, "heads of 16"),
    _our_gpt("gpt3-1.3b", 0.125, "heads of 16"),
    _ours(
        "bert-small",
        _tokens("input_ids", "attention_mask", "token_type_ids"),
        "vocabulary 4096; widened, a head of 30522 tokens costs more than the rest of the model",
        num_classes=4096,
    ),
    _ours("retinanet-resnet18", _image(pixels=256)),
    _ours("deeplabv3plus-resnet18", _image(pixels=256), "images of 256x256"),
    _our_residual("resnet18"),
    _our_residual("resnet34"),
    _our_residual("resnet50"),
    _our_residual("resnet18-cifar", 32),
    _our_residual("resnet34-cifar", 32),
    _our_residual("resnet50-cifar", 32),
    _ours("mobilenetv2", _image()),
    _ours("mobilenetv2-cifar", _image(pixels=32)),
)


def find(name: str) -> ZooModel:
    """The model of that name; a ``KeyError`` if there is none."""
    return {model.name: model for model in MODELS}[name]
