"""The faces: InferenceSession, the onnx back end interface, DeepSparse's Engine."""

import json
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from sparse_nets import SparseNet

import sift_onnx
import sift_onnx.backend
from sift_onnx.backends.onnxruntime import OnnxRuntimeBackend
from sift_onnx.compat.deepsparse import Engine, compile_model
from sift_onnx.errors import ModelReadError, OutputError, UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")


@pytest.fixture(scope="module")
def net():
    net = SparseNet()
    x = net.op("Relu", net.conv(net.input("x", 2, 4, 8, 8, declared=["n", 4, 8, 8]), 4, 6, 3, name="conv"))
    net.output(net.op("Flatten", net.op("GlobalAveragePool", x), name="features"))
    net.output(net.dense("features", 6, 5, name="logits"))
    return net


@pytest.fixture(scope="module")
def wanted(net):
    return OnnxRuntimeBackend().compile(net.model()).run(net.feeds)


def test_session_as_onnxruntime_has_it(net, wanted):
    session = sift_onnx.InferenceSession(net.model(), threads=1)
    (x,) = session.get_inputs()
    assert (x.name, x.shape, x.type) == ("x", ["n", 4, 8, 8], "tensor(float)")
    assert [output.name for output in session.get_outputs()] == ["features", "logits"]
    assert session.get_providers() == ["kernels"]
    assert session.get_modelmeta().graph_name == "net"
    features, logits = session.run(None, net.feeds)
    np.testing.assert_allclose(logits, wanted["logits"], atol=1e-5)
    np.testing.assert_allclose(session.run(["features"], net.feeds)[0], features)


def test_session_from_a_path_and_from_a_model(net, wanted, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(net.model(), path)
    for source in (str(path), path, path.read_bytes(), sift_onnx.load(path)):
        logits = sift_onnx.InferenceSession(source, threads=2).run(["logits"], net.feeds)[0]
        np.testing.assert_allclose(logits, wanted["logits"], atol=1e-5)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"y": np.zeros(1)}, "unknown input 'y'"),
        ({"x": np.zeros((2, 4, 8, 8))}, "is float64, but the model takes float32"),
        ({"x": np.zeros((2, 3, 8, 8), np.float32)}, "has the shape 2,3,8,8"),
        ({"x": [[1.0]]}, "is a list; pass a numpy array"),
    ],
)
def test_wrong_feeds_say_what_is_wrong(net, feeds, message):
    with pytest.raises(UsageError, match=message):
        sift_onnx.InferenceSession(net.model(), threads=1).run(None, feeds)


def test_wrong_names_and_files_say_what_is_wrong(net, tmp_path):
    session = sift_onnx.InferenceSession(net.model(), threads=1)
    with pytest.raises(UsageError, match="unknown output 'y'; the model's outputs are 'features', 'logits'"):
        session.run(["y"], net.feeds)
    with pytest.raises(UsageError, match="enable_profiling=True"):
        session.end_profiling()
    with pytest.raises(ModelReadError, match="no such file"):
        sift_onnx.InferenceSession(tmp_path / "none.onnx")


def test_axes_of_one_name_must_agree():
    net = SparseNet()
    a, b = (net.input(name, 2, 4, declared=["n", 4]) for name in "ab")
    net.output(net.op("Add", net.dense(a, 4, 3), net.dense(b, 4, 3)))
    session = sift_onnx.InferenceSession(net.model(), threads=1)
    with pytest.raises(UsageError, match="input 'b' has 3 along axis 0, but 'n' is 2 in input 'a'"):
        session.run(None, {"a": net.feeds["a"], "b": np.zeros((3, 4), np.float32)})


def test_inputs_need_not_be_contiguous(net, wanted):
    x = np.asfortranarray(net.feeds["x"])
    np.testing.assert_allclose(
        sift_onnx.InferenceSession(net.model(), threads=1).run(["logits"], {"x": x})[0], wanted["logits"], atol=1e-5
    )


