"""Sparse storage at sizes that are streamed: others read what is written, and nobody here builds it dense."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
from builders import linear, mask_weights, model_of, random_weight
from onnx import TensorProto, helper

import sift_onnx
from sift_onnx.backends.base import get_backend
from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.files.data_types import data_type_of
from sift_onnx.graphs.constant_tensors import full_tensor
from sift_onnx.graphs.constants import replace_values
from sift_onnx.model import Model
from sift_onnx.model_files import writer
from sift_onnx.verify.checks import check_model
from sift_onnx.weights.sparse import SparseWeight
from sift_onnx.weights.sparse_tensors import weight_of

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")


@pytest.fixture(params=["inside", "beside"])
def place(request, monkeypatch):
    if request.param == "beside":
        monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100_000)
    return request.param


def looked_at(dtype):
    """A weight of 240 kB that is an output, cast to what every tool compares."""
    values = random_weight(300, 200).astype(dtype)
    model = model_of(
        helper.make_graph(
            [helper.make_node("Cast", ["w"], ["y"], to=TensorProto.DOUBLE)],
            "cast",
            [],
            [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [300, 200])],
            [full_tensor(gs.Constant("w", values))],
        )
    )
    return mask_weights(Model.load(model), 0.4)


@pytest.mark.parametrize("rows", [4, 300])  # of a small weight, and of one that is streamed
def test_weight_that_is_an_output_stays_dense_and_keeps_its_mask(rows, tmp_path):
    model = linear({"w": random_weight(rows, 200), "v": random_weight(200, 3)})
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [rows, 200]))
    masked = mask_weights(Model.load(model), 0.4)
    masked.save(tmp_path / "m.onnx", storage="sparse")
    for stored in (onnx.load(tmp_path / "m.onnx"), masked.to_proto("sparse")):
        assert [tensor.name for tensor in stored.graph.initializer] == ["w"]
        assert [tensor.values.name for tensor in stored.graph.sparse_initializer] == ["v"]
        session = onnxruntime.InferenceSession(stored.SerializeToString())
        returned = session.run(["w"], {"x": np.ones((2, rows), np.float32)})[0]
        np.testing.assert_array_equal(returned, masked.masked()["w"].values)
        for name, mask in sift_onnx.masks(masked).items():
            np.testing.assert_array_equal(sift_onnx.masks(stored)[name], mask)


def test_weight_that_is_an_output_of_a_branch_stays_dense():
    weight = mask_weights(Model.load(linear({"w": random_weight(3, 4)}))).to_proto("sparse").graph.sparse_initializer
    branch = helper.make_graph([], "then", [], [helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 4])])
    branch.sparse_initializer.extend(weight)
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])],
        "else",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [3, 4])],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=other)],
        "choice",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])],
    )
    stored = Model.load(model_of(graph)).to_proto("sparse")
    session = onnxruntime.InferenceSession(stored.SerializeToString())
    returned = session.run(None, {"x": np.zeros((3, 4), np.float32), "flag": np.array(True)})[0]
    np.testing.assert_array_equal(returned, weight_of(weight[0]).to_dense())


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_streamed_weight_is_read_by_everyone(dtype, tmp_path, place):
    masked = looked_at(dtype)
    expected = masked.masked()["w"].weight
    masked.save(tmp_path / "m.onnx", storage="sparse")
    assert (tmp_path / "m.onnx.data").exists() == (place == "beside")

    found = Model.load(tmp_path / "m.onnx").masked()["w"]
    assert (found.nnz, found.dtype) == (expected.nnz, np.dtype(dtype))
    assert np.array_equal(found.weight.indices, expected.indices)
    assert found.weight.values.tobytes() == expected.values.tobytes()

    dense = expected.to_dense().astype(np.float64)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, {})[0], dense)

    proto = onnx.load(tmp_path / "m.onnx")
    (tensor,) = proto.graph.sparse_initializer
    assert tensor.values.data_type == data_type_of(np.dtype(dtype))
    if place == "inside":
        onnx.checker.check_model(str(tmp_path / "m.onnx"))
        onnx.checker.check_sparse_tensor(tensor)
        if dtype != ml_dtypes.bfloat16:
            assert np.array_equal(gs.import_onnx(proto).tensors()["w"].values, dense)
        again = Model.load(proto).to_proto("sparse")
        assert again.graph.sparse_initializer[0] == tensor
    else:
        offsets = [
            int(e.value) for part in (tensor.values, tensor.indices) for e in part.external_data if e.key == "offset"
        ]
        assert len(offsets) == 2
        assert all(offset % 4096 == 0 for offset in offsets)


def test_limits_of_others_are_those_of_the_documentation(tmp_path, monkeypatch):
    """docs/storage.md says so; a tool that has learned more makes this fail."""
    masked = looked_at(np.float32)
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100_000)
    masked.save(tmp_path / "beside.onnx", storage="sparse")
    with pytest.raises(onnx.shape_inference.InferenceError, match="Cannot parse data from external tensors"):
        onnx.checker.check_model(str(tmp_path / "beside.onnx"))
    read = gs.import_onnx(onnx.load(tmp_path / "beside.onnx")).tensors()["w"].values
    assert not read.any()


def test_check_reads_sparse_tensors_that_others_cannot(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100_000)
    path = tmp_path / "m.onnx"
    looked_at(np.float32).save(path, storage="sparse")
    compile_model = get_backend("onnxruntime").compile
    result = check_model(path, compile_model=compile_model)
    assert result.ok, result.checks
    assert result.checks[1].detail.startswith("valid; 1 sparse tensors")

    data = tmp_path / "m.onnx.data"
    data.write_bytes(data.read_bytes()[:-3] + b"\xff\xff\x7f")
    failed = {
        check.name: check.detail for check in check_model(path, compile_model=compile_model).checks if not check.ok
    }
    assert "sparse initializer 'w' is damaged" in failed["checker"]


def test_check_leaves_sparse_tensors_in_the_file_to_onnx(tmp_path):
    looked_at(np.float32).save(tmp_path / "m.onnx", storage="sparse")
    result = check_model(tmp_path / "m.onnx", compile_model=get_backend("onnxruntime").compile)
    assert result.ok, result.checks
    assert result.checks[1].detail == "valid"


def test_bytes_of_a_second_save_are_the_same(tmp_path, place):
    looked_at(np.float16).save(tmp_path / "a.onnx", storage="sparse")
    Model.load(tmp_path / "a.onnx").save(tmp_path / "b.onnx", storage="sparse")
    assert (tmp_path / "a.onnx").read_bytes().replace(b"a.onnx", b"b.onnx") == (tmp_path / "b.onnx").read_bytes()


def test_an_empty_tensor_with_strides_beyond_any_address_is_refused():
    tensor = onnx.SparseTensorProto(dims=[0, 1 << 62])
    tensor.values.CopyFrom(onnx.numpy_helper.from_array(np.zeros(0, np.float32), "w"))
    tensor.indices.CopyFrom(onnx.numpy_helper.from_array(np.zeros(0, np.int64), "w.indices"))
    with pytest.raises(ModelReadError, match=r"'w' is damaged: no array has the shape \[0, 4611686018427387904\]"):
        weight_of(tensor)
    tensor.dims[1] = 3
    assert weight_of(tensor).to_dense().shape == (0, 3)


def test_damage_in_external_data_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100_000)
    masked = looked_at(np.float32)
    masked.save(tmp_path / "m.onnx", storage="sparse")
    data = tmp_path / "m.onnx.data"
    content = bytearray(data.read_bytes())
    content[-3:] = b"\xff\xff\x7f"
    data.write_bytes(content)
    with pytest.raises(ModelReadError, match=r"^sparse initializer 'w' is damaged: [^\n]+$"):
        sift_onnx.masks(tmp_path / "m.onnx")
    data.write_bytes(content[:-4096])
    with pytest.raises(ModelReadError, match="truncated"):
        Model.load(tmp_path / "m.onnx")
    data.unlink()
    with pytest.raises(ModelReadError, match="missing"):
        Model.load(tmp_path / "m.onnx")


def sparse_file(path, values, indices, dims, kind=TensorProto.FLOAT, read=True):
    """A file with one sparse initializer, large enough to be left in it."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w" if read else "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", kind, dims)],
    )
    tensor = graph.sparse_initializer.add(dims=dims)
    tensor.values.CopyFrom(helper.make_tensor("w", kind, [len(values)], values))
    shape = np.shape(indices)
    tensor.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, shape, np.reshape(indices, -1)))
    path.write_bytes(model_of(graph).SerializeToString())
    return graph.sparse_initializer[0]


