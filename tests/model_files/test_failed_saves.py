"""A save that fails, or is killed, leaves everything as it was."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys

import pytest
from builders import linear
from saved_files import V, W, contents, listing, message

from sift_onnx.errors import OutputError
from sift_onnx.files import atomic
from sift_onnx.model_files import dense_stream, writer


def fail_in(monkeypatch, error, after=1):
    """Raise ``error`` in place of the ``after``-th piece of tensor data."""
    real, seen = dense_stream.byte_chunks, []

    def chunks(constant):
        for chunk in real(constant):
            seen.append(chunk)
            if len(seen) > after:
                raise error
            yield chunk

    monkeypatch.setattr(dense_stream, "byte_chunks", chunks)


@pytest.mark.parametrize("error", [ValueError("broken values"), KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("limit", [2**31, 100_000])
def test_error_in_the_middle_leaves_everything_as_it_was(model, tmp_path, monkeypatch, error, limit):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", limit)
    model.save(tmp_path / "m.onnx")
    before = listing(tmp_path)
    fail_in(monkeypatch, error)
    for target in ("m.onnx", "new.onnx"):
        with pytest.raises(type(error)):
            model.save(tmp_path / target, force=True)
    assert listing(tmp_path) == before


def test_error_after_the_data_file_leaves_everything_as_it_was(model, tmp_path, monkeypatch, one_file_is_too_small):
    model.save(tmp_path / "m.onnx")
    before = listing(tmp_path)

    def fail(*arguments):
        assert len(listing(tmp_path)) == 4, "the model, its data, the new data, and a file in the making"
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(writer, "_write_stream", fail)
    with pytest.raises(OutputError, match="Input/output error"):
        model.save(tmp_path / "m.onnx", force=True)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("limit", [2**31, 100_000])
@pytest.mark.parametrize("call", ["write", "close"])
def test_full_disk_is_one_line_and_leaves_everything_as_it_was(model, tmp_path, monkeypatch, limit, call):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", limit)
    target = tmp_path / "m.onnx"
    model.save(target)
    before = listing(tmp_path)

    class Full:
        def __init__(self, path, mode, **options):
            self.file = open(path, mode, **options)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            self.file.close()
            if call == "close":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def write(self, data):
            if call == "write" and len(data) > 10_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(data)

        def tell(self):
            return self.file.tell()

        def flush(self):
            self.file.flush()

        def fileno(self):
            return self.file.fileno()

    monkeypatch.setattr(atomic, "open", Full, raising=False)
    with pytest.raises(OutputError) as caught:
        model.save(target, force=True)
    assert "No space left on device" in message(caught)
    assert str(target) in message(caught)
    assert listing(tmp_path) == before


def test_what_gets_a_name_is_on_the_disk_before_and_the_name_soon_after(
    model, tmp_path, monkeypatch, one_file_is_too_small
):
    model.save(tmp_path / "m.onnx")
    real_sync, real_replace = os.fsync, os.replace
    events = []

    def fsync(descriptor):
        real_sync(descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            assert "m.onnx.data" in listing(tmp_path), "the old data goes when the new model is there for good"
            assert status.st_ino == tmp_path.stat().st_ino
            events.append("names")
        else:
            events.append((status.st_ino, status.st_size))

    def replace(source, target):
        status = os.stat(source)
        assert (status.st_ino, status.st_size) in events
        real_replace(source, target)
        events.append(os.path.basename(target))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    model.save(tmp_path / "m.onnx", force=True)
    assert [event for event in events if isinstance(event, str)] == ["m.onnx.data1", "names", "m.onnx", "names"]
    assert sorted(listing(tmp_path)) == ["m.onnx", "m.onnx.data1"]


@pytest.mark.parametrize("limit", [2**31, 100_000])
def test_content_that_does_not_get_to_the_disk_leaves_everything_as_it_was(model, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", limit)
    model.save(tmp_path / "m.onnx")
    before = listing(tmp_path)

    def fail(descriptor):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="quota"):
        model.save(tmp_path / "m.onnx", force=True)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("error", [OSError(errno.EINVAL, "Invalid argument"), KeyboardInterrupt()], ids=repr)
def test_model_whose_name_does_not_get_to_the_disk_keeps_its_data(
    model, tmp_path, monkeypatch, error, one_file_is_too_small
):
    real, seen = os.fsync, []

    def fail_at_second_folder(descriptor):
        seen.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        if seen.count(True) == 2:
            raise error
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail_at_second_folder)
    with contextlib.suppress(KeyboardInterrupt):
        model.save(tmp_path / "m.onnx")
    assert seen.count(True) == 2
    assert sorted(listing(tmp_path)) == ["m.onnx", "m.onnx.data"]
    assert contents(tmp_path / "m.onnx") == linear({"w": W, "v": V}).graph


BLOCK_IN_THE_MIDDLE = """
import sys
from sift_onnx.files import atomic
from sift_onnx.model_files import dense_stream, writer
from sift_onnx.model import Model

writer.PROTOBUF_LIMIT = int(sys.argv[3])
real = dense_stream.byte_chunks
files = []
real_open = open

def chunks(constant):
    for chunk in real(constant):
        yield chunk[: len(chunk) // 2]
        for file in files:
            file.flush()
        print("in the middle", flush=True)
        sys.stdin.read()

def watched(*arguments, **options):
    files.append(real_open(*arguments, **options))
    return files[-1]

dense_stream.byte_chunks, atomic.open = chunks, watched
Model.load(sys.argv[1]).save(sys.argv[2], force=True)
"""


@pytest.mark.parametrize("limit", [2**31, 100_000])
def test_killed_process_leaves_the_old_file_whole(model, tmp_path, limit):
    source, target = tmp_path / "in.onnx", tmp_path / "m.onnx"
    model.save(source)
    model.save(target)
    before = listing(tmp_path)
    command = [sys.executable, "-c", BLOCK_IN_THE_MIDDLE, str(source), str(target), str(limit)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "in the middle\n"
        unfinished = listing(tmp_path)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL

    new = unfinished.keys() - before.keys()
    assert new
    assert all(name.endswith(".part") for name in new)
    assert sum(len(unfinished[name]) for name in new) >= 40_000
    assert {name: data for name, data in listing(tmp_path).items() if name not in new} == before
