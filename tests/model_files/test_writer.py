"""Writing model files: all or nothing, the same bytes each time, and data files for what one file cannot hold."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import linear, mask_weights, random_weight
from onnx import numpy_helper

from sift_onnx.errors import OutputError, UnsupportedError
from sift_onnx.files import atomic
from sift_onnx.model import Model
from sift_onnx.model_files import dense_stream, writer

# Large enough to be streamed, 80 kB each.
W, V = random_weight(200, 100), random_weight(100, 200, seed=1)


@pytest.fixture
def model():
    return Model.load(linear({"w": W, "v": V}))


@pytest.fixture
def one_file_is_too_small(monkeypatch):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100_000)


def listing(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def message(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


def outputs(path):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": random_weight(3, 200)})[0]


def contents(path):
    """The graph in a file, its data inside."""
    graph = onnx.load(path).graph
    for tensor in graph.initializer:
        tensor.ClearField("data_location")
    return graph


def fields_of(data):
    """Field numbers of a serialized message, in order."""
    numbers, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        assert key & 7 in (0, 2)
        value, at = varint(data, at)
        at += value if key & 7 == 2 else 0
        numbers.append(key >> 3)
    return numbers


def varint(data, at):
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value, at


def test_streamed_file_is_the_model(model, tmp_path):
    model.save(tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx") == linear({"w": W, "v": V})
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    assert list(listing(tmp_path)) == ["m.onnx"]


def test_graph_is_written_once_and_last(model, tmp_path):
    model.metadata["key"] = "value"
    model.save(tmp_path / "m.onnx")
    numbers = fields_of((tmp_path / "m.onnx").read_bytes())
    graph = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
    assert numbers.count(graph) == 1
    assert numbers[-1] == graph


def test_large_tensors_of_every_kind_are_written(tmp_path):
    typed = onnx.helper.make_tensor("typed", onnx.TensorProto.FLOAT, W.shape, W.reshape(-1))
    text = onnx.helper.make_tensor("text", onnx.TensorProto.STRING, [9000], ["a" * 9] * 9000)
    source = linear({"w": W})
    for tensor in (typed, text, numpy_helper.from_array(V, "unread")):
        source.graph.initializer.append(tensor)
    source.graph.node.insert(0, onnx.helper.make_node("Identity", ["typed"], ["t"]))
    source.graph.node.insert(0, onnx.helper.make_node("Identity", ["text"], ["s"]))
    Model.load(source).save(tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx") == source
    onnx.checker.check_model(str(tmp_path / "m.onnx"))


def test_masked_weight_is_streamed_as_its_dense_tensor(model, tmp_path):
    masked = mask_weights(model)
    masked.save(tmp_path / "m.onnx")
    for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer:
        assert np.array_equal(numpy_helper.to_array(tensor), masked.masked()[tensor.name].values)


def test_same_model_gives_the_same_bytes(model, tmp_path):
    masked = mask_weights(model)
    for name in ("a", "b"):
        masked.copy().save(tmp_path / name)
    Model.load(tmp_path / "a").save(tmp_path / "c")
    first, *others = (tmp_path / name for name in "abc")
    assert all(other.read_bytes() == first.read_bytes() for other in others)


def test_bytes_do_not_depend_on_the_order_of_sets(model, tmp_path):
    source = model.to_proto()
    for domain in ("com.example.a", "com.example.b", "com.example.c"):
        node = source.graph.node.add(op_type="F", domain=domain)
        node.output.append(domain)
    onnx.save(source, tmp_path / "in")
    code = "import sys; from sift_onnx.model import Model; Model.load(sys.argv[1]).save(sys.argv[2])"
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(tmp_path / "in"), str(tmp_path / seed)]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_existing_file_needs_force(model, tmp_path):
    target = tmp_path / "m.onnx"
    target.write_bytes(b"old")
    with pytest.raises(OutputError, match="--force"):
        model.save(target)
    assert listing(tmp_path) == {"m.onnx": b"old"}
    model.save(target, force=True)
    assert onnx.load(target) == linear({"w": W, "v": V})


@pytest.mark.parametrize(
    ("target", "reason"),
    [("nowhere/m.onnx", "does not exist"), (".", "is a folder"), ("file/m.onnx", "is no folder"), ("x" * 300, "")],
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


def test_file_behind_a_link_is_replaced_and_the_link_stays(model, tmp_path):
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


def test_data_file_lies_beside_the_file_that_a_link_leads_to(model, tmp_path, one_file_is_too_small):
    (tmp_path / "real").mkdir()
    (tmp_path / "latest.onnx").symlink_to(Path("real/m.onnx"))
    model.save(tmp_path / "latest.onnx")
    assert sorted(listing(tmp_path / "real")) == ["m.onnx", "m.onnx.data"]
    assert np.array_equal(Model.load(tmp_path / "latest.onnx").initializers()["w"].values, W)


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


def test_sparse_storage_beyond_one_file_has_its_parts_beside_it(model, tmp_path, one_file_is_too_small):
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
