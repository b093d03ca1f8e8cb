"""``transform`` when something is wrong: one line that says what, where and what to do, and nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import convolutions, mask_weights, model_of, random_weight
from onnx import TensorProto, helper

from sift_onnx.cli import main
from sift_onnx.model import Model


@pytest.fixture
def folder(tmp_path):
    """Where the model is, with ``in.onnx`` in it."""
    onnx.save(convolutions(), tmp_path / "in.onnx")
    return tmp_path


def listing(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def refused(folder, capfd, monkeypatch):
    """Call transform in the folder; the one line that it prints, after checking that it did nothing else."""
    monkeypatch.chdir(folder)

    def call(*arguments, code, source="in.onnx", target="out.onnx", usage=False):
        before = listing(folder)
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(args=["transform", str(source), str(target), *(str(a) for a in arguments)])
        out, err = capfd.readouterr()
        lines = err.splitlines()
        assert stop.value.code == code
        assert out == ""
        assert "Traceback" not in err
        assert lines[-1].startswith("Error: ")
        if usage:
            assert [line.split(" ")[0] for line in lines[:-1]] in ([], ["Usage:", "Try", ""])
        else:
            assert len(lines) == 1
        assert listing(folder) == before
        return lines[-1]

    return call


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"<!DOCTYPE html>\n<html></html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"PK\x03\x04" + bytes(60),
        b"\x89PNG\r\n\x1a\n",
        np.random.default_rng(0).bytes(5000),
    ],
    ids=["empty", "zeros", "web page", "pointer of git lfs", "zip", "image", "noise"],
)
def test_file_that_is_no_model(refused, folder, content):
    (folder / "in.onnx").write_bytes(content)
    assert "in.onnx" in refused("--wide", "0.5", code=2)


def test_file_that_is_not_there(refused):
    assert "gone.onnx: no such file" in refused("--wide", "0.5", code=2, source="gone.onnx")


def test_folder_in_place_of_a_model(refused, folder):
    assert "is a folder" in refused("--wide", "0.5", code=2, source=folder)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.99])
def test_truncated_file(refused, folder, share):
    whole = (folder / "in.onnx").read_bytes()
    (folder / "in.onnx").write_bytes(whole[: int(share * len(whole))])
    assert "in.onnx is not an ONNX model, or is truncated" in refused("--wide", "0.5", code=2)


def field_boundaries(data, start=0):
    """Where the top-level fields of a serialized message end."""
    at, ends = start, []
    while at < len(data):
        key, at = number(data, at)
        value, at = number(data, at)
        at += value if key & 7 == 2 else 0
        ends.append(at)
    return ends


def number(data, at):
    value = shift = 0
    while True:
        value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def test_file_that_is_truncated_where_a_field_ends(refused, folder):
    whole = (folder / "in.onnx").read_bytes()
    ends = field_boundaries(whole)
    assert len(ends) > 2
    for end in ends[:-1]:
        (folder / "in.onnx").write_bytes(whole[:end])
        assert "truncated" in refused("--wide", "0.5", code=2)


def test_file_of_ours_that_is_truncated_where_a_field_ends(refused, folder):
    mask_weights(Model.load(folder / "in.onnx")).save(folder / "in.onnx", force=True)
    whole = (folder / "in.onnx").read_bytes()
    for end in field_boundaries(whole)[:-1]:
        (folder / "in.onnx").write_bytes(whole[:end])
        assert "truncated" in refused("--wide", "0.5", code=2)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_model_that_lacks_its_last_nodes(refused, folder, kept):
    model = convolutions()
    del model.graph.node[kept:]
    onnx.save(model, folder / "in.onnx")
    line = refused("--wide", "0.5", code=2)
    assert "in.onnx: the model is damaged or truncated" in line
    assert "'a3'" in line


@pytest.mark.parametrize("removed", [0, 1])
def test_model_that_lacks_a_node_or_a_weight(refused, folder, removed):
    model = convolutions()
    del model.graph.node[removed]
    onnx.save(model, folder / "in.onnx")
    assert f"'a{removed}', which nothing makes" in refused("--wide", "0.5", code=2)

    model = convolutions()
    del model.graph.initializer[removed]
    onnx.save(model, folder / "in.onnx")
    assert f"'conv{removed}.weight', which nothing makes" in refused("--wide", "0.5", code=2)


def external(folder, location="weights.bin"):
    onnx.save(convolutions(), folder / "in.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = onnx.load(folder / "in.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        next(e for e in tensor.external_data if e.key == "location").value = location
    (folder / "in.onnx").write_bytes(model.SerializeToString())


def test_missing_external_data(refused, folder):
    external(folder)
    (folder / "weights.bin").unlink()
    line = refused("--wide", "0.5", code=2)
    assert "in.onnx: initializer 'conv0.weight'" in line
    assert "weights.bin is missing" in line


def test_truncated_external_data(refused, folder):
    external(folder)
    os.truncate(folder / "weights.bin", 1000)
    line = refused("--wide", "0.5", code=2)
    assert "initializer 'conv0.weight'" in line
    assert "weights.bin is truncated" in line


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "link"])
def test_external_data_outside_the_folder_of_the_model(refused, folder, location):
    inside = folder / "inside"
    inside.mkdir()
    external(inside, location)
    (inside / "weights.bin").rename(folder / "weights.bin")
    (inside / "link").symlink_to(folder / "weights.bin")
    line = refused("--wide", "0.5", code=2, source="inside/in.onnx")
    assert "initializer 'conv0.weight'" in line
    assert f"{location!r} lies outside the model's folder" in line


def test_damaged_tensor(refused, folder):
    model = convolutions()
    model.graph.initializer[1].raw_data = model.graph.initializer[1].raw_data[:-4]
    onnx.save(model, folder / "in.onnx")
    assert "in.onnx: initializer 'conv1.weight'" in refused("--wide", "0.5", code=2)


def test_damaged_masks(refused, folder):
    model = convolutions()
    model.metadata_props.add(key="sift_onnx.masks", value='{"conv1.weight": "u1:nonsense"}')
    onnx.save(model, folder / "in.onnx")
    assert "in.onnx: the mask of initializer 'conv1.weight' is damaged" in refused("--wide", "0.5", code=2)


@pytest.mark.parametrize("sparsity", ["1.5", "1", "-0.1", "nan", "inf", "abc", "", "0.9.0", "90%"])
def test_sparsity_out_of_range_or_no_number(refused, sparsity):
    line = refused(f"--wide={sparsity}", code=2)
    assert "sparsity" in line
    assert sparsity in line


def test_folder_of_the_output_is_missing(refused):
    assert "the folder nowhere does not exist" in refused("--wide", "0.5", code=2, target="nowhere/out.onnx")


def test_output_is_a_folder(refused, folder):
    assert "is a folder" in refused("--wide", "0.5", code=2, target=folder)


def test_output_exists(refused, folder):
    (folder / "out.onnx").write_bytes(b"precious")
    assert "out.onnx exists already; use --force" in refused("--wide", "0.5", code=2)
    assert "in.onnx exists already; use --force" in refused("--wide", "0.5", code=2, target="in.onnx")


def test_output_is_refused_before_the_input_is_read(refused, folder):
    (folder / "in.onnx").write_bytes(b"")
    assert "the folder nowhere does not exist" in refused("--wide", "0.5", code=2, target="nowhere/out.onnx")


def test_output_that_cannot_be_written(refused):
    assert "cannot write" in refused("--wide", "0.5", code=2, target="x" * 300)


def without_weights():
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "relu")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    return model_of(graph)


def test_model_without_weights(refused, folder):
    onnx.save(without_weights(), folder / "in.onnx")
    assert "nothing to widen: the model has no weight layer" in refused("--wide", "0.5", code=3)


def test_model_without_nodes(refused, folder):
    model = without_weights()
    del model.graph.node[:]
    model.graph.output[0].name = "x"
    onnx.save(model, folder / "in.onnx")
    refused("--wide", "0.5", code=3)


def test_model_whose_only_layers_are_fixed(refused, folder):
    onnx.save(convolutions([(6, 4, 3)]), folder / "in.onnx")
    line = refused("--wide", "0.5", code=3)
    assert "nothing to widen" in line
    assert "'conv0.weight'" in line


def test_all_layers_kept_dense_by_the_user(refused):
    line = refused("--wide", "0.5", "--keep-dense", "*", code=3)
    assert "nothing to widen" in line
    assert "'conv1.weight'" in line


def test_budget_that_cannot_be_met(refused, folder):
    onnx.save(convolutions([(64, 4, 5), (8, 64, 1), (6, 8, 1)]), folder / "in.onnx")
    line = refused("--wide", "0.99", code=3)
    assert "'conv0.weight'" in line
    assert "--budget layer" in line


@pytest.mark.parametrize("option", ["--only", "--keep-dense"])
def test_glob_that_matches_nothing(refused, option):
    line = refused("--wide", "0.5", option, "fc*", code=2)
    assert f"{option} 'fc*' matches no weight" in line
    assert "'conv0.weight'" in line


def test_no_transform_named(refused):
    assert "--wide S" in refused(code=2, usage=True)


def test_two_transforms_named(refused):
    refused("--wide", "0.5", "--parallel", "0.5", code=2, usage=True)


def test_unknown_option(refused):
    assert "--widen" in refused("--widen", "0.5", code=2, usage=True)


def test_missing_value(refused):
    assert "--wide" in refused("--wide", code=2, usage=True)


@pytest.mark.parametrize(
    ("option", "value"), [("--budget", "flops"), ("--storage", "csr"), ("--round-to", "0"), ("--seed", "-1")]
)
def test_value_out_of_range(refused, option, value):
    assert option in refused("--wide", "0.5", option, value, code=2, usage=True)


@pytest.mark.parametrize("shapes", ["nobody:1,4,6,6", "x:1,4,6", "x:1,5,6,6", "x:0,4,6,6"])
def test_input_shapes_that_do_not_fit(refused, shapes):
    assert "--input-shapes" in refused("--wide", "0.5", "--input-shapes", shapes, code=2)


def test_model_in_its_place_is_whole_after_a_failure(refused, folder):
    onnx.save(convolutions([(6, 4, 3)]), folder / "in.onnx")
    refused("--wide", "0.5", "--force", code=3, target="in.onnx")
    assert onnx.load(folder / "in.onnx") == convolutions([(6, 4, 3)])


def test_message_of_a_process_of_its_own_is_one_line(folder):
    (folder / "in.onnx").write_bytes(random_weight(100).tobytes())
    command = [sys.executable, "-c", "from sift_onnx.cli import main; main()", "transform", "in.onnx", "out.onnx"]
    done = subprocess.run([*command, "--wide", "0.5"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: in.onnx is not an ONNX model")
    assert done.stderr.count("\n") == 1
    assert [p.name for p in Path(folder).iterdir()] == ["in.onnx"]
