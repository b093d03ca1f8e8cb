"""Sessions on models of one content, which share their weights, from many threads."""

import gc
import threading

import numpy as np
import onnx
import pytest
from sparse_nets import SparseNet

import sift_onnx

pytestmark = pytest.mark.usefixtures("every_region_pays")


def net(seed=0):
    net = SparseNet(seed=seed)
    x = net.op("Relu", net.conv(net.input("x", 2, 16, 9, 9, declared=["n", 16, 9, 9]), 16, 40, 3))
    net.output(net.op("Relu", net.conv(x, 40, 24, 3)))
    return net


def parts(session):
    return session._program._latest.opened.parts


def test_copies_of_a_model_share_what_they_opened(tmp_path):
    made = net()
    for name in ("a.onnx", "b.onnx"):
        onnx.save(made.model(), tmp_path / name)
    pool = sift_onnx.ThreadPool(1)

    def opened(name, pool=pool, folder="packed"):
        return sift_onnx.InferenceSession(tmp_path / name, pool=pool, packed_cache=tmp_path / folder)

    first, copy, other_pool = opened("a.onnx"), opened("b.onnx"), opened("a.onnx", sift_onnx.ThreadPool(1))
    assert parts(copy) is parts(first)
    assert parts(other_pool) is not parts(first)
    for session in (first, copy, other_pool):
        np.testing.assert_array_equal(session.run(None, made.feeds)[0], first.run(None, made.feeds)[0])
    kept = id(parts(first))
    del first
    gc.collect()
    assert id(parts(opened("a.onnx"))) == kept == id(parts(copy))
    onnx.save(net(1).model(), tmp_path / "a.onnx")
    assert parts(opened("a.onnx")) is not parts(copy)


def test_each_folder_is_filled(tmp_path):
    pool = sift_onnx.ThreadPool(1)
    onnx.save(net().model(), tmp_path / "m.onnx")
    sessions = [
        sift_onnx.InferenceSession(tmp_path / "m.onnx", pool=pool, packed_cache=tmp_path / name) for name in ("a", "b")
    ]
    assert parts(sessions[0]) is not parts(sessions[1])
    names = [sorted(file.name for file in (tmp_path / name).glob("*.packed")) for name in ("a", "b")]
    assert len(names[0]) == 1
    assert names[0] == names[1]


def test_eight_threads_on_one_session_and_on_eight(tmp_path):
    made = net()
    pool = sift_onnx.ThreadPool(2)
    sessions = [sift_onnx.InferenceSession(made.model(), pool=pool, packed_cache=tmp_path / "packed") for _ in range(8)]
    x = made.feeds["x"]
    batches = [np.concatenate([x] * (1 + i % 3))[: 1 + i] for i in range(8)]
    alone = sift_onnx.InferenceSession(made.model(), threads=1)
    wanted = [alone.run(None, {"x": batch})[0] for batch in batches]
    failures = []

    def call(session, batch, expected):
        try:
            for _ in range(10):
                np.testing.assert_array_equal(session.run(None, {"x": batch})[0], expected)
        except Exception as error:
            failures.append(error)

    for used in ([sessions[0]] * 8, sessions):
        threads = [threading.Thread(target=call, args=call_of) for call_of in zip(used, batches, wanted, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
