"""The figures on top of a page say what the results have, and nothing that they have not."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from msgspec import convert

from sift_onnx.records.evaluation import EvaluationReport, EvaluationRun, MetricDifference
from sift_onnx.records.train import TrainReport
from sift_onnx.reports.answer_table import answer_table
from sift_onnx.reports.answers import Answer, answers, factor_text
from sift_onnx.reports.documents import Document, read_document
from sift_onnx.reports.plain_console import PlainConsole
from sift_onnx.reports.results_page import results_page
from sift_onnx.reports.trained_models import Group, best_gain

OLDER = Path(__file__).with_name("older_results")


def trained(name: str, accuracy: float, macs: int, *, masked: bool, steps: int = 100) -> Document[TrainReport]:
    data = json.loads((OLDER / "train.json").read_text())
    data |= {"model": f"{name}.onnx", "steps": steps, "validation": {"loss": 1.0, "accuracy": accuracy, "examples": 9}}
    data["cost"] = {"params": 9, "nnz": 9, "macs": macs, "effective_macs": macs, "attention_macs": 0}
    algorithms = [{"algorithm": "rigl"}] if masked else []
    data["sparsity"] = {"layers": 1, "nnz": 25 if masked else 100, "numel": 100, "algorithms": algorithms}
    return Document(f"{name}.json", "train", convert(data, TrainReport))


def test_accuracy_is_compared_at_equal_cost_over_repetitions() -> None:
    documents = [
        trained("net", 0.90, 1000, masked=False),
        trained("net", 0.92, 1000, masked=False),
        trained("wide", 0.94, 1001, masked=True),
        trained("wide", 0.96, 1001, masked=True),
        trained("large", 0.99, 4000, masked=True),
    ]
    (answer,) = answers(documents)
    assert (answer.topic, answer.figure) == ("accuracy", "+4.00 points")
    assert "wide 75% rigl: 95.00%" in answer.detail
    assert "means of 2 runs each" in answer.detail


def test_a_loss_is_said_as_plainly_as_a_gain() -> None:
    (answer,) = answers([trained("net", 0.9, 1000, masked=False), trained("wide", 0.8, 1000, masked=True)])
    assert answer.figure == "-10.00 points"


@pytest.mark.parametrize(("macs", "steps"), [(1100, 100), (1000, 200)])
def test_models_of_other_cost_or_longer_training_are_not_compared(macs: int, steps: int) -> None:
    documents = [trained("net", 0.9, 1000, masked=False), trained("wide", 0.95, macs, masked=True, steps=steps)]
    assert answers(documents) == []


def test_latency_names_both_baselines_and_where_each_ran() -> None:
    found = answers([read_document(str(OLDER / "benchmark.json"))])
    assert found
    assert all(answer.topic == "latency" and " on " in answer.detail for answer in found)
    assert any(
        "than the dense original" in answer.figure or "as the dense original" in answer.figure for answer in found
    )


def test_a_narrow_terminal_shows_answers_whole_and_sends_no_control_characters() -> None:
    detail = (
        "resnet18-wide.onnx on cpu: 46.3 ms; \x1b[2J.onnx on onnxruntime: 28.6 ms. Batch 1, 2 threads, interleaved."
    )
    console = PlainConsole(width=48, file=io.StringIO())
    for part in answer_table([Answer(topic="latency", figure="1.71x slower than the dense original", detail=detail)]):
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 48
    shown = " ".join(text.split())
    assert shown.startswith("latency 1.71x slower than the dense original resnet18-wide.onnx on cpu: 46.3 ms;")
    assert shown.endswith("Batch 1, 2 threads, interleaved.")
    assert "\x1b" not in text


def test_repeated_results_are_said_once() -> None:
    document = read_document(str(OLDER / "transform.json"))
    assert len(answers([document, document])) == len(answers([document])) == 1


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.0, "as fast"), (1.44, "1.44x slower"), (0.125, "8.0x faster"), (0.001, "1000x faster")]
)
def test_a_ratio_of_times_in_words(ratio: float, text: str) -> None:
    assert factor_text(ratio) == text


def test_the_best_gain_is_the_largest_difference() -> None:
    groups = [
        Group("a", 100, True, 5, (0.5,)),
        Group("b", 100, False, 5, (0.6,)),
        Group("c", 101, False, 5, (0.7,)),
    ]
    gain = best_gain(groups)
    assert gain is not None
    assert (gain[0].name, gain[1].name) == ("a", "c")
    # What a dense model reaches with more steps is what counts; one with fewer is no rival.
    more = [*groups, Group("longer", 100, True, 9, (0.65,)), Group("shorter", 100, True, 4, (0.9,))]
    assert [group.name for group in best_gain(more) or ()] == ["longer", "c"]


def test_an_evaluation_says_how_far_a_model_is_from_the_baseline_once_for_back_ends_that_agree() -> None:
    backends = ("cpu", "onnxruntime")
    report = EvaluationReport(
        data="d.npz", task="classification", examples=9, batch=3,
        runs=tuple(
            EvaluationRun(model=model, baseline=model == "net.onnx", backend=b, threads=1, metrics={"top1": 0.5})
            for model in ("wide.onnx", "net.onnx")
            for b in backends
        ),
        differences=tuple(
            MetricDifference(model="wide.onnx", baseline="net.onnx", backend=b, metric="top1", difference=0.02)
            for b in backends
        ),
    )  # fmt: skip
    document = Document("e.json", "evaluate", report)
    (answer,) = answers([document])
    assert (answer.topic, answer.figure) == ("accuracy", "top-1 2.00 points higher")
    assert "cpu" in answer.detail
    assert "onnxruntime" in answer.detail
    text = results_page([document])
    assert "9 examples of d.npz." in text
    assert "wide.onnx on cpu, against net.onnx: top-1 2.00 points higher." in text
