"""Data sets of Hugging Face's, by a stand-in for its package: what is taken of it, and what is said without it."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sift_onnx.datasets.hub import read_hub_images
from sift_onnx.errors import MissingExtraError, UsageError


class Feature:
    """Named as the package's classes are."""

    def __init_subclass__(cls, **extra: Any) -> None:
        cls.__name__ = cls.__name__.rstrip("_")


class Image_(Feature):  # noqa: N801
    pass


class ClassLabel(Feature):
    pass


class Dataset:
    def __init__(self, count: int, features: dict[str, Any]) -> None:
        self.features = features
        self._labels = [i % 2 for i in range(count)]

    def __getitem__(self, key: Any) -> Any:
        return self._labels if key == "label" else {"img": Image.new("RGB", (10, 9), (20 * key, 0, 0))}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    features = {"img": Image_(), "label": ClassLabel()}
    sets: dict[str, Any] = {
        "digits": {"train": Dataset(6, features), "test": Dataset(4, features)},
        "texts": {"train": Dataset(2, {"text": ClassLabel()})},
    }

    def load_dataset(name: str, split: str | None) -> Any:
        if name not in sets:
            raise FileNotFoundError(f"no {name}\nwith a long tail")
        return sets[name] if split is None else sets[name][split]

    package = types.ModuleType("datasets")
    package.Dataset, package.load_dataset = Dataset, load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    return sets


@pytest.mark.usefixtures("hub")
def test_images_are_resized_and_splits_are_parts() -> None:
    found = read_hub_images("hf:digits")
    assert found.held_out is not None
    assert (len(found.train.labels), len(found.held_out.labels)) == (6, 4)
    pixels = found.train.pixels(np.array([2, 1]), (3, 4, 4))
    assert pixels.shape == (2, 3, 4, 4)
    assert pixels[:, 0, 0, 0].tolist() == [40, 20]
    one = read_hub_images("hf:digits:test")
    assert (len(one.train.labels), one.held_out) == (4, None)


@pytest.mark.usefixtures("hub")
def test_what_is_no_set_of_images_is_named() -> None:
    with pytest.raises(UsageError, match=r"has text \(ClassLabel\), and an image with a label is needed"):
        read_hub_images("hf:texts")
    with pytest.raises(UsageError, match=r"datasets cannot load it: FileNotFoundError: no other$"):
        read_hub_images("hf:other")


def test_the_package_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="needs Hugging Face's datasets: pip install"):
        read_hub_images("hf:digits")
