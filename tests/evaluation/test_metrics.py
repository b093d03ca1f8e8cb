"""Metrics against torchless formulas of their own, and tasks told by shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.datasets.batches import ArrayBatch
from sift_onnx.errors import UsageError
from sift_onnx.evaluation.metrics import default_metrics, make_metric
from sift_onnx.evaluation.task import task_of

X = np.zeros((4, 3), np.float32)


def figure(name: str, task: str, scores: np.ndarray, target: object, inputs: np.ndarray = X) -> float:
    metric = make_metric(name, task)  # type: ignore[arg-type]
    metric.update([scores], ArrayBatch((inputs,), target))
    return metric.compute()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 7), st.integers(1, 9))
def test_accuracy_is_that_of_a_stable_sort(seed: int, classes: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    # Of few values, so that many scores are equal, as those of quantized models are.
    scores = rng.integers(0, 3, (count, classes)).astype(np.float32)
    target = rng.integers(0, classes, count)
    order = np.argsort(-scores, axis=1, kind="stable")
    for name, most in (("top1", 1), ("top5", 5)):
        expected = np.mean([t in row[:most] for t, row in zip(target, order, strict=True)])
        assert figure(name, "classification", scores, target) == pytest.approx(expected)


def test_a_model_that_says_nothing_is_right_once_in_each_class() -> None:
    assert figure("top1", "classification", np.zeros((4, 4), np.float32), np.arange(4)) == 0.25


def test_the_loss_is_a_cross_entropy_of_logits_or_of_probabilities() -> None:
    logits = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32) + 100
    target = np.array([0, 2, 1, 1, -100])
    shares = np.exp(logits - 100) / np.exp(logits - 100).sum(1, keepdims=True)
    expected = -np.log(shares[np.arange(4), target[:4]]).mean()
    for scores in (logits, shares):
        assert figure("loss", "classification", scores, target) == pytest.approx(expected, rel=1e-5)


def test_perplexity_is_of_the_next_token() -> None:
    tokens = np.array([[0, 1, 2], [2, 2, 0]])
    scores = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    own = [shares[n, t, tokens[n, t + 1]] for n in range(2) for t in range(2)]
    expected = np.exp(-np.log(own).mean())
    assert figure("perplexity", "next-token", scores, None, tokens) == pytest.approx(expected, rel=1e-5)


def test_errors_of_numbers() -> None:
    output, target = np.array([[1.0], [3.0]]), np.array([2.0, 1.0], np.float32)
    assert figure("mse", "regression", output, target) == 2.5
    assert figure("mae", "regression", output, target) == 1.5


@pytest.mark.parametrize(
    ("output", "target", "task"),
    [
        ((4, 7), np.zeros(4, np.int64), "classification"),
        ((4, 7, 2, 2), np.zeros((4, 2, 2), np.uint8), "classification"),
        ((4, 3, 9), None, "next-token"),
        ((4, 3, 9), np.zeros((4, 3), np.int32), "next-token"),
        ((4, 1), np.zeros(4, np.float32), "regression"),
    ],
)
def test_shapes_tell_the_task(output: tuple[int, ...], target: np.ndarray | None, task: str) -> None:
    tokens = np.zeros((4, 3), np.int64)
    assert task_of(np.zeros(output, np.float32), ArrayBatch((tokens,), target)) == task


def test_what_fits_no_task_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"first output is \[4, 7\] and the data has no target.*metric='FILE.py:NAME'"):
        task_of(np.zeros((4, 7)), ArrayBatch((X,), None))
    with pytest.raises(UsageError, match="target 7; the model has 3 classes, 0 to 2"):
        figure("top1", "classification", np.zeros((1, 3)), np.array([7]))
    with pytest.raises(UsageError, match="metric 'acc' is unknown; choose top1"):
        make_metric("acc", "classification")
    with pytest.raises(UsageError, match="perplexity is of models that predict the next token"):
        make_metric("perplexity", "classification")
    assert default_metrics("classification", 4) == ("top1", "loss")


OWN = """
class Total:
    def __init__(self):
        self.seen = 0
    def update(self, outputs, target):
        self.seen += outputs.sum()
    def compute(self):
        return self.seen

def half(outputs, target):
    return 0.5 * len(target) / len(target)

def fails(outputs, target):
    raise KeyError("no")

def words(outputs, target):
    return "good"
"""


def test_metrics_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    scores, target = np.ones((4, 3)), np.zeros(4, np.int64)
    assert figure(f"{tmp_path}/own.py:Total", "classification", scores, target) == 12
    assert figure(f"{tmp_path}/own.py:half", "classification", scores, target) == 0.5
    with pytest.raises(UsageError, match="fails: KeyError: 'no'"):
        figure(f"{tmp_path}/own.py:fails", "classification", scores, target)
    with pytest.raises(UsageError, match="gives a str; it has to give a number"):
        figure(f"{tmp_path}/own.py:words", "classification", scores, target)
