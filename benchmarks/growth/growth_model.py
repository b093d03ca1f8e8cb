"""A model to grow, built offline with random weights by the library that defines it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verdicts import Family

__all__ = ["GrowthModel", "timm_class", "timm_model", "torchvision_model", "transformers_model"]

Shape = tuple[int, ...]

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
    inputs: Mapping[str, Shape]


def timm_model(family: Family, name: str, pixels: int = 64, blocks: int | None = None, **settings: Any) -> GrowthModel:
    """A named model; of its ``blocks``, the first so many."""

    def build() -> Any:
        import timm

        model = timm.create_model(name, pretrained=False, num_classes=_CLASSES, **settings)
        if blocks is not None:
            model.blocks = model.blocks[:blocks]
        return model

    return GrowthModel(name, "timm", family, build, {"x": (1, 3, pixels, pixels)})


def timm_class(family: Family, path: str, pixels: int = 64, **settings: Any) -> GrowthModel:
    """An architecture whose named models take no other sizes."""
    module, name = path.split(".")

    def build() -> Any:
        return getattr(importlib.import_module(f"timm.models.{module}"), name)(num_classes=_CLASSES, **settings)

    return GrowthModel(name, "timm", family, build, {"x": (1, 3, pixels, pixels)})


def torchvision_model(family: Family, name: str, pixels: int = 64, **settings: Any) -> GrowthModel:
    """A named model, perhaps of a sub-module."""

    def build() -> Any:
        import torchvision

        made = torchvision.models
        for part in name.split("."):
            made = getattr(made, part)
        return made(weights=None, num_classes=_CLASSES, **settings)

    return GrowthModel(name.split(".")[-1], "torchvision", family, build, {"x": (1, 3, pixels, pixels)})


def transformers_model(
    family: Family, model: str, config: str, inputs: Mapping[str, Shape], **sizes: Any
) -> GrowthModel:
    """A model of one configuration, and ``inputs`` by the names of its arguments."""

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

            def forward(self, *values: torch.Tensor) -> torch.Tensor:
                arguments = dict(zip(inputs, values, strict=True))
                if "input_ids" in arguments:
                    arguments["attention_mask"] = torch.ones_like(arguments["input_ids"])
                first: torch.Tensor = self.model(**arguments).to_tuple()[0]
                return first

        return First()

    return GrowthModel(model, "transformers", family, build, inputs)
