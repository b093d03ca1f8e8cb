"""The models that are grown: small variants of what people export.

Widths, heads and blocks are those of the library; depths and images are small, so that the whole zoo takes minutes.
Parameters and statistics of normalizations get the values that training would give them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from growth_model import GrowthModel, timm_class, timm_model, torchvision_model, transformers_model
from verdicts import Family

__all__ = ["MODELS"]

# Channels of four stages.
_NARROW = (32, 32, 64, 96)
_PIXELS = {"pixel_values": (1, 3, 64, 64)}
_TOKENS = {"input_ids": (1, 24)}
_TRANSFORMER: dict[str, Any] = {
    "hidden_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 192,
}
_WORDS: dict[str, Any] = {"vocab_size": 128, "pad_token_id": 0, "use_cache": False}


def _images(name: str, family: Family = "pre-norm", **sizes: Any) -> GrowthModel:
    """A classifier of images of transformers."""
    return transformers_model(family, f"{name}ForImageClassification", f"{name}Config", _PIXELS, **sizes)


def _vision_transformer(name: str, model: str = "{}ForImageClassification") -> GrowthModel:
    sizes = _TRANSFORMER | {"image_size": 64, "patch_size": 16}
    return transformers_model("pre-norm", model.format(name), f"{name}Config", _PIXELS, **sizes)


def _decoder(name: str, family: Family = "pre-norm", config: str = "{}Config", **sizes: Any) -> GrowthModel:
    """A language model of transformers."""
    settings = _TRANSFORMER | _WORDS | sizes
    model = f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    return transformers_model(family, model, config.format(name), _TOKENS, **settings)


def _encoder(name: str, family: Family = "other", **sizes: Any) -> GrowthModel:
    """A classifier of text of transformers."""
    settings = _TRANSFORMER | {"vocab_size": 128} | sizes
    return transformers_model(family, f"{name}ForSequenceClassification", f"{name}Config", _TOKENS, **settings)


_each, _pre, _other = (partial(timm_model, family) for family in ("per-channel", "pre-norm", "other"))
_vision = partial(torchvision_model, "per-channel")
# Queries in groups, which share keys and values.
_grouped = partial(_decoder, num_key_value_heads=2)

_PER_CHANNEL = (
    _vision("densenet121", 96),
    *map(_vision, ("mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x0_5")),
    _vision("squeezenet1_1", 96),
    *map(_vision, ("regnet_x_400mf", "regnet_y_400mf", "mnasnet0_5")),
    _vision("googlenet", 96, aux_logits=False, init_weights=False),
    _vision("segmentation.lraspp_mobilenet_v3_large", weights_backbone=None),
    *(
        _each(name, channels=_NARROW)
        for name in ("resnet18", "resnet26d", "seresnext26d_32x4d", "resnest14d", "skresnet18", "ecaresnet26t")
    ),
    _each("res2net50_14w_8s", layers=(1, 1, 1, 1), channels=_NARROW),
    *map(
        _each,
        """
        dpn48b hrnet_w18_small dla46_c dla60x_c ese_vovnet19b_slim tf_efficientnetv2_b0 cs3darknet_focus_s gcresnext26ts
        nf_regnet_b0 ghostnet_050 ghostnetv2_100 mobilenetv4_conv_small_050 mobileone_s0 repvgg_a0 repghostnet_050
        tinynet_e lcnet_050 rexnet_100 hardcorenas_a fbnetc_100 mixnet_s hgnetv2_b0 gernet_s regnetz_b16 nf_resnet26
        fastvit_t8 repvit_m0_9 efficientvit_b0 test_byobnet starnet_s1 inception_next_atto
        """.split(),
    ),
    *(
        _each(name, pixels, img_size=pixels)
        for name, pixels in (
            ("efficientformerv2_s0", 64),
            ("efficientvit_m0", 96),
            ("visformer_tiny", 64),
            ("botnet26t_256", 64),
            ("lambda_resnet26t", 64),
            ("levit_128s", 96),
            ("halonet26t", 256),
        )
    ),
    _each("efficientformer_l1", 224),
    _each("resmlp_12_224", blocks=2, img_size=64),
    _images("EfficientNet", "per-channel", hidden_dim=640, depth_coefficient=0.3, width_coefficient=0.5),
    _images("MobileNetV2", "per-channel", depth_multiplier=0.5, image_size=64),
)

_PRE_NORM = (
    *(_pre(name, depth=2, img_size=64) for name in ("vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224")),
    *(
        _pre(name, embed_dim=96, num_heads=4, depth=depth, img_size=64)
        for name, depth in (
            ("deit3_small_patch16_224", 2),
            ("vit_relpos_small_patch16_224", 2),
            ("vit_so150m2_patch16_reg1_gap_256", 1),
            ("beit_base_patch16_224", 2),
        )
    ),
    _pre("cait_xxs24_224", depth=2, img_size=64),
    _pre("xcit_nano_12_p16_224", depth=2),
    _pre("eva02_tiny_patch14_224", 56, depth=2, img_size=56),
    _pre("swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=48, depths=(1, 2, 1, 1)),
    _pre("twins_svt_small", depths=(1, 1, 1, 1)),
    _pre("tnt_s_patch16_224", embed_dim=96, num_heads_outer=4, depth=2, img_size=64),
    *(
        _pre(name, img_size=64)
        for name in ("coat_lite_tiny", "pit_ti_224", "test_coatnet", "test_maxvit", "gcvit_xxtiny")
    ),
    _pre("davit_tiny", depths=(1, 1, 1, 1), embed_dims=(32, 64, 96, 128), num_heads=(1, 2, 3, 4)),
    _pre("sequencer2d_s", layers=(1, 1, 1, 1), embed_dims=(48, 96, 96, 96), hidden_sizes=(12, 24, 24, 24)),
    *map(
        _pre,
        """
        convnext_atto convnextv2_atto pvt_v2_b0 edgenext_xx_small mobilevit_xxs mobilevitv2_050 mambaout_femto
        test_convnext3 poolformer_s12 tiny_vit_5m_224
        """.split(),
    ),
    _pre("flexivit_small", 60, img_size=60, depth=2, embed_dim=96, num_heads=4),
    *(_pre(name, blocks=2, img_size=64) for name in ("mixer_s32_224", "gmlp_ti16_224")),
    _pre("crossvit_tiny_240", 240),
    timm_class("pre-norm", "nest.Nest", img_size=64, embed_dims=(32, 64, 96), num_heads=(2, 4, 4), depths=(1, 1, 2)),
    timm_class(
        "pre-norm", "volo.VOLO", layers=(1, 1, 1, 1), img_size=64, embed_dims=(48, 96, 96, 96), num_heads=(3, 6, 6, 6)
    ),
    timm_class("pre-norm", "focalnet.FocalNet", depths=(1, 1, 2, 1), embed_dim=32),
    timm_class("pre-norm", "metaformer.MetaFormer", depths=(1, 1, 2, 1), dims=(32, 64, 96, 128)),
    timm_class("pre-norm", "hiera.Hiera", img_size=(64, 64), embed_dim=48, stages=(1, 1, 2, 1)),
    *map(_decoder, ("GPT2", "Phi", "GPTNeoX", "Bloom", "Falcon")),
    *map(_grouped, ("Llama", "Mistral", "Qwen2", "Phi3", "SmolLM3", "StableLm", "Granite", "Cohere")),
    *(_grouped(name, head_dim=24) for name in ("Qwen3", "Gemma")),
    _decoder("GPTJ", rotary_dim=8),
    _decoder("GPTNeo", attention_types=[[["global", "local"], 1]]),
    _decoder("OPT", ffn_dim=192, word_embed_proj_dim=96),
    _encoder("ModernBert", "pre-norm", pad_token_id=0),
    *(
        transformers_model(
            "pre-norm", model, "T5Config", inputs, d_model=96, d_kv=24, d_ff=192, num_layers=2, num_heads=4, **_WORDS
        )
        for model, inputs in (
            ("T5EncoderModel", _TOKENS),
            ("T5ForConditionalGeneration", _TOKENS | {"decoder_input_ids": (1, 12)}),
        )
    ),
    transformers_model(
        "pre-norm",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {"input_features": (1, 80, 64), "decoder_input_ids": (1, 12)},
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 192),
        d_model=96,
        max_source_positions=32,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
        **_WORDS,
    ),
    *map(_vision_transformer, ("ViT", "DeiT", "Dinov2")),
    *(_vision_transformer(name, "{}Model") for name in ("CLIPVision", "SiglipVision")),
    _images("Segformer", depths=[1, 1, 1, 1]),
    _images("MobileViT", image_size=64),
    _images("ConvNext", depths=[1, 1, 2, 1], hidden_sizes=[32, 64, 96, 128]),
    _images("Swin", image_size=64, patch_size=2, window_size=4, embed_dim=48, depths=[1, 2, 1, 1]),
)

_OTHERS = (
    _other("swinv2_tiny_window8_256", img_size=64, window_size=4, embed_dim=48, depths=(1, 2, 1, 1)),
    _other("resnet50_gn", layers=(1, 1, 1, 1), channels=_NARROW),
    _other("resnetv2_50", layers=(1, 1, 1, 1), channels=(64, 64, 128, 128)),
    _other("resnetv2_50x1_bit", channels=(64, 64, 128, 128)),
    *map(_encoder, ("Bert", "Roberta", "MPNet", "DebertaV2")),
    *(_encoder(name, embedding_size=48) for name in ("Electra", "Albert")),
    _encoder("DistilBert", hidden_dim=192),
    transformers_model("other", "BertModel", "BertConfig", _TOKENS, vocab_size=128, **_TRANSFORMER),
    _grouped("Gemma2", "other", head_dim=24),
    _grouped("Gemma3", "other", "Gemma3TextConfig", head_dim=24),
    _grouped("Olmo2", "other"),
)

MODELS: tuple[GrowthModel, ...] = (*_PER_CHANNEL, *_PRE_NORM, *_OTHERS)
