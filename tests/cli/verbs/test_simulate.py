import json
import re

import onnx
import pytest
from click.testing import CliRunner
from dataflow_cases import convolution, linear, sparse_integers
from decoder_nets import decoder

from sift_onnx.cli import main

LAYER_FIELDS = "name cycles bound utilization imbalance nnz macs fabric_bytes sram_bytes energy_j".split()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(convolution(sparse_integers(12, 8, 3, 3), size=12, batch=1, pads=[1] * 4), "sparse.onnx")
    onnx.save(linear(sparse_integers(16, 16)), "small.onnx")
    return tmp_path


def simulate(*arguments):
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def document(*arguments):
    result = simulate(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_has_the_promised_fields(folder):
    result = document("sparse.onnx", "--batch", 64)
    assert result["schema"] == 1
    assert result["preset"] == "wse2"
    assert set(result["totals"]) >= {"cycles", "seconds", "utilization", "energy_j"}
    assert set(result["speedup"]) >= {"vs_dense_wide", "vs_dense_original"}
    assert result["speedup"]["vs_dense_original"] is None
    for layer in result["layers"]:
        assert set(layer) >= {*LAYER_FIELDS, "limits", "edge_index_bytes", "edge_value_bytes"}


def test_tables_name_the_baseline_of_each_speed_up_and_the_assumed_energy(folder):
    result = simulate("sparse.onnx", "--batch", 64, "--baseline", "small.onnx")
    assert result.exit_code == 0
    assert re.search(r"the same model executed dense on this machine; .* over .*window_rows 4 to 64", result.output)
    assert "the original model on this machine" in result.output
    assert "assumed: idle_fraction, edge_byte_pj" in result.output
    assert "indices and" in result.output


@pytest.mark.parametrize("arithmetic", ["float32", "float16"])
def test_functional_fidelity_says_how_far_outputs_are_from_onnxruntime_s(folder, arithmetic):
    arguments = ("sparse.onnx", "--fidelity", "functional", "--arithmetic", arithmetic)
    executed = document(*arguments)["functional"]
    assert executed["arithmetic"] == arithmetic
    assert executed["nodes"] == {"csr": 2, "onnxruntime": 1}
    (output,) = executed["outputs"]
    assert 0 <= output["max_abs_error"] / output["max_abs"] < (1e-6 if arithmetic == "float32" else 1e-2)
    assert (output["max_abs_error"] > 1e-4) == (arithmetic == "float16")
    text = " ".join(simulate(*arguments).output.split())
    assert f"executed in {arithmetic}, nodes: csr 2, onnxruntime 1; random inputs x (1, 3, 12, 12), seed 0" in text
    assert re.search(r"output 'y' .*: at most .* from onnxruntime's, whose values reach", text)
    fast = document("sparse.onnx")
    assert document(*arguments)["totals"] == fast["totals"]
    assert "functional" not in fast


@pytest.mark.parametrize(
    ("preset", "line"),
    [
        ("wse3", "values of wse3 assumed, without a source: clock_hz, axpy_startup, dense_startup, row_overhead, "),
        ("ideal", "values of ideal"),
    ],
)
def test_values_without_a_source_are_named(folder, preset, line):
    assert line in " ".join(simulate("sparse.onnx", "--preset", preset).output.split())


def test_training_and_resident_weights_are_options(folder):
    assert document("sparse.onnx", "--training")["totals"]["cycles"] > document("sparse.onnx")["totals"]["cycles"]
    assert document("sparse.onnx", "--weights", "resident")["totals"]["edge_value_bytes"] == 0


def test_a_page_is_self_contained(folder):
    assert simulate("sparse.onnx", "--batch", 64, "--html", "report.html").exit_code == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    for part in ("What binds each layer", "Roofline", "Busy share", "Speed-up over sparsity", "assumed"):
        assert part in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    assert "<script" not in text


def test_a_trace_of_events_is_capped_and_says_so(folder):
    result = simulate(
        "sparse.onnx",
        "--grid",
        "4x4",
        "--fidelity",
        "event",
        "--trace",
        "t.json",
        "--max-events",
        20,
        "--json",
        "r.json",
    )
    assert result.exit_code == 0
    assert "events dropped beyond --max-events 20" in result.stderr
    other = json.loads((folder / "t.json").read_text(encoding="utf-8"))["otherData"]
    assert other["events"] == 20
    assert other["dropped"] > 0
    assert json.loads((folder / "r.json").read_text(encoding="utf-8"))["trace"]["dropped"] == other["dropped"]


def test_a_decoder_is_simulated_from_its_sizes_beside_what_was_published(folder):
    (folder / "tiny.toml").write_text(
        'name = "tiny"\nsource = "made up"\nlayers = 2\nhidden = 128\nfeed_forward = 512\nheads = 1\nvocabulary = 100\n'
        'sequence = 16\nbatch = 8\n[[published]]\nwide = 0.9\npreset = "wse2"\nspeedup = 3.8\nsource = "here"\n'
        'remark = "one point cannot validate a model"\n',
        encoding="utf-8",
    )
    result = simulate("tiny.toml", "--wide", 0.9, "--training")
    assert result.exit_code == 0, result.output
    assert "tiny, Sparse Wide 90%" in result.output
    assert (
        "published: 3.8x over the same model executed dense (here); one point cannot validate a model" in result.output
    )


def test_a_decoder_is_simulated_token_by_token(folder):
    onnx.save(decoder("gpt2"), "decoder.onnx")
    decode = document("decoder.onnx", "--decode", "5,4")["decode"]
    assert (decode["prompt"], decode["tokens"], decode["steps"]) == (5, 4, 3)
    assert [phase["name"] for phase in decode["phases"]] == ["prefill", "step", "whole"]
    result = simulate("decoder.onnx", "--decode", "5,4", "--batch", 2)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "prompt of 5, 4 new tokens" in text
    assert "mean of 3 steps" in text
    assert re.search(r"tokens per second of 2 sequences after the first, which takes .*; the cache has", text)


@pytest.mark.slow
def test_a_page_of_a_generation_has_its_phases(folder):
    onnx.save(decoder("gpt2"), "decoder.onnx")
    assert simulate("decoder.onnx", "--decode", "5,4", "--html", "decoded.html").exit_code == 0
    page = (folder / "decoded.html").read_text(encoding="utf-8")
    assert "The prompt and the steps after it" in page
    assert "Speed-up over sparsity" not in page


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["gone.onnx"], 2, "no such file"),
        (["sparse.onnx", "--preset", "wse9"], 2, "choose ideal, stonne-1ms"),
        (["sparse.onnx", "--grid", "4"], 2, "not of the form 16x16"),
        (["sparse.onnx", "--grid", "0x4"], 2, "both must be at least 1"),
        (["sparse.onnx", "--preset", "ideal", "--grid", "4x4"], 2, "has no grid"),
        (["sparse.onnx", "--fidelity", "event"], 3, "up to 16x16"),
        (["sparse.onnx", "--wide", "0.9"], 2, "transform sparse.onnx --wide first"),
        (["sparse.onnx", "--html", "gone/r.html"], 2, "the folder gone does not exist"),
        (["sparse.onnx", "--html", "small.onnx"], 2, "use --force to overwrite it"),
        (["sparse.onnx", "--decode", "5,4"], 3, "the model is not a decoder"),
        (["sparse.onnx", "--decode", "5,1"], 2, "two new tokens at least"),
        (["sparse.onnx", "--decode", "5,4", "--trace", "t.json"], 2, "leave --decode out"),
        (["gpt3-1.3b", "--decode", "5,4", "--training"], 2, "leave --training or --decode out"),
        (["gpt3-1.3c"], 2, "known decoders: gpt3-1.3b"),
        (["gpt3-1.3b", "--input-shapes", "x:1"], 2, "use --batch"),
        (["gpt3-1.3b", "--fidelity", "functional"], 2, "only the sizes are known"),
        (["sparse.onnx", "--fidelity", "functional", "--training"], 2, "runs the forward pass"),
        (["sparse.onnx", "--arithmetic", "float16"], 2, "choose functional for float16"),
        (["sparse.onnx", "--preset", "ideal", "--fidelity", "functional", "--arithmetic", "float16"], 3, "has no grid"),
    ],
)
def test_mistakes_are_one_line(folder, arguments, code, message):
    result = simulate(*arguments)
    assert result.exit_code == code
    assert message in result.output
    assert "Traceback" not in result.output


def test_benchmark_reports_simulated_time(folder):
    result = CliRunner().invoke(
        main, ["benchmark", "sparse.onnx", "--backend", "dataflow", "--backend", "dataflow:ideal", "--json", "-"]
    )
    assert result.exit_code == 0, result.output
    runs = json.loads(result.stdout)["runs"]
    assert [run["backend"] for run in runs] == ["dataflow", "dataflow:ideal"]
    assert all(run["simulated"] for run in runs)
    assert runs[0]["median_ms"] == pytest.approx(1e3 * document("sparse.onnx")["totals"]["seconds"], rel=1e-3)
