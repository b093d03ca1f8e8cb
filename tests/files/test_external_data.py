"""Models whose data lies in files beside them: found, checked, and read when it is asked for."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import HAS_NEW_DATA_TYPES, branches, linear, model_of, random_weight, tensor_of, tensors
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.errors import ModelReadError
from sift_onnx.files import external_data
from sift_onnx.graphs.constants import array_of
from sift_onnx.model import Model

W, V = random_weight(200, 100), random_weight(100, 200, seed=1)


@pytest.fixture(params=["one file", "a file per tensor"])
def external(request, tmp_path):
    """A model with external data and what it was, in a folder of its own."""
    folder = tmp_path / "in"
    folder.mkdir()
    model = linear({"w": W, "v": V})
    together = request.param == "one file"
    onnx.save(
        linear({"w": W, "v": V}),
        folder / "m.onnx",
        save_as_external_data=True,
        all_tensors_to_one_file=together,
        location="weights.bin" if together else None,
        size_threshold=0,
        convert_attribute=True,
    )
    assert len(list(folder.iterdir())) == (2 if together else 3)
    return folder / "m.onnx", model


def save_external(model, path, **options):
    options = {"location": "weights.bin", "size_threshold": 0, "convert_attribute": True, **options}
    onnx.save(model, path, save_as_external_data=True, **options)


def test_values_are_those_in_the_file(external):
    path, model = external
    loaded = Model.load(path)
    assert np.array_equal(array_of(loaded.initializers()["w"]), W)
    assert np.array_equal(loaded.initializers()["v"].values, V)
    assert loaded.to_proto() == model


def test_model_saved_elsewhere_needs_no_other_file(external, tmp_path):
    path, model = external
    Model.load(path).save(tmp_path / "out.onnx")
    shutil.rmtree(path.parent)
    assert onnx.load(tmp_path / "out.onnx").graph.initializer == model.graph.initializer


def test_model_is_overwritten_while_its_data_is_in_use(external):
    path, model = external
    others = {p: p.read_bytes() for p in path.parent.iterdir() if p != path}
    loaded = Model.load(path)
    values = array_of(loaded.initializers()["w"])
    loaded.save(path, force=True)

    assert onnx.load(path, load_external_data=False).graph.initializer == model.graph.initializer
    assert np.array_equal(values, W)
    assert {p: p.read_bytes() for p in others} == others
    loaded.save(path.with_name("again.onnx"))


def test_data_that_is_removed_or_replaced_after_loading_is_still_read(external):
    path, _ = external
    loaded = Model.load(path)
    for other in path.parent.iterdir():
        if other != path:
            (path.parent / "new").write_bytes(bytes(other.stat().st_size))
            os.replace(path.parent / "new", other)
            other.unlink()
    assert np.array_equal(loaded.initializers()["w"].values, W)


def test_data_that_is_gone_is_missed_by_name_where_there_were_too_many_files_to_keep_open(external, monkeypatch):
    monkeypatch.setattr(external_data, "_KEPT_OPEN", 0)
    path, model = external
    loaded = Model.load(path)
    assert loaded.to_proto() == model
    for other in path.parent.iterdir():
        if other != path:
            other.unlink()
    with pytest.raises(ModelReadError, match="initializer 'w': cannot read its external data file"):
        loaded.save(path, force=True)


def test_loading_reads_no_data(tmp_path):
    save_external(linear({"w": np.zeros((1000, 1000), np.float32)}), tmp_path / "m.onnx")
    tracemalloc.start()
    try:
        Model.load(tmp_path / "m.onnx")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_values_can_be_edited_without_changing_the_file(external):
    path, _ = external
    loaded = Model.load(path)
    loaded.initializers()["w"].values[0] = 0
    assert np.array_equal(numpy_helper.to_array(loaded.to_proto().graph.initializer[0])[1:], W[1:])
    assert not numpy_helper.to_array(loaded.to_proto().graph.initializer[0])[0].any()
    assert np.array_equal(Model.load(path).initializers()["w"].values, W)


def test_data_of_subgraphs_and_of_constant_nodes_is_found(tmp_path):
    model = branches(random_weight(4, 4), random_weight(4, 4))
    for graph in (model.graph, model.graph.node[1].attribute[0].g):
        value = numpy_helper.from_array(random_weight(200, 100), "value")
        graph.node.insert(0, helper.make_node("Constant", [], [f"{graph.name}.c"], value=value))
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    move_out(model, tmp_path / "weights.bin")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert Model.load(tmp_path / "m.onnx").to_proto() == whole


def move_out(model, path):
    """Move the data of every raw tensor to a file; onnx.save forgets those of subgraphs."""
    with open(path, "wb") as file:
        for tensor in raw_tensors(model.graph):
            tensor.data_location = TensorProto.EXTERNAL
            length = len(tensor.raw_data)
            entries = {"location": path.name, "offset": file.tell(), "length": length}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")


def raw_tensors(graph):
    yield from (t for t in graph.initializer if t.HasField("raw_data"))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.t.HasField("raw_data"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from raw_tensors(attribute.g)


def test_data_of_what_graphsurgeon_drops_is_found(tmp_path):
    """An initializer that nothing reads, a list of tensors, and a function's constant."""
    model = linear({"w": W})
    model.graph.initializer.append(numpy_helper.from_array(V, "unread"))
    model.graph.node[0].attribute.append(helper.make_attribute("list", [numpy_helper.from_array(V, "t")]))
    value = numpy_helper.from_array(V, "f")
    body = [helper.make_node("Constant", [], ["b"], value=value)]
    model.functions.append(helper.make_function("com.example", "F", [], ["b"], body, [helper.make_opsetid("", 17)]))
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    stubs = [model.graph.initializer[1], model.graph.node[0].attribute[0].tensors[0]]
    stubs.append(model.functions[0].node[0].attribute[0].t)
    (tmp_path / "v.bin").write_bytes(V.tobytes())
    for stub in stubs:
        stub.ClearField("raw_data")
        stub.data_location = TensorProto.EXTERNAL
        stub.external_data.add(key="location", value="v.bin")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert Model.load(tmp_path / "m.onnx").to_proto() == whole


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4", "bool"])
def test_data_of_every_width_is_found(dtype, tmp_path):
    if dtype == "int4" and not HAS_NEW_DATA_TYPES:
        pytest.skip("onnx 1.19")
    import ml_dtypes

    array = np.ones((3, 5)).astype(getattr(ml_dtypes, dtype, dtype))
    save_external(tensors(tensor_of(array, "t")), tmp_path / "m.onnx")
    found = Model.load(tmp_path / "m.onnx").initializers()["t"]
    assert found.dtype == array.dtype
    assert array_of(found).tobytes() == array.tobytes()


