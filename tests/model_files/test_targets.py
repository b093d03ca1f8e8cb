"""What a model can be saved to: new and existing files, links, and names that are refused in one line."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import linear
from saved_files import V, W, listing, message

from sift_onnx.errors import OutputError
from sift_onnx.files import atomic
from sift_onnx.model import Model


def test_existing_file_needs_force(model, tmp_path):
    target = tmp_path / "m.onnx"
    target.write_bytes(b"old")
    with pytest.raises(OutputError, match="use `force=True`"):
        model.save(target)
    assert listing(tmp_path) == {"m.onnx": b"old"}
    model.save(target, force=True)
    assert onnx.load(target) == linear({"w": W, "v": V})


@pytest.mark.parametrize(
    ("target", "reason"),
    [("nowhere/m.onnx", "does not exist"), (".", "is a folder"), ("file/m.onnx", "is not a folder"), ("x" * 300, "")],
)
def test_target_that_cannot_be_written_is_refused(model, tmp_path, target, reason):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError) as caught:
        model.save(tmp_path / target, force=True)
    assert str(tmp_path / target) in message(caught)
    assert reason in message(caught)
    assert listing(tmp_path) == {"file": b""}


def test_pipe_is_not_replaced(model, tmp_path):
    # As a device is not; a test that fails with one would take it from the machine.
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match=r"pipe is a device or the like"):
        model.save(tmp_path / "pipe", force=True)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_longest_name_that_the_system_takes_is_written(model, tmp_path):
    model.save(tmp_path / ("é" * 127))
    assert list(listing(tmp_path)) == ["é" * 127]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_may_not_be_written_is_refused(model, tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="Permission denied"):
            model.save(tmp_path / "m.onnx")
    finally:
        tmp_path.chmod(0o700)


def test_file_that_may_not_be_made_is_refused(model, tmp_path, monkeypatch):
    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(atomic, "open", refuse, raising=False)
    with pytest.raises(OutputError) as caught:
        model.save(tmp_path / "m.onnx")
    assert message(caught) == f"cannot write {tmp_path / 'm.onnx'}: Permission denied"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_are_what_the_umask_leaves(model, tmp_path, umask, mode, one_file_is_too_small):
    before = os.umask(umask)
    try:
        model.save(tmp_path / "m.onnx")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {mode}
    assert len(listing(tmp_path)) == 2


def test_file_that_a_link_leads_to_is_replaced_and_the_link_stays(model, tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "m.onnx", tmp_path / "latest.onnx"
    target.write_bytes(b"old")
    link.symlink_to(Path("real/m.onnx"))
    model.save(link, force=True)
    assert link.is_symlink()
    assert onnx.load(target) == linear({"w": W, "v": V})


def test_link_to_nothing_makes_the_file_that_it_names(model, tmp_path):
    (tmp_path / "link").symlink_to("m.onnx")
    model.save(tmp_path / "link")
    assert sorted(listing(tmp_path)) == ["link", "m.onnx"]
    (tmp_path / "broken").symlink_to("nowhere/m.onnx")
    with pytest.raises(OutputError, match="broken"):
        model.save(tmp_path / "broken")


def test_links_in_a_circle_are_refused(model, tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError) as caught:
        model.save(tmp_path / "a", force=True)
    assert str(tmp_path / "a") in message(caught)


def test_data_file_is_in_the_folder_of_the_file_that_a_link_leads_to(model, tmp_path, one_file_is_too_small):
    (tmp_path / "real").mkdir()
    (tmp_path / "latest.onnx").symlink_to(Path("real/m.onnx"))
    model.save(tmp_path / "latest.onnx")
    assert sorted(listing(tmp_path / "real")) == ["m.onnx", "m.onnx.data"]
    assert np.array_equal(Model.load(tmp_path / "latest.onnx").initializers()["w"].values, W)
