"""Data files for what one model file cannot hold, and what becomes of old ones."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import linear, mask_weights, random_weight
from saved_files import V, W, contents, listing, message

from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model
from sift_onnx.model_files import writer


def outputs(path):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": random_weight(3, 200)})[0]


def test_large_weights_go_to_a_data_file_that_others_read(model, tmp_path, one_file_is_too_small):
    target = tmp_path / "m.onnx"
    model.save(target)
    assert sorted(listing(tmp_path)) == ["m.onnx", "m.onnx.data"]
    assert target.stat().st_size < 10_000
    assert contents(target) == linear({"w": W, "v": V}).graph
    onnx.checker.check_model(str(target), full_check=True)
    onnx.save(linear({"w": W, "v": V}), tmp_path / "inside.onnx")
    assert np.array_equal(outputs(target), outputs(tmp_path / "inside.onnx"))
    stubs = onnx.load(target, load_external_data=False).graph.initializer
    offsets = [int(e.value) for stub in stubs for e in stub.external_data if e.key == "offset"]
    assert [offset % 4096 for offset in offsets] == [0, 0]


def test_model_with_a_data_file_keeps_its_masks(model, tmp_path, one_file_is_too_small):
    masked = mask_weights(model)
    masked.save(tmp_path / "m.onnx")
    found = Model.load(tmp_path / "m.onnx").masked()
    for name, constant in masked.masked().items():
        assert np.array_equal(found[name].weight.indices, constant.weight.indices)


def test_new_data_file_takes_the_place_of_the_old_one(model, tmp_path, one_file_is_too_small):
    target = tmp_path / "m.onnx"
    for expected in ("m.onnx.data", "m.onnx.data1", "m.onnx.data", "m.onnx.data1"):
        model.save(target, force=True)
        assert sorted(listing(tmp_path)) == ["m.onnx", expected]
        assert contents(target) == linear({"w": W, "v": V}).graph


def test_model_is_saved_over_itself_and_still_usable(model, tmp_path, one_file_is_too_small):
    target = tmp_path / "m.onnx"
    model.save(target)
    loaded = Model.load(target)
    loaded.save(target, force=True)
    loaded.save(target, force=True)
    loaded.save(tmp_path / "other.onnx")
    for path in (target, tmp_path / "other.onnx"):
        assert contents(path) == linear({"w": W, "v": V}).graph
    assert len(listing(tmp_path)) == 4


def test_old_data_file_goes_when_the_new_model_needs_none(model, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100_000)
    model.save(tmp_path / "m.onnx")
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 2**31)
    model.save(tmp_path / "m.onnx", force=True)
    assert list(listing(tmp_path)) == ["m.onnx"]


@pytest.mark.parametrize("limit", [2**31, 100_000])
def test_data_files_that_the_replaced_model_does_not_use_are_left_alone(model, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", limit)
    onnx.save(linear({"w": W[:3, :3]}), tmp_path / "m.onnx")
    others = dict.fromkeys(
        ["m.onnx.data", "m.onnx.data1", "m.onnx.data.bak", "mxonnx.data", "weights.bin"], b"someone else's"
    )
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
    for _ in range(2):
        model.save(tmp_path / "m.onnx", force=True)
    assert others.items() <= listing(tmp_path).items()
    assert contents(tmp_path / "m.onnx") == linear({"w": W, "v": V}).graph


def test_data_file_that_a_copy_of_the_replaced_model_uses_is_left_alone(model, tmp_path, one_file_is_too_small):
    model.save(tmp_path / "m.onnx")
    shutil.copy(tmp_path / "m.onnx", tmp_path / "backup.onnx")
    mask_weights(model).save(tmp_path / "m.onnx", force=True)
    assert contents(tmp_path / "backup.onnx") == linear({"w": W, "v": V}).graph
    assert sorted(listing(tmp_path)) == ["backup.onnx", "m.onnx", "m.onnx.data", "m.onnx.data1"]


def test_data_file_of_another_name_is_left_alone(model, tmp_path):
    onnx.save(linear({"w": W}), tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin")
    model.save(tmp_path / "m.onnx", force=True)
    assert sorted(listing(tmp_path)) == ["m.onnx", "weights.bin"]


def test_replaced_file_need_not_be_a_model(model, tmp_path, one_file_is_too_small):
    (tmp_path / "m.onnx").write_bytes(b"\xff\xff\xff")
    (tmp_path / "m.onnx.data").write_bytes(b"someone else's")
    model.save(tmp_path / "m.onnx", force=True)
    assert sorted(listing(tmp_path)) == ["m.onnx", "m.onnx.data", "m.onnx.data1"]


def test_what_cannot_lie_outside_and_does_not_fit_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100)
    with pytest.raises(UnsupportedError) as caught:
        model.save(tmp_path / "m.onnx")
    assert "m.onnx" in message(caught)
    assert listing(tmp_path) == {}


def test_sparse_storage_beyond_one_file_has_its_parts_in_a_data_file(model, tmp_path, one_file_is_too_small):
    masked = mask_weights(model, 0.9)
    masked.save(tmp_path / "m.onnx", storage="sparse")
    assert sorted(listing(tmp_path)) == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx").stat().st_size < 10_000
    found = Model.load(tmp_path / "m.onnx").masked()
    for name, constant in masked.masked().items():
        assert np.array_equal(found[name].weight.indices, constant.weight.indices)
        assert np.array_equal(found[name].weight.values, constant.weight.values)
    masked.save(tmp_path / "dense.onnx")
    assert np.array_equal(outputs(tmp_path / "m.onnx"), outputs(tmp_path / "dense.onnx"))


def test_proto_beyond_the_limit_is_refused(model, one_file_is_too_small):
    with pytest.raises(UnsupportedError, match="save it to a file"):
        model.to_proto()
    with pytest.raises(UnsupportedError, match="save it to a file"):
        mask_weights(model).to_proto()
