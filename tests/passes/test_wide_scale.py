"""Models of more weights than fit into memory: layers are drawn when they are written, one after the other."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest
from builders import linear, random_weight

import sift_onnx
from sift_onnx.model import Model
from sift_onnx.passes.widening import drawing


def model(layers, size):
    return linear({f"w{i}": random_weight(size, size, seed=i) for i in range(layers)})


@pytest.fixture
def one_by_one(monkeypatch):
    monkeypatch.setattr(drawing, "_DRAWN_AT_ONCE", 0)


@pytest.mark.parametrize("pattern", ["unstructured", "2:4"])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_weights_are_the_same_whenever_they_are_drawn(storage, pattern, tmp_path, monkeypatch):
    source = model(5, 80)
    Model.load(sift_onnx.transform(source, wide="0.9", pattern=pattern, budget="layer")).save(
        tmp_path / "at-once", storage=storage
    )
    monkeypatch.setattr(drawing, "_DRAWN_AT_ONCE", 0)
    later = sift_onnx.transform(Model.load(source), wide="0.9", pattern=pattern, budget="layer")
    assert all(constant.is_lazy for constant in later.masked().values())
    later.save(tmp_path / "later", storage=storage)
    assert (tmp_path / "later").read_bytes() == (tmp_path / "at-once").read_bytes()


def test_weight_is_drawn_once_for_those_who_hold_it(one_by_one, monkeypatch):
    drawn = []
    monkeypatch.setattr(drawing.DrawnWeight, "read", record(drawing.DrawnWeight.read, drawn))
    constant = sift_onnx.transform(Model.load(model(4, 60)), wide="0.9", budget="layer").masked()["w1"]
    assert drawn == []
    assert constant.nnz
    assert drawn == []
    held = constant.weight
    assert constant.weight is held
    assert drawn == ["w1"]
    del held
    assert constant.weight.nnz == constant.nnz
    assert drawn == ["w1", "w1"]


def record(read, drawn):
    def recorded(self):
        drawn.append(self.name)
        return read(self)

    return recorded


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_progress_is_told_in_bytes(one_by_one, tmp_path, storage):
    told = []
    wide = sift_onnx.transform(Model.load(model(4, 200)), wide="0.9", budget="layer")
    wide.save(tmp_path / "m.onnx", storage=storage, progress=lambda done, total: told.append((done, total)))
    done, totals = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert len(set(totals)) == 1
    assert 0.6 * totals[0] < done[-1] <= totals[0]
    assert totals[0] < 2 * (tmp_path / "m.onnx").stat().st_size


PEAK = """
import re, sys
import sift_onnx
from sift_onnx.passes.widening import drawing
drawing._DRAWN_AT_ONCE = 0
sift_onnx.transform(sys.argv[1], wide="0.9").save(sys.argv[2], storage=sys.argv[3], force=True)
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_twice_the_layers_take_no_more_memory(tmp_path):
    # Weights that were all held would take 50 MB and 100 MB above the 95 MB of a process that does nothing.
    peaks = []
    for layers in (24, 48):
        onnx.save(model(layers, 512), tmp_path / "in.onnx")
        command = [sys.executable, "-c", PEAK, str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "sparse"]
        peaks.append(int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    assert peaks[1] < 1.2 * peaks[0], peaks