COUNT = 40_000
VALUES, IN_ORDER = np.arange(1, COUNT + 1, dtype=np.float32), 100_000 + 7 * np.arange(COUNT)


@pytest.mark.parametrize("padding", [0, 1 << 20], ids=["read whole", "left in the file"])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_weight_inside_stays_in_the_file_until_it_is_asked_for(tmp_path, kind, padding):
    sparse_file(tmp_path / "m.onnx", np.minimum(VALUES, 2000), IN_ORDER, [1000, 1000], kind)
    model = onnx.load(tmp_path / "m.onnx")
    model.doc_string = "x" * padding
    onnx.save(model, tmp_path / "m.onnx")

    loaded = Model.load(tmp_path / "m.onnx")
    found = loaded.masked()["w"]
    assert found.is_lazy
    assert loaded.origin.ByteSize() < padding + 1000
    assert np.array_equal(found.weight.indices, IN_ORDER)
    assert np.array_equal(found.weight.values, np.minimum(VALUES, 2000))


@pytest.mark.parametrize("by_axis", [False, True])
def test_weight_inside_whose_indices_are_in_no_order_is_sorted(tmp_path, by_axis):
    order = np.random.default_rng(0).permutation(COUNT)
    indices = IN_ORDER[order]
    given = np.stack(np.unravel_index(indices, (1000, 1000)), axis=1) if by_axis else indices
    sparse_file(tmp_path / "m.onnx", VALUES[order], given, [1000, 1000])
    weight = Model.load(tmp_path / "m.onnx").masked()["w"].weight
    assert np.array_equal(weight.indices, IN_ORDER)
    assert np.array_equal(weight.values, VALUES)


