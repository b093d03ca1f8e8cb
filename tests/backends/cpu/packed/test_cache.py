"""Sessions that open from a folder of lowered models."""

import os
import threading
import warnings
from functools import partial

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from quantized_nets import dynamic, inputs_of, integer_net, static
from sparse_nets import SparseNet

import sift_onnx
from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.packed import cache as cache_module
from sift_onnx.backends.cpu.run import opening
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import ModelReadError, OutputError, UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")


def net(seed=0):
    """Layers of several kinds, with a part for onnxruntime between two regions."""
    net = SparseNet(seed=seed)
    x = net.op("Relu", net.conv(net.input("x", 2, 4, 8, 8, declared=["n", 4, 8, 8]), 4, 6, 3, name="conv"))
    x = net.op("Mul", x, net.op("Sigmoid", net.conv(x, 6, 6, 1)))
    x = net.op("Resize", x, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    x = net.op("Atan", x)
    x = net.conv(net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 6, 4, 3)
    net.output(net.op("Flatten", net.op("GlobalAveragePool", x), name="features"))
    net.output(net.dense("features", 4, 5, name="logits"))
    return net


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "packed"


@pytest.fixture(autouse=True)
def nothing_is_shared(monkeypatch):
    """Each session opens what it runs."""
    monkeypatch.setattr(opening._shared, "get", lambda *_: None)


@pytest.fixture
def is_not_read(monkeypatch):
    """Fail where a model is read."""

    def fail():
        def load(source):
            raise AssertionError(f"{source} was read")

        monkeypatch.setattr(opening.Model, "load", load)

    return fail


def session(model, folder, **options):
    return sift_onnx.InferenceSession(model, threads=1, packed_cache=folder, **options)


def assert_same_results(one, other, feeds):
    for first, second in zip(one.run(None, feeds), other.run(None, feeds), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", ["path", "proto"])
def test_the_second_session_does_not_read_the_model_and_is_the_same(kind, folder, tmp_path, is_not_read):
    made = net()
    model = made.model()
    onnx.helper.set_model_props(model, {"about": "it"})
    if kind == "path":
        onnx.save(model, tmp_path / "m.onnx")
        model = str(tmp_path / "m.onnx")
    plain = sift_onnx.InferenceSession(model, threads=1)
    first = session(model, folder)
    is_not_read()
    second = session(model, folder)
    assert_same_results(plain, first, made.feeds)
    assert_same_results(plain, second, made.feeds)
    assert second.get_providers() == ["kernels", "onnxruntime"]
    assert second.placements == plain.placements
    assert second.get_inputs() == plain.get_inputs()
    assert second.get_outputs() == plain.get_outputs()
    assert second.get_modelmeta() == plain.get_modelmeta()
    other_batch = {"x": np.concatenate([made.feeds["x"]] * 9)}
    assert_same_results(plain, second, other_batch)


@pytest.mark.parametrize(
    "made",
    [partial(static, "images", "qdq per channel"), partial(dynamic, "tokens"), integer_net],
    ids=["static", "dynamic", "integers"],
)
def test_quantized_models_are_kept(made, folder, is_not_read):
    model = made()
    feeds = inputs_of(model, 3)
    first = session(model, folder)
    is_not_read()
    second = session(model, folder)
    assert second.get_providers() == ["kernels"]
    assert second.placements == first.placements
    assert_same_results(first, second, feeds)


def test_an_entry_of_the_session_options_names_the_folder(folder, is_not_read):
    options = ort.SessionOptions()
    options.add_session_config_entry("sift.packed_cache", str(folder))
    model = net().model()
    sift_onnx.InferenceSession(model, options)
    is_not_read()
    sift_onnx.InferenceSession(model, options)


def test_a_model_that_onnxruntime_has_whole_is_kept_too(folder, tmp_path, is_not_read):
    dense = SparseNet()
    dense.output(dense.op("Atan", dense.input("x", 2, 4)))
    onnx.save(dense.model(), tmp_path / "m.onnx")
    first = session(tmp_path / "m.onnx", folder)
    is_not_read()
    second = session(tmp_path / "m.onnx", folder)
    assert first.get_providers() == second.get_providers() == ["onnxruntime"]
    assert_same_results(first, second, dense.feeds)


def test_a_file_that_changes_is_another_model(folder, tmp_path):
    path = tmp_path / "m.onnx"
    for seed in (0, 1):
        made = net(seed)
        onnx.save(made.model(), path)
        assert_same_results(session(path, folder), sift_onnx.InferenceSession(path, threads=1), made.feeds)


def test_external_data_belongs_to_the_content(folder, tmp_path):
    path, made = tmp_path / "m.onnx", net()
    onnx.save(made.model(), path, save_as_external_data=True, location="m.data", size_threshold=100)
    before = session(path, folder).run(None, made.feeds)
    data = bytearray((tmp_path / "m.data").read_bytes())
    data[3::4] = bytes(byte ^ 0x80 for byte in data[3::4])  # signs of all floats
    (tmp_path / "m.data").write_bytes(data)
    after = session(path, folder)
    assert_same_results(after, sift_onnx.InferenceSession(path, threads=1), made.feeds)
    assert not np.array_equal(before[1], after.run(None, made.feeds)[1])


def test_times_of_a_settled_file_stand_for_its_content(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_SETTLED_NANOSECONDS", 0)
    path, made = tmp_path / "m.onnx", net()
    onnx.save(made.model(), path)
    session(path, folder)

    def fail(_):
        raise AssertionError("the file was read")

    with monkeypatch.context() as patched:
        patched.setattr(cache_module, "content_of_files", fail)
        session(path, folder)
    onnx.save(net(1).model(), path)
    assert_same_results(session(path, folder), sift_onnx.InferenceSession(path, threads=1), made.feeds)


def test_a_file_that_has_just_been_written_is_read_each_time(folder, tmp_path):
    onnx.save(net().model(), tmp_path / "m.onnx")
    session(tmp_path / "m.onnx", folder)
    assert not list(folder.glob("*.index"))


def test_other_options_are_other_plans(folder):
    model = net().model()
    for threads in (1, 2):
        sift_onnx.InferenceSession(model, threads=threads, packed_cache=folder)
    CpuProgram(model, CompileOptions(1, batch=4, packed_cache=folder))
    assert len(list(folder.glob("*.packed"))) == 3


def test_a_model_that_changes_while_it_is_read_is_not_kept(folder, tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    onnx.save(net().model(), path)
    load = opening.Model.load

    def load_another(source):
        onnx.save(net(1).model(), path)
        return load(source)

    monkeypatch.setattr(opening.Model, "load", load_another)
    session(path, folder)
    assert not list(folder.glob("*.packed"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "garbage"])
def test_a_damaged_file_is_said_and_written_anew(damage, folder, is_not_read):
    made = net()
    model = made.model()
    first = session(model, folder)
    (path,) = folder.glob("*.packed")
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes({"cut": whole[:-64], "flipped": bytes(flipped), "empty": b"", "garbage": b"x" * 999}[damage])
    with pytest.warns(UserWarning, match="is not used and will be replaced"):
        assert_same_results(session(model, folder), first, made.feeds)
    assert path.read_bytes() == whole
    is_not_read()
    session(model, folder)


def test_a_folder_that_others_may_write_to_is_refused(folder):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match=r"others may write to .*chmod go-w"):
        session(net().model(), folder)


def test_a_folder_that_is_none_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot use the folder"):
        session(net().model(), tmp_path / "file")


def test_a_folder_that_cannot_be_written_is_said_and_the_session_opens(folder, monkeypatch):
    def full(*_):
        raise OutputError("cannot write: no space left")

    monkeypatch.setattr(cache_module, "write_packed", full)
    made = net()
    with pytest.warns(UserWarning, match="the model is not kept: cannot write: no space left"):
        assert_same_results(
            session(made.model(), folder), sift_onnx.InferenceSession(made.model(), threads=1), made.feeds
        )


def test_a_link_in_the_folder_is_not_followed(folder, tmp_path):
    model = net().model()
    session(model, folder)
    (path,) = folder.glob("*.packed")
    os.rename(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="is not used"):
        session(model, folder)


def test_a_missing_file_is_an_error_as_without_a_cache(folder, tmp_path):
    with pytest.raises(ModelReadError, match="no such file"):
        session(tmp_path / "m.onnx", folder)


def test_sessions_that_are_made_at_once_share_a_folder(folder):
    made = net()
    model, failures = made.model(), []
    wanted = sift_onnx.InferenceSession(model, threads=1).run(None, made.feeds)

    def work():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                got = session(model, folder).run(None, made.feeds)
            np.testing.assert_array_equal(got[1], wanted[1])
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert len(list(folder.iterdir())) == 1
