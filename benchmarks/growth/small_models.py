"""The models that are grown: small variants of what people export, built offline with random weights.

Widths, heads and blocks are those of the library; depths and images are small, so that the whole zoo takes minutes.
Parameters and statistics of normalizations get the values that training would give them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verdicts import Family

__all__ = ["MODELS", "GrowthModel"]

# Outputs of classifiers.
_CLASSES = 16


@dataclass(frozen=True)
class GrowthModel:
    """A model to grow.

    Attributes:
        name: of the library.
        library: distribution that defines it.
        family: how it normalizes.
        build: makes the module with random weights.
        inputs: name and shape of each input of its ``forward``; token ids if the name ends in ``ids``.
    """

    name: str
    library: str
    family: Family
    build: Callable[[], Any]
    inputs: Mapping[str, tuple[int, ...]]


def _timm(family: Family, name: str, pixels: int = 64, blocks: int | None = None, **settings: Any) -> GrowthModel:
    def build() -> Any:
        import timm

        model = timm.create_model(name, pretrained=False, num_classes=_CLASSES, **settings)
        if blocks is not None:
            model.blocks = model.blocks[:blocks]
        return model

    return GrowthModel(name, "timm", family, build, {"x": (1, 3, pixels, pixels)})


def _timm_class(family: Family, path: str, pixels: int = 64, **settings: Any) -> GrowthModel:
    """An architecture whose named models take no other sizes."""
    module, name = path.split(".")

    def build() -> Any:
        import importlib

        return getattr(importlib.import_module(f"timm.models.{module}"), name)(num_classes=_CLASSES, **settings)

    return GrowthModel(name, "timm", family, build, {"x": (1, 3, pixels, pixels)})


def _torchvision(family: Family, name: str, pixels: int = 64, **settings: Any) -> GrowthModel:
    def build() -> Any:
        import torchvision

        made = torchvision.models
        for part in name.split("."):
            made = getattr(made, part)
        return made(weights=None, num_classes=_CLASSES, **settings)

    return GrowthModel(name.split(".")[-1], "torchvision", family, build, {"x": (1, 3, pixels, pixels)})


def _transformers(
    family: Family, model: str, config: str, argument: str = "input_ids", shape: tuple[int, ...] = (1, 24), **sizes: Any
) -> GrowthModel:
    def build() -> Any:
        import torch
        import transformers

        class First(torch.nn.Module):
            """Gives the first tensor, where the library gives an object."""

            def __init__(self) -> None:
                super().__init__()
                settings = getattr(transformers, config)(**sizes)
                settings._attn_implementation = "eager"
                self.model = getattr(transformers, model)(settings)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                mask = {"attention_mask": torch.ones_like(x)} if argument == "input_ids" else {}
                first: torch.Tensor = self.model(**{argument: x}, **mask).to_tuple()[0]
                return first

        return First()

    return GrowthModel(model, "transformers", family, build, {"ids" if argument == "input_ids" else "x": shape})


# Channels of four stages.
_NARROW = (32, 32, 64, 96)

_TOKENS: dict[str, Any] = {
    "hidden_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 192,
    "vocab_size": 128,
}
_DECODER = _TOKENS | {"use_cache": False}
_GROUPED = _DECODER | {"num_key_value_heads": 2}
_IMAGE: dict[str, Any] = {key: value for key, value in _TOKENS.items() if key != "vocab_size"} | {
    "image_size": 64,
    "patch_size": 16,
}

MODELS: tuple[GrowthModel, ...] = (
    # Each channel by itself.
    _torchvision("per-channel", "densenet121", 96),
    _torchvision("per-channel", "mobilenet_v2"),
    _torchvision("per-channel", "mobilenet_v3_small"),
    _torchvision("per-channel", "efficientnet_b0"),
    _torchvision("per-channel", "shufflenet_v2_x0_5"),
    _torchvision("per-channel", "squeezenet1_1", 96),
    _torchvision("per-channel", "regnet_x_400mf"),
    _torchvision("per-channel", "regnet_y_400mf"),
    _torchvision("per-channel", "mnasnet0_5"),
    _torchvision("per-channel", "googlenet", 96, aux_logits=False, init_weights=False),
    _torchvision("per-channel", "segmentation.lraspp_mobilenet_v3_large", weights_backbone=None),
    _timm("per-channel", "resnet18", channels=_NARROW),
    _timm("per-channel", "resnet26d", channels=_NARROW),
    _timm("per-channel", "seresnext26d_32x4d", channels=_NARROW),
    _timm("per-channel", "resnest14d", channels=_NARROW),
    _timm("per-channel", "skresnet18", channels=_NARROW),
    _timm("per-channel", "ecaresnet26t", channels=_NARROW),
    _timm("per-channel", "res2net50_14w_8s", layers=(1, 1, 1, 1), channels=_NARROW),
    _timm("per-channel", "dpn48b"),
    _timm("per-channel", "hrnet_w18_small"),
    _timm("per-channel", "dla46_c"),
    _timm("per-channel", "dla60x_c"),
    _timm("per-channel", "ese_vovnet19b_slim"),
    _timm("per-channel", "tf_efficientnetv2_b0"),
    _timm("per-channel", "cs3darknet_focus_s"),
    _timm("per-channel", "gcresnext26ts"),
    _timm("per-channel", "nf_regnet_b0"),
    _timm("per-channel", "ghostnet_050"),
    _timm("per-channel", "ghostnetv2_100"),
    _timm("per-channel", "mobilenetv4_conv_small_050"),
    _timm("per-channel", "mobileone_s0"),
    _timm("per-channel", "repvgg_a0"),
    _timm("per-channel", "repghostnet_050"),
    _timm("per-channel", "tinynet_e"),
    _timm("per-channel", "lcnet_050"),
    _timm("per-channel", "rexnet_100"),
    _timm("per-channel", "hardcorenas_a"),
    _timm("per-channel", "fbnetc_100"),
    _timm("per-channel", "mixnet_s"),
    _timm("per-channel", "hgnetv2_b0"),
    _timm("per-channel", "gernet_s"),
    _timm("per-channel", "regnetz_b16"),
    _timm("per-channel", "nf_resnet26"),
    _timm("per-channel", "efficientformerv2_s0", img_size=64),
    _timm("per-channel", "fastvit_t8"),
    _timm("per-channel", "repvit_m0_9"),
    _timm("per-channel", "efficientvit_b0"),
    _timm("per-channel", "efficientvit_m0", 96, img_size=96),
    _timm("per-channel", "visformer_tiny", img_size=64),
    _timm("per-channel", "test_byobnet"),
    _timm("per-channel", "starnet_s1"),
    _timm("per-channel", "inception_next_atto"),
    _timm("per-channel", "botnet26t_256", img_size=64),
    _timm("per-channel", "lambda_resnet26t", img_size=64),
    _timm("per-channel", "levit_128s", 96, img_size=96),
    _timm("per-channel", "efficientformer_l1", 224),
    _timm("per-channel", "halonet26t", 128, img_size=128),
    _timm("per-channel", "resmlp_12_224", blocks=2, img_size=64),
    # A normalization over features before each part.
    _timm("pre-norm", "vit_tiny_patch16_224", depth=2, img_size=64),
    _timm("pre-norm", "deit_tiny_distilled_patch16_224", depth=2, img_size=64),
    _timm("pre-norm", "deit3_small_patch16_224", embed_dim=96, num_heads=4, depth=2, img_size=64),
    _timm("pre-norm", "vit_relpos_small_patch16_224", embed_dim=96, num_heads=4, depth=2, img_size=64),
    _timm("pre-norm", "vit_so150m2_patch16_reg1_gap_256", embed_dim=96, num_heads=4, depth=1, img_size=64),
    _timm("pre-norm", "cait_xxs24_224", depth=2, img_size=64),
    _timm("pre-norm", "xcit_nano_12_p16_224", depth=2, img_size=64),
    _timm("pre-norm", "beit_base_patch16_224", embed_dim=96, num_heads=4, depth=2, img_size=64),
    _timm("pre-norm", "eva02_tiny_patch14_224", 56, depth=2, img_size=56),
    _timm("pre-norm", "swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=48, depths=(1, 2, 1, 1)),
    _timm("pre-norm", "convnext_atto"),
    _timm("pre-norm", "convnextv2_atto"),
    _timm("pre-norm", "twins_svt_small", depths=(1, 1, 1, 1)),
    _timm("pre-norm", "pvt_v2_b0"),
    _timm("pre-norm", "tnt_s_patch16_224", embed_dim=96, num_heads_outer=4, depth=2, img_size=64),
    _timm("pre-norm", "coat_lite_tiny", img_size=64),
    _timm("pre-norm", "pit_ti_224", img_size=64),
    _timm("pre-norm", "davit_tiny", depths=(1, 1, 1, 1), embed_dims=(32, 64, 96, 128), num_heads=(1, 2, 3, 4)),
    _timm("pre-norm", "sequencer2d_s", layers=(1, 1, 1, 1), embed_dims=(48, 96, 96, 96), hidden_sizes=(12, 24, 24, 24)),
    _timm("pre-norm", "edgenext_xx_small"),
    _timm("pre-norm", "mobilevit_xxs"),
    _timm("pre-norm", "mobilevitv2_050"),
    _timm("pre-norm", "mambaout_femto"),
    _timm("pre-norm", "test_convnext3"),
    _timm("pre-norm", "test_coatnet", img_size=64),
    _timm("pre-norm", "test_maxvit", img_size=64),
    _timm("pre-norm", "flexivit_small", 60, img_size=60, depth=2, embed_dim=96, num_heads=4),
    _timm("pre-norm", "poolformer_s12"),
    _timm("pre-norm", "mixer_s32_224", blocks=2, img_size=64),
    _timm("pre-norm", "gmlp_ti16_224", blocks=2, img_size=64),
    _timm("pre-norm", "crossvit_tiny_240", 240),
    _timm("pre-norm", "gcvit_xxtiny", img_size=64),
    _timm("pre-norm", "tiny_vit_5m_224"),
    _timm_class("pre-norm", "nest.Nest", img_size=64, embed_dims=(32, 64, 96), num_heads=(2, 4, 4), depths=(1, 1, 2)),
    _timm_class(
        "pre-norm", "volo.VOLO", layers=(1, 1, 1, 1), img_size=64, embed_dims=(48, 96, 96, 96), num_heads=(3, 6, 6, 6)
    ),
    _timm_class("pre-norm", "focalnet.FocalNet", depths=(1, 1, 2, 1), embed_dim=32),
    _timm_class("pre-norm", "metaformer.MetaFormer", depths=(1, 1, 2, 1), dims=(32, 64, 96, 128)),
    _timm_class("pre-norm", "hiera.Hiera", img_size=(64, 64), embed_dim=48, stages=(1, 1, 2, 1)),
    _transformers(
        "pre-norm", "GPT2LMHeadModel", "GPT2Config", n_embd=96, n_head=4, n_layer=2, vocab_size=128, use_cache=False
    ),
    _transformers("pre-norm", "LlamaForCausalLM", "LlamaConfig", **_GROUPED),
    _transformers("pre-norm", "MistralForCausalLM", "MistralConfig", **_GROUPED),
    _transformers("pre-norm", "Qwen2ForCausalLM", "Qwen2Config", **_GROUPED),
    _transformers("pre-norm", "Qwen3ForCausalLM", "Qwen3Config", head_dim=24, **_GROUPED),
    _transformers("pre-norm", "GemmaForCausalLM", "GemmaConfig", head_dim=24, **_GROUPED),
    _transformers("pre-norm", "PhiForCausalLM", "PhiConfig", **_DECODER),
    _transformers("pre-norm", "Phi3ForCausalLM", "Phi3Config", pad_token_id=0, **_GROUPED),
    _transformers("pre-norm", "SmolLM3ForCausalLM", "SmolLM3Config", pad_token_id=0, **_GROUPED),
    _transformers("pre-norm", "StableLmForCausalLM", "StableLmConfig", **_GROUPED),
    _transformers("pre-norm", "GPTNeoXForCausalLM", "GPTNeoXConfig", **_DECODER),
    _transformers(
        "pre-norm",
        "GPTJForCausalLM",
        "GPTJConfig",
        n_embd=96,
        n_head=4,
        n_layer=2,
        rotary_dim=8,
        vocab_size=128,
        use_cache=False,
    ),
    _transformers(
        "pre-norm",
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        hidden_size=96,
        num_heads=4,
        num_layers=2,
        attention_types=[[["global", "local"], 1]],
        vocab_size=128,
        use_cache=False,
    ),
    _transformers(
        "pre-norm",
        "OPTForCausalLM",
        "OPTConfig",
        hidden_size=96,
        ffn_dim=192,
        word_embed_proj_dim=96,
        num_attention_heads=4,
        num_hidden_layers=2,
        vocab_size=128,
        use_cache=False,
    ),
    _transformers(
        "pre-norm",
        "BloomForCausalLM",
        "BloomConfig",
        hidden_size=96,
        n_head=4,
        n_layer=2,
        vocab_size=128,
        use_cache=False,
    ),
    _transformers(
        "pre-norm",
        "FalconForCausalLM",
        "FalconConfig",
        hidden_size=96,
        num_attention_heads=4,
        num_hidden_layers=2,
        vocab_size=128,
        use_cache=False,
    ),
    _transformers(
        "pre-norm",
        "T5EncoderModel",
        "T5Config",
        d_model=96,
        d_kv=24,
        d_ff=192,
        num_layers=2,
        num_heads=4,
        vocab_size=128,
    ),
    _transformers("pre-norm", "ViTForImageClassification", "ViTConfig", "pixel_values", (1, 3, 64, 64), **_IMAGE),
    _transformers("pre-norm", "DeiTForImageClassification", "DeiTConfig", "pixel_values", (1, 3, 64, 64), **_IMAGE),
    _transformers("pre-norm", "Dinov2ForImageClassification", "Dinov2Config", "pixel_values", (1, 3, 64, 64), **_IMAGE),
    _transformers("pre-norm", "CLIPVisionModel", "CLIPVisionConfig", "pixel_values", (1, 3, 64, 64), **_IMAGE),
    _transformers("pre-norm", "SiglipVisionModel", "SiglipVisionConfig", "pixel_values", (1, 3, 64, 64), **_IMAGE),
    _transformers(
        "pre-norm",
        "SegformerForImageClassification",
        "SegformerConfig",
        "pixel_values",
        (1, 3, 64, 64),
        depths=[1, 1, 1, 1],
    ),
    _transformers(
        "pre-norm", "MobileViTForImageClassification", "MobileViTConfig", "pixel_values", (1, 3, 64, 64), image_size=64
    ),
    # Others.
    _timm("other", "swinv2_tiny_window8_256", img_size=64, window_size=4, embed_dim=48, depths=(1, 2, 1, 1)),
    _timm("other", "resnet50_gn", layers=(1, 1, 1, 1), channels=_NARROW),
    _timm("other", "resnetv2_50", layers=(1, 1, 1, 1), channels=(64, 64, 128, 128)),
    _timm("other", "resnetv2_50x1_bit", layers=(1, 1, 1, 1), channels=(64, 64, 128, 128)),
    _transformers("other", "BertForSequenceClassification", "BertConfig", **_TOKENS),
    _transformers("other", "BertModel", "BertConfig", **_TOKENS),
    _transformers("other", "RobertaForSequenceClassification", "RobertaConfig", **_TOKENS),
    _transformers("other", "ElectraForSequenceClassification", "ElectraConfig", embedding_size=48, **_TOKENS),
    _transformers("other", "AlbertForSequenceClassification", "AlbertConfig", embedding_size=48, **_TOKENS),
    _transformers("other", "MPNetForSequenceClassification", "MPNetConfig", **_TOKENS),
    _transformers("other", "DebertaV2ForSequenceClassification", "DebertaV2Config", **_TOKENS),
    _transformers(
        "other",
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        dim=96,
        n_heads=4,
        n_layers=2,
        hidden_dim=192,
        vocab_size=128,
    ),
    _transformers("other", "Gemma2ForCausalLM", "Gemma2Config", head_dim=24, **_GROUPED),
)