@pytest.mark.parametrize("at", [0, COUNT // 2, COUNT - 1])
@pytest.mark.parametrize("index", [-1, 10**6, 100_007, 2**62])
def test_damaged_index_inside_is_seen_when_the_model_is_loaded(tmp_path, at, index):
    indices = IN_ORDER.copy()
    indices[at] = index
    sparse_file(tmp_path / "m.onnx", VALUES, indices, [1000, 1000])
    with pytest.raises(ModelReadError, match="sparse initializer 'w' is damaged"):
        Model.load(tmp_path / "m.onnx")


@pytest.mark.parametrize(("part", "kind"), [("values", TensorProto.FLOAT), ("values", TensorProto.FLOAT16),
                                            ("indices", TensorProto.FLOAT)])  # fmt: skip
@pytest.mark.parametrize("count", [0, COUNT - 1, COUNT + 1, 2**50])
def test_data_inside_that_is_more_or_less_than_declared_is_refused(tmp_path, part, kind, count):
    sparse_file(tmp_path / "m.onnx", np.minimum(VALUES, 2000), IN_ORDER, [1000, 1000], kind)
    model = onnx.load(tmp_path / "m.onnx")
    tensor = model.graph.sparse_initializer[0]
    for name in (part, *(["values", "indices"] if count == 2**50 else [])):
        getattr(tensor, name).dims[0] = count
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelReadError, match=r"damaged|call for"):
        Model.load(tmp_path / "m.onnx")


@pytest.mark.parametrize("last", [b"\xff", b"\x80"])
def test_number_inside_that_does_not_end_is_refused(tmp_path, last):
    sparse_file(tmp_path / "m.onnx", VALUES, IN_ORDER, [1000, 1000])
    content = (tmp_path / "m.onnx").read_bytes()
    at = content.index(bytes([IN_ORDER[-1] & 0x7F | 0x80, IN_ORDER[-1] >> 7 & 0x7F | 0x80, IN_ORDER[-1] >> 14]))
    (tmp_path / "m.onnx").write_bytes(content[: at + 2] + last + content[at + 3 :])
    with pytest.raises(ModelReadError):
        Model.load(tmp_path / "m.onnx")


def test_weight_inside_that_no_node_reads_is_written_as_it_was(tmp_path):
    tensor = sparse_file(tmp_path / "m.onnx", VALUES, IN_ORDER, [1000, 1000], read=False)
    Model.load(tmp_path / "m.onnx").save(tmp_path / "out.onnx")
    assert list(onnx.load(tmp_path / "out.onnx").graph.sparse_initializer) == [tensor]


def test_weight_whose_last_reader_was_a_removed_subgraph_goes_with_it(tmp_path):
    sparse_file(tmp_path / "m.onnx", VALUES, IN_ORDER, [1000, 1000], read=False)
    model = onnx.load(tmp_path / "m.onnx")
    branches = [
        helper.make_graph(
            [helper.make_node("Identity", ["w"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000, 1000])],
        )
        for name in ("a", "b")
    ]
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branches[0], else_branch=branches[1]))
    onnx.save(model, tmp_path / "m.onnx")
    loaded = Model.load(tmp_path / "m.onnx").copy()
    del loaded.graph.nodes[1]
    loaded.save(tmp_path / "out.onnx")
    assert not onnx.load(tmp_path / "out.onnx").graph.sparse_initializer


