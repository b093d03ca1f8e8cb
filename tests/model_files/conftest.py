"""Models for the tests of files."""

from __future__ import annotations

import pytest
from builders import linear
from saved_files import V, W

from sift_onnx.model import Model
from sift_onnx.model_files import writer


@pytest.fixture
def model():
    """Two weights of 80 kB, which are streamed."""
    return Model.load(linear({"w": W, "v": V}))


@pytest.fixture
def one_file_is_too_small(monkeypatch):
    """Files may have 100 kB, so that the weights of ``model`` go to a data file."""
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100_000)
