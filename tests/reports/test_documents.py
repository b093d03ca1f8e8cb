"""Results of all verbs are known for what they are; anything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sift_onnx.errors import UsageError
from sift_onnx.records.quantization import LayerQuantization, QuantizationReport, QuantizationTotals
from sift_onnx.records.train import TrainReport
from sift_onnx.reports.documents import documents_of, read_document, sparsities

VERBS = {
    "transform": "transform", "prune": "transform", "inspect": "inspect", "check": "check", "train": "train",
    "train-dense": "train", "benchmark": "benchmark", "profile": "profile", "simulate": "simulate",
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), VERBS.items())
def test_what_a_verb_wrote_is_known(results: Path, name: str, kind: str) -> None:
    assert read_document(str(results / f"{name}.json")).kind == kind


def test_models_of_results_have_a_sparsity(results: Path) -> None:
    documents = [read_document(str(results / f"{name}.json")) for name in ("transform", "train", "train-dense")]
    found = sparsities(documents)
    assert set(found) == {"wide.onnx", "wide-trained.onnx"}
    assert found["wide-trained.onnx"] == pytest.approx(found["wide.onnx"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[1, 2", "is not JSON"),
        ("[]", "not a result of sift-onnx"),
        ('{"tool": "other"}', "it has no field 'schema'"),
        ('{"schema": 2}', "schema 2, and this version reads schema 1"),
        ('{"schema": 1, "models": []}', "of no verb that a report shows (it has the fields schema, models)"),
        ('{"schema": 1, "x": NaN}', "it holds NaN"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_no_result(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(UsageError) as mistake:
        read_document(str(path))
    assert message in str(mistake.value)
    assert str(path) in str(mistake.value)


def test_a_result_of_quantize_is_of_no_verb_that_a_report_shows(tmp_path: Path) -> None:
    layer = LayerQuantization(
        name="w", op="MatMulInteger", shape=(4, 4), type="int8", params=16, nnz=16, sparsity=0.0, live_quads=1.0
    )
    totals = QuantizationTotals(params=16, nnz=16, live_quads=1.0)
    report = QuantizationReport(
        model="m.onnx", out="q.onnx", format="dynamic", per_channel=True, layers=(layer,), masks=0, totals=totals,
        seconds=1.0,
    )  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(report.to_dict()))
    with pytest.raises(UsageError, match=r"run.json is of no verb that a report shows \(it has the fields schema, mod"):
        read_document(str(tmp_path / "run.json"))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"\x08\xff\xfe")
    with pytest.raises(UsageError, match="it is not text"):
        read_document(str(tmp_path / "run.json"))


def _change(results: Path, target: Path, name: str, place: list[Any], value: Any) -> str:
    data = json.loads((results / f"{name}.json").read_text())
    inner = data
    for step in place[:-1]:
        inner = inner[step]
    if value is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    target.write_text(json.dumps(data))
    return str(target)


def test_what_need_not_be_there_may_be_null(results: Path, tmp_path: Path) -> None:
    data = json.loads((results / "train.json").read_text())
    data["cost"] = None
    (tmp_path / "run.json").write_text(json.dumps(data))
    (document,) = documents_of(TrainReport, [read_document(str(tmp_path / "run.json"))])
    assert document.data.cost is None


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("transform", ["layers", 1, "nnz"], None, "a result of transform, has no layers[1].nnz"),
        (
            "inspect",
            ["layers", 0, "macs"],
            "many",
            'has "many" for layers[0].macs, which is to be a whole number',
        ),
        ("train", ["sparsity", "algorithms"], {}, "has {} for sparsity.algorithms, which is to be a list"),
        ("check", ["ok"], 1, "has 1 for ok, which is to be true or false"),
        ("simulate", ["maps", 0, "shares"], None, "has no maps[0].shares"),
        ("simulate", ["maps", 0, "shape"], [3], "has [3] for maps[0].shape, which is to be a list of 2"),
        (
            "simulate",
            ["machine", "parameters", "columns", "low"],
            "x",
            "parameters.columns.low, which is to be",
        ),
        ("train", ["validation", "accuracy"], 7, "has 7 for validation.accuracy, which is to be a number"),
        ("benchmark", ["runs", 0, "batch"], True, "has true for runs[0].batch, which is to be a whole number from 0"),
    ],
)
def test_a_damaged_result_says_where(
    results: Path, tmp_path: Path, name: str, place: list[Any], value: Any, message: str
) -> None:
    path = _change(results, tmp_path / "run.json", name, place, value)
    with pytest.raises(UsageError) as mistake:
        read_document(path)
    assert message in str(mistake.value)


OLDER = Path(__file__).parent / "older_results"


@pytest.mark.parametrize("path", sorted(OLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_file_that_an_older_build_wrote_loads_with_all_its_figures(path: Path) -> None:
    document = read_document(str(path))
    assert document.kind == VERBS[path.stem]
    written = json.loads(path.read_text())
    read = document.data.to_dict()
    assert read.keys() <= written.keys()
    assert read == {key: written[key] for key in read}


@pytest.mark.parametrize("name", VERBS)
def test_what_is_read_is_what_was_written(results: Path, name: str) -> None:
    assert read_document(str(results / f"{name}.json")).data.to_dict() == json.loads(
        (results / f"{name}.json").read_text()
    )
