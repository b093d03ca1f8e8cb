"""Normalization of pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sift_onnx.datasets.examples import ImageExamples
from sift_onnx.datasets.images import ImagesInMemory
from sift_onnx.datasets.named_data import open_data
from sift_onnx.datasets.normalization import Normalization
from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec

PIXELS = np.arange(2 * 3 * 2 * 2, dtype=np.uint8).reshape(2, 3, 2, 2)
FLOATS = [TensorSpec("x", np.dtype(np.float32), ("n", 3, 2, 2))]


def examples(normalize: str | None, specs: list[TensorSpec] = FLOATS) -> ImageExamples:
    images = ImagesInMemory(PIXELS, np.zeros(2, np.int64), "here")
    return ImageExamples(images, specs, "here", Normalization.parse(normalize))


def test_pixels_are_normalized_channel_by_channel() -> None:
    (x,) = examples("imagenet").batch(np.array([1, 0])).inputs
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = ((PIXELS[::-1] / 255).transpose(0, 2, 3, 1) - mean) / std
    np.testing.assert_allclose(x, expected.transpose(0, 3, 1, 2), rtol=1e-5)
    (y,) = examples("0.5/0.25").batch(np.array([0])).inputs
    np.testing.assert_allclose(y, (PIXELS[:1] / 255 - 0.5) / 0.25, rtol=1e-5)
    assert Normalization.parse("none") is None


@pytest.mark.parametrize("text", ["image", "0.5", "0.5/0", "0.5/a", "1,2/1", "nan/1", "/"])
def test_what_is_no_normalization_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write imagenet, none, or MEAN/STD"):
        Normalization.parse(text)


def test_normalization_has_to_fit_the_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is for 2 channels, and the model takes 3"):
        examples("1,2/1,1")
    with pytest.raises(UsageError, match="takes bytes, which are not normalized"):
        examples("imagenet", [TensorSpec("x", np.dtype(np.uint8), ("n", 3, 2, 2))])
    with pytest.raises(UsageError, match="`normalize` is for folders of images, and `data` is"):
        open_data(str(tmp_path / "d.npz"), FLOATS, normalize="imagenet")
