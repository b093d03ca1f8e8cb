import json
import re

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.backends import load
from sift_onnx.cli import main
from sift_onnx.records.benchmark import RatioOfRuns
from sift_onnx.reports.benchmark import ratio_line

QUICK = ("--seconds", "0.01", "--warmup", "0")
USER_BACKEND = """
from sift_onnx.backends.base import Backend, Placement, Program

class Copying(Program):
    threads = 3
    def run(self, feeds):
        return {"y": feeds["x"].copy()}

class Copy(Backend):
    name = "copy"
    def compile(self, model, options=None):
        return Copying()

class Timing(Copying):
    placements = tuple(Placement(name, "Mul", place, "") for name, place in
                       (("a", "kernels"), ("b", "onnxruntime"), ("c", "kernels")))
    verdict = "timed: 2 ms in the kernels against 3 ms in onnxruntime"

class Timed(Backend):
    name = "timed"
    def compile(self, model, options=None):
        return Timing()

class Faulty(Backend):
    name = "faulty"
    def compile(self, model, options=None):
        raise KeyError("no kernel\\nfor it")
"""


def scale(batch="N", inner=4, name="x"):
    """y = 2 * x, x of batch x inner."""
    graph = helper.make_graph(
        [helper.make_node("Mul", [name, "factor"], ["y"], "scale")],
        "scale",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, inner])],
        [numpy_helper.from_array(np.full(1, 2, np.float32), "factor")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, model in {
        "any.onnx": scale(),
        "other.onnx": scale(),
        "eight.onnx": scale(8),
        "dynamic.onnx": scale(inner="width"),
        "renamed.onnx": scale(name="image"),
    }.items():
        onnx.save(model, name)
    (tmp_path / "mine.py").write_text(USER_BACKEND, encoding="utf-8")
    return tmp_path


def benchmark(*arguments):
    """On onnxruntime alone, unless the arguments say where; the other back end by default takes longer to open."""
    where = () if "--backend" in arguments else ("--backend", "onnxruntime")
    return CliRunner().invoke(main, ["benchmark", *arguments, *where, *QUICK])


def test_models_are_timed_on_our_back_end_and_onnxruntime_by_default(folder):
    result = CliRunner().invoke(main, ["benchmark", "any.onnx", *QUICK, "--json", "-"])
    assert [run["backend"] for run in json.loads(result.stdout)["runs"]] == ["cpu", "onnxruntime"]


def document(*arguments):
    result = benchmark(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_has_the_fields_relied_on():
    got = document("any.onnx", "--baseline", "other.onnx", "--threads", "1")
    assert list(got) == ["schema", "host", "runs", "ratios", "warnings"]
    assert got["schema"] == 1
    assert {"cpu", "logical_cores", "affinity", "python", "onnxruntime", "platform"} <= got["host"].keys()
    run, reference = got["runs"]
    assert {"model", "backend", "batch", "threads", "median_ms", "min_ms", "p90_ms", "p99_ms"} <= run.keys()
    assert (run["model"], run["backend"], run["batch"], run["threads"]) == ("any.onnx", "onnxruntime", 1, 1)
    assert run["iterations"] >= 10
    assert run["items_per_second"] == pytest.approx(1e3 / run["median_ms"])
    assert (reference["model"], reference["baseline"]) == ("other.onnx", True)
    (ratio,) = got["ratios"]
    assert {"a", "b", "median", "spread"} <= ratio.keys()
    assert (ratio["a"], ratio["b"]) == (run["label"], reference["label"])
    low, high = ratio["spread"]
    assert 0 < low <= ratio["median"] <= high


def test_every_model_is_timed_at_every_batch_on_every_back_end():
    got = document("any.onnx", "other.onnx", "--batch", "1,4", "--backend", "onnxruntime", "--backend", "mine.py:Copy")
    assert [(run["batch"], run["model"], run["backend"]) for run in got["runs"]] == [
        (batch, model, backend)
        for batch in (1, 4)
        for model in ("any.onnx", "other.onnx")
        for backend in ("onnxruntime", "mine.py:Copy")
    ]
    assert {run["threads"] for run in got["runs"] if run["backend"] == "mine.py:Copy"} == {3}
    assert got["ratios"] == []


def test_it_says_where_nodes_ran_and_what_was_timed_for_that():
    (run,) = document("any.onnx", "--backend", "mine.py:Timed")["runs"]
    assert run["nodes"] == {"kernels": 2, "onnxruntime": 1}
    assert run["verdict"] == "timed: 2 ms in the kernels against 3 ms in onnxruntime"
    words = " ".join(benchmark("any.onnx", "--backend", "mine.py:Timed").stdout.split())
    assert f"any.onnx on mine.py:Timed, batch 1: nodes in kernels 2, onnxruntime 1; {run['verdict']}" in words
    (run,) = document("any.onnx", "--backend", "mine.py:Copy")["runs"]
    assert "nodes" not in run
    assert not run.get("verdict")
    assert "nodes in" not in benchmark("any.onnx", "--backend", "mine.py:Copy").stdout


def test_streams_and_a_rate_are_reported_with_percentiles():
    (run,) = document("any.onnx", "--backend", "mine.py:Copy", "--streams", "2", "--rate", "2000")["runs"]
    assert (run["streams"], run["rate"]) == (2, 2000)
    assert run["iterations"] >= 20
    assert run["min_ms"] <= run["median_ms"] <= run["p90_ms"] <= run["p99_ms"]
    table = " ".join(benchmark("any.onnx", "--backend", "mine.py:Copy", "--streams", "2").stdout.split())
    assert "streams" in table
    assert "requests/s" in table
    assert not {"streams", "rate"} & document("any.onnx")["runs"][0].keys()


def test_a_rate_that_is_not_kept_is_told(monkeypatch):
    monkeypatch.setattr(load, "_PATIENCE", 0)
    found = document("any.onnx", "--backend", "mine.py:Copy", "--rate", "1e6")
    (run,), (warning,) = found["runs"], found["warnings"]
    assert run["unserved"] > 0
    assert "any.onnx on mine.py:Copy, batch 1: the rate of 1e+06 requests per second was not kept" in warning
    assert f"{run['unserved']:,} of " in warning
    result = benchmark("any.onnx", "--rate", "1e9")
    assert result.exit_code == 2
    assert "rate is 1e+09; it must be at most 1,000,000 requests per second" in result.output.replace("\n", " ")


def test_a_simulation_has_no_streams():
    result = benchmark("any.onnx", "--backend", "dataflow", "--streams", "2")
    assert result.exit_code == 2
    assert "leave --streams and --rate out" in result.output.replace("\n", " ")


def test_items_are_those_of_the_batch():
    (run,) = document("any.onnx", "--batch", "64")["runs"]
    assert run["items_per_second"] == pytest.approx(64e3 / run["median_ms"])


def test_ratios_are_to_the_baseline_on_the_same_back_end_and_then_on_others():
    backends = ("--backend", "onnxruntime", "--backend", "mine.py:Copy")
    got = document("any.onnx", "--baseline", "other.onnx", *backends)
    assert [(ratio["a"], ratio["b"]) for ratio in got["ratios"]] == [
        (f"any.onnx on {a}", f"other.onnx on {b}")
        for a, b in [
            ("onnxruntime", "onnxruntime"),
            ("mine.py:Copy", "mine.py:Copy"),
            ("onnxruntime", "mine.py:Copy"),
            ("mine.py:Copy", "onnxruntime"),
        ]
    ]


def test_model_may_be_compared_with_itself():
    got = document("any.onnx", "--baseline", "any.onnx")
    assert [run["label"] for run in got["runs"]] == ["any.onnx on onnxruntime", "any.onnx (baseline) on onnxruntime"]
    assert len(got["ratios"]) == 1


def test_models_of_the_same_file_name_are_told_apart(folder):
    (folder / "old").mkdir()
    onnx.save(scale(), "old/any.onnx")
    (ratio,) = document("any.onnx", "--baseline", "old/any.onnx")["ratios"]
    assert (ratio["a"], ratio["b"]) == ("any.onnx on onnxruntime", "old/any.onnx on onnxruntime")


def test_table_and_ratio_line_name_the_baseline():
    result = benchmark("any.onnx", "--baseline", "other.onnx")
    assert result.exit_code == 0
    assert "other.onnx (baseline)" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"any\.onnx on onnxruntime, batch 1: [\d.]+x (slower|faster) than other\.onnx on onnxruntime "
        r"\(median of paired slices; spread [\d.]+-[\d.]+.*\)",
        last,
    )
    assert result.stderr == ""


def test_without_a_baseline_no_comparison_is_printed():
    assert not re.search("faster|slower", benchmark("any.onnx", "other.onnx").stdout)


def ratio(median, low, high):
    return ratio_line(RatioOfRuns(a="wide on cpu", b="narrow on cpu", batch=1, median=median, spread=(low, high)))


def test_slower_is_told_in_words():
    assert ratio(6.1, 5.9, 6.4) == (
        "wide on cpu, batch 1: 6.1x slower than narrow on cpu (median of paired slices; spread 5.9-6.4)"
    )


def test_faster_is_the_inverse_with_its_spread_in_order():
    assert "4.0x faster than narrow on cpu (median of paired slices; spread 2.5-5.0)" in ratio(0.25, 0.2, 0.4)


def test_spread_around_one_is_no_clear_difference():
    assert "1.02x slower" in ratio(1.02, 0.98, 1.05)
    assert ratio(1.02, 0.98, 1.05).endswith("no clear difference)")
    assert not ratio(1.02, 1.01, 1.05).endswith("no clear difference)")


def test_latency_gate():
    assert benchmark("any.onnx", "--max-latency-ms", "10000").exit_code == 0
    result = benchmark("any.onnx", "--max-latency-ms", "1e-9")
    assert result.exit_code == 1
    assert re.match(
        r"Error: any\.onnx on onnxruntime, batch 1: median [\d.]+ ms misses --max-latency-ms 1e-09 by [\d.]+ ms\n",
        result.stderr,
    )
    assert "median ms" in result.stdout


def test_speedup_gate():
    assert benchmark("any.onnx", "--baseline", "other.onnx", "--min-speedup", "0.000001").exit_code == 0
    result = benchmark("any.onnx", "--baseline", "other.onnx", "--min-speedup", "1000000")
    assert result.exit_code == 1
    assert re.search(r"x the speed of other\.onnx on onnxruntime misses --min-speedup 1e\+06 by", result.stderr)


def test_missed_gate_still_writes_the_json():
    result = benchmark("any.onnx", "--max-latency-ms", "1e-9", "--json", "out.json")
    assert result.exit_code == 1
    with open("out.json", encoding="utf-8") as file:
        assert len(json.load(file)["runs"]) == 1


def test_own_batch_is_the_default():
    assert document("eight.onnx")["runs"][0]["batch"] == 8


def test_given_shapes_reach_the_models_that_have_the_input():
    shapes = ("--input-shapes", "x:2,5")
    got = document("dynamic.onnx", "renamed.onnx", *shapes, "--batch", "2")
    assert [run["batch"] for run in got["runs"]] == [2, 2]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (
            ("eight.onnx", "--batch", "64"),
            2,
            "eight.onnx: batch 64 was asked for, but the model was exported with batch 8",
        ),
        (("eight.onnx", "any.onnx"), 2, "different batches (eight.onnx: 8, any.onnx: 1); choose one with --batch"),
        (("dynamic.onnx",), 2, "dynamic.onnx: axis 1 of input 'x' is dynamic ('width')"),
        (("any.onnx", "--input-shapes", "z:1"), 2, "names the input 'z', which no model has"),
        (("any.onnx", "--min-speedup", "2"), 2, "--min-speedup needs --baseline"),
        (("any.onnx", "--batch", "1,x"), 2, "'1,x' is not of the form 1,64"),
        (("any.onnx", "--batch", "0"), 2, "'0' is not of the form 1,64"),
        (("gone.onnx",), 2, "gone.onnx: no such file"),
        ((), 2, "Missing argument"),
        (("any.onnx", "--backend", "abacus"), 4, "no back end 'abacus'"),
        (("any.onnx", "--backend", "mine.py:Gone"), 4, "'Gone' is not a subclass"),
        (("any.onnx", "--backend", "mine.py:Faulty"), 4, "'mine.py:Faulty' failed on any.onnx: KeyError: "),
    ],
)
def test_mistakes_are_one_line_and_leave_with_their_code(arguments, code, complaint):
    result = benchmark(*arguments)
    assert result.exit_code == code
    assert complaint in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert result.stdout == ""


def test_verbose_says_what_is_compiled():
    assert "compiling any.onnx for onnxruntime, batch 1" in benchmark("any.onnx", "-v").stderr