def test_an_empty_batch_gives_empty_outputs(net):
    session = sift_onnx.InferenceSession(net.model(), threads=1)
    assert session.run(["logits"], {"x": np.zeros((0, 4, 8, 8), np.float32)})[0].shape == (0, 5)


def test_runs_on_several_threads_at_once(net):
    session = sift_onnx.InferenceSession(net.model(), threads=2)
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((batch, 4, 8, 8), np.float32) for batch in (1, 3, 16, 17)]
    alone = [session.run(["logits"], {"x": x})[0] for x in feeds]
    different = []

    def repeat(number):
        for _ in range(20):
            if not np.array_equal(session.run(["logits"], {"x": feeds[number]})[0], alone[number]):
                different.append(number)

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(len(feeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not different


def test_a_trace_that_cannot_be_written_is_kept(net, tmp_path):
    session = sift_onnx.InferenceSession(
        net.model(), threads=1, enable_profiling=True, profile_file_prefix=str(tmp_path / "missing" / "trace")
    )
    session.run(None, net.feeds)
    with pytest.raises(OutputError, match="cannot write the profile"):
        session.end_profiling()
    (tmp_path / "missing").mkdir()
    session.run(None, net.feeds)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    assert sum(event["name"] == "conv" for event in events) == 2


def test_the_trace_names_nodes_and_kernels(net, tmp_path):
    session = sift_onnx.InferenceSession(
        net.model(), threads=1, enable_profiling=True, profile_file_prefix=str(tmp_path / "trace")
    )
    session.run(None, net.feeds)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    nodes = {event["name"]: event for event in events if event["cat"] == "Node"}
    assert nodes["conv"]["args"]["kernel"].startswith("conv ")
    assert all(event["dur"] >= 0 and event["ph"] == "X" for event in events)


def test_the_onnx_back_end_interface(net, wanted):
    rep = sift_onnx.backend.prepare(net.model(), "CPU", threads=1)
    np.testing.assert_allclose(rep.run([net.feeds["x"]]).logits, wanted["logits"], atol=1e-5)
    assert {placement.placement for placement in rep.placements} == {"kernels"}
    assert sift_onnx.backend.supports_device("CPU")
    assert not sift_onnx.backend.supports_device("CUDA")
    assert sift_onnx.backend.is_compatible(net.model())
    with pytest.raises(UsageError, match="device 'CUDA'"):
        sift_onnx.backend.prepare(net.model(), "CUDA")
    node = onnx.helper.make_node("Add", ["a", "b"], ["c"])
    (total,) = sift_onnx.backend.run_node(node, [np.float32([1, 2]), np.float32([3, 4])])
    assert total.tolist() == [4, 6]


def test_the_onnx_back_end_takes_bytes_and_scalars():
    net = SparseNet()
    net.output(net.op("Add", net.input("x", 3), net.input("shift")))
    rep = sift_onnx.backend.prepare(net.model().SerializeToString())
    # onnx's own cases hand a tensor of no dimensions over as a scalar of numpy.
    for inputs in ([np.float32([1, 2, 3]), np.float32(4)], {"x": np.float32([1, 2, 3]), "shift": np.float32(4)}):
        assert rep.run(inputs)[0].tolist() == [5, 6, 7]


def test_the_onnx_back_end_leaves_sequences_to_onnxruntime():
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
    rows = onnx.helper.make_tensor_sequence_value_info("rows", onnx.TensorProto.FLOAT, None)
    node = onnx.helper.make_node("SplitToSequence", ["x"], ["rows"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "split", [x], [rows]),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    for source in (model, model.SerializeToString()):
        rep = sift_onnx.backend.prepare(source)
        assert not rep.placements
        assert [row.tolist() for row in rep.run(np.float32([1, 2, 3, 4]))[0]] == [[1], [2], [3], [4]]


def test_deepsparse_engine(net, wanted):
    engine = compile_model(net.model(), batch_size=2, num_cores=1)
    np.testing.assert_allclose(engine.run([net.feeds["x"]])[1], wanted["logits"], atol=1e-5)
    assert list(engine.mapped_run([net.feeds["x"]])) == ["features", "logits"] == engine.output_names
    assert engine.fraction_of_supported_ops == 1.0
    assert engine.benchmark(engine.generate_random_inputs(), 2, 1).num_iterations == 2
    with pytest.raises(UsageError, match="batch 3, the engine was compiled for 2"):
        engine.run([np.zeros((3, 4, 8, 8), np.float32)])
    with pytest.raises(UsageError, match="scheduler 'elastic'"):
        Engine(net.model(), scheduler="elastic")


def shifted(array):
    """The same values, one byte behind where a float may begin, as in a message or a file."""
    return np.frombuffer(b"\0" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)


@pytest.mark.parametrize("layout", [shifted, np.asfortranarray, lambda a: np.repeat(a, 2, axis=-1)[..., ::2]])
@pytest.mark.parametrize("batch", [2, 16])
def test_feeds_are_taken_as_they_lie(net, layout, batch):
    session = sift_onnx.InferenceSession(net.model(), threads=2)
    x = np.random.default_rng(0).standard_normal((batch, 4, 8, 8)).astype(np.float32)
    wanted = session.run(None, {"x": x})
    for found, expected in zip(session.run(None, {"x": layout(x)}), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.flags.writeable


def test_feeds_of_the_other_byte_order_are_refused_by_name(net):
    session = sift_onnx.InferenceSession(net.model(), threads=1)
    with pytest.raises(UsageError, match="'x' is >f4, but the model takes float32"):
        session.run(None, {"x": net.feeds["x"].astype(">f4")})


def determinants():
    """A session of a model that has no kernel, and a request."""
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)
        for name, dims in (("x", ["n", 2, 2]), ("y", ["n"]), ("z", ["n"]))
    ]
    nodes = [onnx.helper.make_node("Det", ["x"], ["y"]), onnx.helper.make_node("Neg", ["y"], ["z"])]
    graph = onnx.helper.make_graph(nodes, "determinants", ends[:1], ends[:0:-1])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    return sift_onnx.InferenceSession(model, threads=1), {"x": x}, np.linalg.det(x)


def test_requests_that_onnxruntime_runs_as_a_whole_go_straight_there(monkeypatch):
    session, feeds, wanted = determinants()
    first = session.run(None, feeds)
    monkeypatch.setattr(session, "_checked", None)  # the way of other requests
    for outputs in (first, session.run(None, feeds), session.run([], feeds)):
        np.testing.assert_allclose(outputs, [-wanted, wanted], atol=1e-5)
    with pytest.raises(TypeError, match="not callable"):
        session.run(None, {"x": feeds["x"][:2]})


def test_what_does_not_go_straight_to_onnxruntime_is_checked_as_ever():
    session, feeds, wanted = determinants()
    session.run(None, feeds)
    np.testing.assert_allclose(session.run(["y"], feeds)[0], wanted, atol=1e-5)
    np.testing.assert_allclose(session.run(None, {"x": feeds["x"][1:]})[1], wanted[1:], atol=1e-5)
    assert {placement.placement for placement in session.placements} == {"onnxruntime"}
    wrong = [
        ({"x": feeds["x"].tolist()}, "is a list; pass a numpy array"),
        ({"x": feeds["x"].astype(np.float64)}, "is float64"),
        ({"x": feeds["x"][:, :1]}, "has the shape 3,1,2"),
        ({**feeds, "y": feeds["x"]}, "unknown input 'y'"),
        ([feeds["x"]], "input_feed is a list"),
    ]
    for other, message in wrong:
        with pytest.raises(UsageError, match=message):
            session.run(None, other)