def damaged(path, **entries):
    """Overwrite the entries of the first initializer's external data; None removes one."""
    model = onnx.load(path, load_external_data=False)
    stub = model.graph.initializer[0]
    known = {e.key: e.value for e in stub.external_data}
    del stub.external_data[:]
    for key, value in {**known, **entries}.items():
        if value is not None:
            stub.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


@pytest.fixture
def single(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    save_external(linear({"w": W}), folder / "m.onnx")
    return folder / "m.onnx"


def refused(path, pattern):
    with pytest.raises(ModelReadError) as caught:
        Model.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert "initializer 'w'" in message
    assert str(path) in message
    assert pattern in message


def test_missing_data_is_refused(single):
    single.with_name("weights.bin").unlink()
    refused(single, f"{single.with_name('weights.bin')} is missing")


def test_folder_or_pipe_in_place_of_the_data_is_refused(single):
    data = single.with_name("weights.bin")
    data.unlink()
    os.mkfifo(data)
    refused(single, f"{data} is missing")
    data.unlink()
    data.mkdir()
    refused(single, f"{data} is missing")


def test_truncated_data_is_refused(single):
    os.truncate(single.with_name("weights.bin"), W.nbytes - 1)
    refused(single, f"{single.with_name('weights.bin')} is truncated; copy it again")
    os.truncate(single.with_name("weights.bin"), 0)
    refused(single, "is truncated")


@pytest.mark.parametrize("kept_open", [0, 1])
def test_data_that_shrinks_after_loading_is_refused(single, monkeypatch, kept_open):
    monkeypatch.setattr(external_data, "_KEPT_OPEN", kept_open)
    loaded = Model.load(single)
    os.truncate(single.with_name("weights.bin"), 10)
    with pytest.raises(ModelReadError, match="truncated"):
        array_of(loaded.initializers()["w"])


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "-1"},
        {"offset": "-80000"},
        {"length": "-80000"},
        {"length": "79999"},
        {"length": "0"},
        {"offset": "nine"},
        {"length": "1e400"},
        {"offset": "0x10"},
        {"offset": "1"},
        {"offset": str(2**63)},
        {"offset": str(2**64), "length": None},
        {"offset": "9" * 5000},
        {"length": str(2**62)},
    ],
    ids=lambda entries: " ".join(f"{k} {str(v)[:20]}" for k, v in entries.items()),
)
def test_absurd_offset_or_length_is_refused(single, entries):
    damaged(single, **entries)
    refused(single, str(single.with_name("weights.bin")))


