"""Files that are damaged, cut off or not models at all; and the memory that reading takes."""

from __future__ import annotations

import contextlib
import gzip
import pickle
import tracemalloc

import numpy as np
import onnx
import pytest
from builders import linear, mask_weights, small_and_large

from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.model import Model


@pytest.fixture
def proto():
    return small_and_large()


@pytest.fixture
def masked(proto):
    """Masks over both weights, with active zeros, one of them negative."""
    model = mask_weights(Model.load(proto))
    model.masked()["w"].weight.values[1] = -0.0
    return model


def refused(path):
    with pytest.raises(ModelReadError) as caught:
        Model.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\x08\x08", b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1\n", bytes(range(256))],
    ids=["empty", "zero", "version alone", "page", "pointer", "bytes"],
)
def test_file_that_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    refused(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\n<!DOCTYPE html>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        # A time in the header would give each worker of a parallel run another name of this test.
        (gzip.compress(b"model", mtime=0), "unpack it"),
        (b"PK\x03\x04\x14\0", "as torch.save writes"),
        (pickle.dumps([]), "a pickle"),
        (b"\x89HDF\r\n\x1a\n", "as Keras writes"),
        (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        (b"\x1c\0\0\0ORTM", "ORT format"),
        (b'\x0a\0\0\0\0\0\0\0{"w": 1}', "safetensors"),
    ],
)
def test_file_of_another_format_is_named(tmp_path, content, said):
    (tmp_path / "m.onnx").write_bytes(content)
    assert said in refused(tmp_path / "m.onnx")


def test_path_that_cannot_be_read_is_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "m.onnx")
    assert "is a folder" in refused(tmp_path)
    assert "too long" in refused(tmp_path / ("x" * 300))
    (tmp_path / "file").write_bytes(b"")
    assert "cannot read" in refused(tmp_path / "file" / "m.onnx")
    (tmp_path / "loop").symlink_to("loop")
    refused(tmp_path / "loop")


def test_file_that_is_cut_off_anywhere_is_refused(masked, tmp_path):
    masked.save(tmp_path / "m.onnx")
    whole = (tmp_path / "m.onnx").read_bytes()
    cuts = {*range(0, 1500, 5), *range(1500, len(whole), 1999), *range(len(whole) - 60, len(whole))}
    for length in cuts:
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        refused(tmp_path / "cut.onnx")


def test_file_of_another_tool_that_is_cut_off_is_refused_or_lacks_what_stood_last(masked, tmp_path):
    whole = masked.to_proto().SerializeToString()
    for length in {*range(0, 600, 3), *range(len(whole) - 700, len(whole), 2)}:
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        with contextlib.suppress(ModelReadError):
            assert Model.load(tmp_path / "cut.onnx").to_proto().graph == masked.to_proto().graph


def test_damaged_bytes_are_refused_or_harmless(masked, tmp_path):
    whole = bytearray(masked.to_proto().SerializeToString())
    rng = np.random.default_rng(0)
    for _ in range(600):
        damaged = bytearray(whole)
        # Most of the file is data, which may be anything.
        at = int(rng.integers(200)) if rng.random() < 0.9 else int(rng.integers(len(whole)))
        damaged[at] = int(rng.integers(256))
        (tmp_path / "m.onnx").write_bytes(bytes(damaged))
        with contextlib.suppress(ModelReadError, UnsupportedError):
            Model.load(tmp_path / "m.onnx").to_proto()


@pytest.mark.parametrize("text", [b"someone", b"batch", b"linear", b"mm0", b"MatMul", b"h1", b"value"])
def test_text_that_is_not_utf_8_is_refused_or_dropped(proto, tmp_path, text):
    data = proto.SerializeToString()
    assert text in data
    (tmp_path / "m.onnx").write_bytes(data.replace(text, b"\xff" * len(text)))
    with contextlib.suppress(ModelReadError):
        Model.load(tmp_path / "m.onnx").save(tmp_path / "out.onnx")


def test_opset_is_required(proto, tmp_path):
    del proto.opset_import[:]
    onnx.save(proto, tmp_path / "m.onnx")
    assert "no opset" in refused(tmp_path / "m.onnx")


def test_large_data_is_read_and_written_without_a_copy(tmp_path):
    size = 8_000_000
    onnx.save(linear({"w": np.ones((1000, size // 4000), np.float32)}), tmp_path / "in.onnx")
    tracemalloc.start()
    try:
        model = Model.load(tmp_path / "in.onnx")
        assert tracemalloc.get_traced_memory()[1] < 1e6
        tracemalloc.reset_peak()
        loaded = tracemalloc.get_traced_memory()[0]
        model.save(tmp_path / "out.onnx")
        assert tracemalloc.get_traced_memory()[1] - loaded < 1.5e6
        tracemalloc.reset_peak()
        model.save(tmp_path / "out.onnx", force=True)
        assert tracemalloc.get_traced_memory()[1] - loaded < 1.5e6
        masked = mask_weights(model, density=0.01)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        masked.save(tmp_path / "masked.onnx")
        assert tracemalloc.get_traced_memory()[1] - before < 6e6, "one piece of 4 MiB, not the dense tensor"
    finally:
        tracemalloc.stop()
    assert onnx.load(tmp_path / "out.onnx") == onnx.load(tmp_path / "in.onnx")
