"""Large tensors stay in the model file until they are asked for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import linear, mask_weights, random_weight

from sift_onnx.errors import ModelReadError
from sift_onnx.graphs.constants import array_of
from sift_onnx.model import Model

DESCRIPTORS = Path("/proc/self/fd")
# Above the size from which a model file is kept open.
W = random_weight(600, 500)


@pytest.fixture
def path(tmp_path):
    onnx.save(linear({"w": W}), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def values(model):
    return array_of(model.initializers()["w"])


def test_values_are_those_in_the_file_each_time(path):
    model = Model.load(path)
    assert np.array_equal(values(model), W)
    assert np.array_equal(values(model), W)
    assert not values(model).flags.writeable
    assert model.to_proto() == onnx.load(path)


def test_values_can_be_edited_without_changing_the_file(path):
    model = Model.load(path)
    model.initializers()["w"].values[0] = 0
    assert not values(model)[0].any()
    assert np.array_equal(values(Model.load(path)), W)


def test_file_may_be_removed_or_replaced(path):
    model = Model.load(path)
    onnx.save(linear({"w": -W}), path.with_name("new.onnx"))
    os.replace(path.with_name("new.onnx"), path)
    assert np.array_equal(values(model), W)
    path.unlink()
    assert np.array_equal(values(model), W)


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="needs /proc")
def test_model_that_is_forgotten_closes_its_file_without_a_warning(path):
    model = Model.load(path)
    model.itself = model
    gc.collect()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        descriptors = {number for number in os.listdir(DESCRIPTORS) if link(number) == str(path)}
        del model
        gc.collect()
    assert len(descriptors) == 1
    assert all(link(number) != str(path) for number in descriptors)
    assert not [warning for warning in said if str(path) in str(warning.message)]


def link(number):
    """What the descriptor ``number`` of this process is open on, or None where it is closed."""
    try:
        return os.readlink(DESCRIPTORS / number)
    except FileNotFoundError:
        return None


def test_model_is_saved_over_its_own_file_again_and_again(path):
    model = Model.load(path)
    for storage in ("dense", "sparse", "dense"):
        model.save(path, storage=storage, force=True)
        assert np.array_equal(values(model), W)
        assert np.array_equal(values(Model.load(path)), W)


def test_masked_model_is_saved_over_its_own_file(path):
    masked = mask_weights(Model.load(path), density=0.9)
    wanted = masked.initializers()["w"].values
    masked.save(path, force=True)
    for storage in ("sparse", "dense"):
        Model.load(path).save(path, storage=storage, force=True)
        assert np.array_equal(Model.load(path).initializers()["w"].values, wanted)


@pytest.mark.parametrize("content", [b"", b"short", bytes(2 * W.nbytes)], ids=["empty", "shorter", "longer"])
def test_file_that_is_written_to_after_loading_is_refused(path, content):
    model = Model.load(path)
    with open(path, "r+b") as file:
        file.truncate(len(content))
        file.write(content)
    with pytest.raises(ModelReadError, match=rf"{path}: it was (truncated|changed) after the model was loaded; load"):
        values(model)
    with pytest.raises(ModelReadError, match="after the model was loaded"):
        model.save(path.with_name("out.onnx"))
    assert not path.with_name("out.onnx").exists()


def test_pipe_is_read(path):
    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    with subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r}, 'wb').write(open({str(path)!r}, 'rb').read())"]):
        model = Model.load(pipe)
    assert np.array_equal(values(model), W)


def test_processes_that_were_forked_read_at_their_own_pace(path):
    model = Model.load(path)
    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            same = all(np.array_equal(values(model), W) for _ in range(50))
            os._exit(0 if same else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