@pytest.mark.parametrize(
    "location",
    [
        "../weights.bin",
        "/etc/hostname",
        "",
        None,
        "sub/../../weights.bin",
        "..",
        "a\0b",
        "a\nb",
        "x" * 5000,
        "./../in2/../weights.bin",
    ],
)
def test_location_outside_the_folder_is_refused(single, location):
    (single.parent.parent / "weights.bin").write_bytes(W.tobytes())
    (single.parent / "sub").mkdir()
    damaged(single, location=location)
    refused(single, "external data")


def test_link_that_leads_out_of_the_folder_is_refused(single):
    data = single.with_name("weights.bin")
    data.rename(single.parent.parent / "weights.bin")
    data.symlink_to(single.parent.parent / "weights.bin")
    refused(single, "lies outside the model's folder")
    data.unlink()
    data.symlink_to(data)
    refused(single, "weights.bin")


def test_link_within_the_folder_is_followed(single):
    data = single.with_name("weights.bin")
    data.rename(single.with_name("elsewhere.bin"))
    data.symlink_to("elsewhere.bin")
    assert np.array_equal(Model.load(single).initializers()["w"].values, W)


def test_data_in_a_folder_below_is_found(single):
    (single.parent / "sub").mkdir()
    single.with_name("weights.bin").rename(single.parent / "sub" / "weights.bin")
    damaged(single, location="sub/weights.bin")
    assert np.array_equal(Model.load(single).initializers()["w"].values, W)


def test_download_cache_of_links_into_a_folder_of_blobs_is_read(single, tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for name in ("m.onnx", "weights.bin"):
        single.with_name(name).rename(blobs / f"sha-of-{name}")
        (snapshot / name).symlink_to(Path("../../blobs") / f"sha-of-{name}")
    assert np.array_equal(Model.load(snapshot / "m.onnx").initializers()["w"].values, W)


def test_data_is_found_in_the_folder_of_the_file_that_a_link_leads_to(single, tmp_path):
    (tmp_path / "latest.onnx").symlink_to(single)
    assert np.array_equal(Model.load(tmp_path / "latest.onnx").initializers()["w"].values, W)


def test_strings_outside_the_file_are_refused(single):
    model = onnx.load(single, load_external_data=False)
    model.graph.initializer[0].data_type = TensorProto.STRING
    single.write_bytes(model.SerializeToString())
    refused(single, "strings")


def test_model_without_a_folder_is_refused_by_name(single):
    stub = onnx.load(single, load_external_data=False)
    with pytest.raises(ModelReadError, match="initializer 'w': its data is external; pass the model's path"):
        Model.load(stub)


def test_data_cut_out_of_the_model_file_must_fit_its_shape(tmp_path):
    model = linear({"w": W})
    model.graph.initializer[0].dims[0] = 199
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    refused(tmp_path / "m.onnx", "80000 bytes do not fit its shape [199, 100]")


def test_initializer_of_the_main_graph_that_is_inside_stays_inside_where_others_are_external(tmp_path):
    mixed = linear({"w": W, "v": V})
    save_external(linear({"w": W, "v": V}), tmp_path / "m.onnx")
    stub = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    stub.graph.initializer[1].CopyFrom(mixed.graph.initializer[1])
    (tmp_path / "m.onnx").write_bytes(stub.SerializeToString())
    assert Model.load(tmp_path / "m.onnx").to_proto() == mixed
    assert model_of(mixed.graph) == mixed