def test_message_that_would_be_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100_000)
    with pytest.raises(UnsupportedError, match="save it to a file"):
        looked_at(np.float32).to_proto("sparse")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_transform_keeps_narrow_types(dtype, kind, tmp_path):
    weights = {name: random_weight(40, 40, seed=i).astype(dtype) for i, name in enumerate("abcd")}
    onnx.save(linear(weights), tmp_path / "in.onnx")
    sift_onnx.transform(tmp_path / "in.onnx", wide=0.75, budget="layer").save(tmp_path / "out.onnx", storage=kind)
    found = Model.load(tmp_path / "out.onnx")
    assert {name: constant.dtype for name, constant in found.initializers().items()} == dict.fromkeys(
        weights, np.dtype(dtype)
    )
    assert found.masked().keys() == {"b", "c"}
    values = found.masked()["b"].weight.values.astype(np.float64)
    assert values.std() > 0.3
    assert np.count_nonzero(values) == values.size


def wide_model(folder, kind):
    """Two layers whose weights would take 800 MB each if they were dense; one is stored as [in, out], one turned."""
    size, nnz = 14_142, 300_000
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
            helper.make_node("Relu", ["h"], ["r"], "relu"),
            helper.make_node("Gemm", ["r", "v"], ["y"], "second", transB=1),
        ],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor(name, TensorProto.FLOAT, [1], [0]) for name in "wv"],
    )
    model = Model.load(model_of(graph))
    rng = np.random.default_rng(0)
    for constant in model.initializers().values():
        indices = np.unique(rng.integers(0, size * size, nnz)).astype(np.int32)
        values = rng.standard_normal(indices.size).astype(np.float32)
        replace_values(constant, SparseWeight((size, size), indices, values))
    path = folder / f"{kind}.onnx"
    model.save(path, storage="sparse", external_from=1 if kind == "beside" else None)
    return path, model


PEAK = """
import re, sys
import numpy as np
import sift_onnx
what, path = sys.argv[1:]
if what == "inspect":
    assert 599_000 < sift_onnx.inspect(path).to_dict()["totals"]["nnz"] < 600_000
else:
    session = sift_onnx.InferenceSession(path, threads=1)
    np.save(path + ".npy", session.run(None, {"x": np.ones((1, 14_142), np.float32)})[0])
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]))
"""


@ON_LINUX
@pytest.mark.parametrize("kind", ["inside", "beside"])
@pytest.mark.parametrize("what", ["inspect", "session"])
def test_no_weight_is_ever_dense_in_memory(what, kind, tmp_path):
    path, model = wide_model(tmp_path, kind)
    command = [sys.executable, "-c", PEAK, what, str(path)]
    peak = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert peak < 500e6, f"{peak / 1e6:.0f} MB"
    if what == "session":
        w, v = (model.masked()[name].weight for name in "wv")
        hidden = np.maximum(np.bincount(w.indices % 14_142, w.values, 14_142), 0)
        expected = np.bincount(v.indices // 14_142, v.values * hidden[v.indices % 14_142], 14_142)
        assert np.allclose(np.load(f"{path}.npy")[0], expected, atol=1e-3)
