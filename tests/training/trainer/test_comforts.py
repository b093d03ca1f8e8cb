"""Teachers, averages, best states, patience, losses of numbers, optimizers of torch, and interrupted runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from training.trainer.cases import arrays, classifier, examples, settings

import sift_onnx
from sift_onnx.errors import UsageError
from sift_onnx.training.trainer import InterruptedRun, train_file
from sift_onnx.training.trainer.batch import Batch
from sift_onnx.training.trainer.distillation import Teacher
from sift_onnx.training.trainer.losses import make_loss
from sift_onnx.training.trainer.optimization import make_optimizer
from sift_onnx.training.trainer.settings import DistillationSettings, OptimizerSettings
from sift_onnx.training.trainer.state.best_state import BestState
from sift_onnx.training.trainer.state.checkpoint import checkpoints_in
from sift_onnx.training.trainer.state.weight_average import WeightAverage

RIGL = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}, "param_filter": "body.*"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    classifier(tmp_path / "net.onnx", norm=False)
    arrays(tmp_path / "d.npz")
    return tmp_path


def run(folder: Path, out: str, *, data: Any = None, teacher: Path | None = None, **changes: Any) -> dict[str, Any]:
    own = {name: changes.pop(name) for name in ("stopping", "resume", "report") if name in changes}
    source = folder / "net.onnx"
    given = folder / "d.npz" if data is None else data
    document = train_file(source, folder / out, given, settings(**changes), device="cpu", teacher=teacher, **own)
    assert document is not None
    return document


def test_what_is_learned_from_a_teacher_is_the_formula_of_the_paper() -> None:
    student, taught = torch.randn(6, 3, requires_grad=True), torch.randn(6, 3)
    batch = Batch((torch.zeros(6, 1),), torch.randint(0, 3, (6,)))
    teacher = Teacher(_Constant(taught), DistillationSettings(temperature=4, weight=0.25), "classification")
    own, soft = functional.log_softmax(student / 4, 1), functional.softmax(taught / 4, 1)
    divergence = 16 * (soft * (soft.log() - own)).sum(1).mean()
    loss = make_loss("classification")(student, batch)
    torch.testing.assert_close(teacher.mixed(loss, student, batch), 0.75 * loss + 0.25 * divergence)


class _Constant(torch.nn.Module):
    def __init__(self, outputs: torch.Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outputs


def test_a_student_of_a_teacher_alone_comes_close_to_it(folder: Path) -> None:
    classifier(folder / "teacher.onnx", norm=True, width=16)
    document = run(folder, "taught.onnx", teacher=folder / "teacher.onnx", epochs=6, distillation={"weight": 1.0})
    assert document["teacher"] == str(folder / "teacher.onnx")
    x = torch.from_numpy(examples(64)[0])
    taught, before, after = (
        functional.log_softmax(sift_onnx.to_torch(folder / name).eval()(x) / 2, 1).detach()
        for name in ("teacher.onnx", "net.onnx", "taught.onnx")
    )
    far, near = (functional.kl_div(own, taught, log_target=True, reduction="batchmean") for own in (before, after))
    assert near < 0.8 * far


def test_a_teacher_that_does_not_fit_is_named(folder: Path) -> None:
    from training.trainer.cases import language_model

    language_model(folder / "words.onnx")
    with pytest.raises(UsageError, match=r"words.onnx takes tokens \(int64\), and the model x \(float32\)"):
        run(folder, "o.onnx", teacher=folder / "words.onnx")


def test_an_average_is_what_torch_averages() -> None:
    module = torch.nn.Linear(3, 2)
    average = WeightAverage(0.9, module.state_dict())
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for step in range(1, 120):
        with torch.no_grad():
            for param in module.parameters():
                param += torch.randn_like(param)
        average.update(module.state_dict())
        decay = min(0.9, (1 + step) / (10 + step))
        expected = {n: decay * own + (1 - decay) * module.state_dict()[n] for n, own in expected.items()}
    for name, tensor in average.state.items():
        torch.testing.assert_close(tensor, expected[name])
    pruned = average.masked({"weight": torch.tensor([[True, False, True], [False, True, True]])})
    assert pruned["weight"][0, 1] == pruned["weight"][1, 0] == 0
    assert torch.equal(pruned["bias"], average.state["bias"])


def test_the_average_is_written_within_the_masks(folder: Path) -> None:
    run(folder, "plain.onnx", epochs=3, sparsity=RIGL, kernels="sparse")
    run(folder, "average.onnx", epochs=3, sparsity=RIGL, kernels="sparse", ema=0.9)
    masks = [sift_onnx.masks(folder / name)["body.weight"] for name in ("plain.onnx", "average.onnx")]
    assert np.array_equal(*masks)  # it changes nothing of the training
    states = [sift_onnx.to_torch(folder / name).state_dict() for name in ("plain.onnx", "average.onnx")]
    assert not torch.equal(states[0]["head.weight"], states[1]["head.weight"])


def test_a_state_of_fewer_weights_is_better_than_a_dense_one() -> None:
    best = BestState()
    best.note(1, {"loss": 1.0, "accuracy": 0.9}, 100, dict)
    best.note(2, {"loss": 1.0, "accuracy": 0.5}, 50, dict)
    assert (best.step, best.without_gain) == (2, 0)
    best.note(3, {"loss": 9.0, "accuracy": 0.6}, 50, dict)
    best.note(4, {"loss": 0.1, "accuracy": 0.6}, 50, dict)
    assert (best.step, best.without_gain, best.figures["loss"]) == (3, 1, 9.0)
    of_loss = BestState()
    for step, loss in enumerate((2.0, 1.0, 1.5)):
        of_loss.note(step, {"loss": loss}, 1, dict)
    assert of_loss.step == 1


def test_what_is_written_did_best(folder: Path) -> None:
    accuracies: dict[int, float] = {}

    def report(event: dict[str, Any]) -> None:
        if event["event"] == "validation":
            accuracies[event["step"]] = event["accuracy"]

    # A rate at which it goes up and down.
    document = run(folder, "o.onnx", epochs=6, keep_best=True, optimizer={"lr": 0.5}, report=report)
    best = max(accuracies.values())
    assert document["validation"]["accuracy"] == best
    assert accuracies[document["best_step"]] == best
    x, y = examples(40, seed=1)
    right = sift_onnx.to_torch(folder / "o.onnx").eval()(torch.from_numpy(x)).argmax(1).numpy() == y
    assert right.mean() == pytest.approx(best)


def test_a_run_without_gain_ends(folder: Path) -> None:
    document = run(folder, "o.onnx", epochs=9, patience=2, optimizer={"lr": 1e-12})
    assert document["stopped_early"]
    assert document["steps"] == 3 * 4
    with pytest.raises(UsageError, match="patience needs validation data; the data has none"):
        run(folder, "p.onnx", patience=1, data=[(*examples(16),)])


@pytest.mark.parametrize("changes", [{"ema": 0.9}, {"keep_best": True, "patience": 5}], ids=["average", "best"])
def test_a_run_that_is_asked_to_stop_goes_on_with_the_same_bits(folder: Path, changes: dict[str, Any]) -> None:
    run(folder, "whole.onnx", epochs=3, sparsity=RIGL, **changes)
    asked: list[int] = []

    def stopping() -> bool:
        asked.append(1)
        return len(asked) == 7

    with pytest.raises(InterruptedRun, match="interrupted after step 7") as stopped:
        run(folder, "o.onnx", epochs=3, sparsity=RIGL, stopping=stopping, **changes)
    assert checkpoints_in(folder / "o.onnx.checkpoints") == [stopped.value.checkpoint]
    with pytest.raises(InterruptedRun) as stopped:
        run(folder, "o.onnx", epochs=3, stopping=lambda: True)
    assert stopped.value.checkpoint is None  # which would stand beside that of another run
    run(folder, "o.onnx", epochs=3, sparsity=RIGL, resume=folder / "o.onnx.checkpoints", **changes)
    assert (folder / "o.onnx").read_bytes() == (folder / "whole.onnx").read_bytes()


@pytest.mark.parametrize("name", ["mse", "l1", "huber"])
def test_losses_of_numbers(name: str) -> None:
    outputs, target = torch.randn(5, 1), torch.randn(5)
    batch = Batch((torch.zeros(5, 1),), target)
    formulas = {
        "mse": lambda d: (d**2).mean(),
        "l1": lambda d: d.abs().mean(),
        "huber": lambda d: torch.where(d.abs() < 1, d**2 / 2, d.abs() - 0.5).mean(),
    }
    torch.testing.assert_close(make_loss(name)(outputs, batch), formulas[name](outputs[:, 0] - target))
    with pytest.raises(UsageError, match=r"the model gives \[5, 2\], the data has \[5\]"):
        make_loss(name)(torch.randn(5, 2), batch)
    with pytest.raises(UsageError, match="needs floating-point targets, the data has int64"):
        make_loss(name)(outputs, Batch(batch.inputs, torch.zeros(5, dtype=torch.int64)))


def test_optimizers_of_torch_by_name() -> None:
    module = torch.nn.Linear(2, 2)
    made = make_optimizer(module, OptimizerSettings(type="rmsprop", lr=0.01, options={"alpha": 0.5}))
    assert isinstance(made, torch.optim.RMSprop)
    assert made.param_groups[0]["alpha"] == 0.5
    for type_, options, message in (
        ("adamm", {}, "optimizer 'adamm' is unknown; torch has"),
        ("LBFGS", {}, "computes the loss several times in a step"),
        ("Adam", {"alpha": 1}, "optimizer 'Adam': TypeError: .*see torch.optim.Adam"),
    ):
        with pytest.raises(UsageError, match=message):
            make_optimizer(module, OptimizerSettings(type=type_, options=options))
    with pytest.raises(UsageError, match="momentum is of sgd and adamw; write it under 'options' for 'RMSprop'"):
        OptimizerSettings(type="RMSprop", momentum=0.5)
