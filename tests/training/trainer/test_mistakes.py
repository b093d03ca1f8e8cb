"""What does not fit is said before any training."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from training.trainer.cases import arrays, classifier, examples, settings

from sift_onnx.errors import CheckError, SiftError, UnsupportedError, UsageError
from sift_onnx.quantization.quantize import quantize_model
from sift_onnx.training.trainer import TrainingSettings, train_file
from sift_onnx.training.trainer.batch import Batch
from sift_onnx.training.trainer.losses import make_loss
from sift_onnx.training.trainer.optimization import make_optimizer, rate_factor
from sift_onnx.training.trainer.settings import OptimizerSettings, ScheduleSettings

X, Y = examples(64)


def no_progress(step: int, total: int, loss: float) -> None:
    raise AssertionError("it trains")


def refused(tmp_path: Path, data: Any = None, **changes: Any) -> str:
    model = classifier(tmp_path / "net.onnx")
    data = arrays(tmp_path / "d.npz") if data is None else data
    with pytest.raises(SiftError) as caught:
        train_file(model, tmp_path / "o.onnx", data, settings(**changes), device="cpu", progress=no_progress)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "o.onnx").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparsity": {"algorithm": "rigel", "sparsity": 0.5}}, "'rigel' is unknown; choose one of"),
        ({"sparsity": {"sparsity": 0.5, "param_filter": "conv9.*"}}, "'conv9.*' matches no parameter"),
        ({"sparsity": {"sparsity": 0.9999, "param_filter": "stem.*"}}, "stem.weight"),
        ({"trainable": ["nothing*"]}, "'nothing*' matches no"),
        ({"amp": "float16"}, "amp float16 needs a CUDA device"),
        ({"epochs": None}, "give one of epochs and steps"),
        ({"steps": 5}, "give one of epochs and steps"),
        ({"batch_size": 100}, "has 64 examples, and batch_size is 100"),
        ({"accumulate": 3}, "choose a multiple of 3"),
        ({"loss": "next-token"}, "compares scores [N, tokens, vocabulary]"),
        ({"loss": "missing.py:f"}, "there is no file 'missing.py'"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in refused(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": X[:, :, :5]}, "is [examples, 1, 6, 6], the data has [64, 1, 5, 6]"),
        ({"x": X[:, 0]}, "the data has [64, 6, 6]"),
        ({"x": X.astype(str)}, "is float32, the data is <U"),
        ({"x": np.where(X > 2, np.nan, X)}, "not finite"),
        ({"target": Y[:50]}, "has to count 64 examples"),
        ({"target": Y.astype(np.float32)}, "needs integer targets"),
        ({"target": np.where(np.arange(64) == 63, 4, Y)}, "has the target 4; the model has 4 classes, 0 to 3"),
        ({"val_target": np.full(40, -1)}, "has the target -1"),
        ({"target": np.stack([Y, Y], 1)}, "the data has [16, 2]"),
        ({"label": Y}, "what is 'label'?"),
        ({"x": np.array([{}] * 64)}, "pickled objects, which are not loaded"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in refused(tmp_path, arrays(tmp_path / "bad.npz", **changes))


def test_files_that_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps([1]))
    for name in ("text", "pickle"):
        assert "it is not a file of numpy.savez" in refused(tmp_path, f"{tmp_path}/{name}.npz")
    assert "cannot read" in refused(tmp_path, f"{tmp_path}/none.npz")
    np.savez(tmp_path / "half.npz", val_x=X)
    assert "has no 'x'" in refused(tmp_path, f"{tmp_path}/half.npz")
    assert "write FILE.npz, a folder of images, hf:NAME, or FILE.py:FUNCTION" in refused(tmp_path, "digits")


@pytest.mark.parametrize(
    ("sparsity", "message"),
    [
        ({"algorithm": "rigel", "sparsity": 0.5}, "'rigel' is unknown"),
        ({"sparsity": 0.5, "param_filter": "conv9.*"}, "'conv9.*' matches no parameter"),
    ],
)
def test_a_sparsity_that_is_wrong_is_found_before_data_is_read(
    tmp_path: Path, sparsity: dict[str, Any], message: str
) -> None:
    (tmp_path / "own.py").write_text("def data(): raise AssertionError('it reads')\n")
    assert message in refused(tmp_path, f"{tmp_path}/own.py:data", sparsity=sparsity)


FUNCTIONS = """
def none(): return 5
def fails(): raise OSError("no network")
def empty(): return []
def parts(): return [(1, 2, 3)]
def keys(): return [{"image": 1}]
def names(): return {"trein": []}
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "int is not an iterable of batches"),
        ("fails", "the function fails: OSError: no network"),
        ("empty", "has no batches"),
        ("parts", "a batch has 3 parts; the model wants x, and then the target"),
        ("keys", "a batch has no 'x'; it has image"),
        ("names", "the mapping has 'trein'; it needs 'train'"),
        ("absent", "has no function 'absent'; it has none, fails, empty and 3 more"),
    ],
)
def test_functions_that_do_not_fit(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "own.py").write_text(FUNCTIONS)
    assert message in refused(tmp_path, f"{tmp_path}/own.py:{name}")


def test_a_file_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import nothing_of_this_name")
    assert "does not load: ModuleNotFoundError" in refused(tmp_path, f"{tmp_path}/own.py:f")


def test_an_iterator_is_read_once_only(tmp_path: Path) -> None:
    assert "can be read once only" in refused(tmp_path, iter([(X, Y)]))


def test_a_loss_that_becomes_nan_stops_the_run_and_names_the_step(tmp_path: Path) -> None:
    model = classifier(tmp_path / "net.onnx", norm=False)
    chosen = settings(epochs=50, optimizer={"lr": 1e9}, schedule="constant")
    with pytest.raises(CheckError, match=r"step [1-9]\d*: the loss is (nan|inf).*lower optimizer.lr"):
        train_file(model, tmp_path / "o.onnx", arrays(tmp_path / "d.npz"), chosen, device="cpu")
    assert not (tmp_path / "o.onnx").exists()


@pytest.mark.parametrize("validates", [True, False])
def test_a_loss_that_is_nan_after_the_last_step_stops_the_run(tmp_path: Path, validates: bool) -> None:
    model = classifier(tmp_path / "net.onnx", norm=False)
    data = arrays(tmp_path / "d.npz") if validates else [(X[:32], Y[:32])]
    chosen = settings(epochs=None, steps=1, batch_size=32, optimizer={"lr": 1e30}, schedule="constant")
    what = "validation loss" if validates else "loss on the last batch"
    with pytest.raises(CheckError, match=rf"after step 1: the {what} is (nan|inf); try a lower optimizer.lr"):
        train_file(model, tmp_path / "o.onnx", data, chosen, device="cpu")
    assert not (tmp_path / "o.onnx").exists()


def test_an_optimizer_that_computes_beyond_float32_stops_the_run(tmp_path: Path) -> None:
    model = classifier(tmp_path / "net.onnx", norm=False)
    chosen = settings(optimizer={"type": "adamw", "lr": 3e38}, schedule="constant")
    with pytest.raises(CheckError, match=r"step 0: the optimizer computes a number .* float32.*lower optimizer.lr"):
        train_file(model, tmp_path / "o.onnx", arrays(tmp_path / "d.npz"), chosen, device="cpu")


def test_a_loss_that_is_nan_from_the_start_is_found_before(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def nan(outputs, target): return outputs.sum() * float('nan')\n")
    assert "untrained model on the first batch is nan" in refused(tmp_path, loss=f"{tmp_path}/own.py:nan")


@pytest.mark.parametrize("form", ["dynamic", "qdq", "qoperator"])
def test_a_quantized_model_is_refused(tmp_path: Path, form: Any) -> None:
    original, model = classifier(tmp_path / "net.onnx", norm=False), tmp_path / "q.onnx"
    how: dict[str, Any] = {"dynamic": True} if form == "dynamic" else {"data": [(X, Y)], "format": form}
    quantize_model(original, measure=False, **how).model.save(model)
    with pytest.raises(UnsupportedError, match=r"quantized \('stem.weight_quantized', ...\); train it before"):
        train_file(model, tmp_path / "o.onnx", arrays(tmp_path / "d.npz"), settings(), progress=no_progress)


def test_what_is_named_is_trained_in_a_quantized_model(tmp_path: Path) -> None:
    original, model = classifier(tmp_path / "net.onnx", norm=False), tmp_path / "q.onnx"
    kept = quantize_model(original, [(X, Y)], measure=False, keep_float=["head.weight"])
    kept.model.save(model)
    events: list[dict[str, Any]] = []
    chosen = settings(trainable=["head.*"], epochs=1)
    data = arrays(tmp_path / "d.npz")
    train_file(model, tmp_path / "o.onnx", data, chosen, device="cpu", report=events.append)
    (warning,) = (event["text"] for event in events if event["event"] == "warning")
    assert "('stem.weight_quantized', ...) and stay as they are" in warning
    before, after = (
        {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
        for path in (model, tmp_path / "o.onnx")
    )
    changed = {name for name, values in before.items() if not np.array_equal(values, after[name])}
    assert changed == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"epoch": 3}, "did you mean 'epochs'?"),
        ({"optimizer": {"rate": 1}}, "optimizer has no setting 'rate'"),
        ({"optimizer": {"type": "lion"}}, "optimizer 'lion' is unknown; torch has ASGD"),
        ({"optimizer": {"lr": "fast"}}, "optimizer.lr is 'fast'; write a number above 0"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr is 0; write a number above 0"),
        ({"optimizer": {"lr": "nan"}}, "optimizer.lr is 'nan'; write a number above 0"),
        ({"optimizer": {"lr": 1e39}}, "optimizer.lr is 1e+39; write a number above 0 that float32 can hold"),
        ({"optimizer": {"weight_decay": 1e39}}, "optimizer.weight_decay is 1e+39; write a number, 0 or more"),
        ({"optimizer": {"type": "RMSprop", "options": {"alpha": 1e39}}}, "options.alpha is 1e+39; float32 cannot"),
        ({"optimizer": {"type": "Rprop", "options": {"etas": [0.5, 1e39]}}}, "options.etas[1] is 1e+39; float32"),
        ({"optimizer": {"betas": [0.9]}}, "write a list of 2"),
        ({"optimizer": {"momentum": 0}}, "needs a momentum"),
        ({"optimizer": 3}, "write a mapping"),
        ({"schedule": {"type": "step"}}, "needs one of 'every' and 'milestones'"),
        ({"schedule": {"warmup": -1}}, "schedule.warmup is -1"),
        ({"epochs": 0}, "epochs is 0; write a whole number, 1 or more"),
        ({"epochs": 2.5}, "epochs is 2.5; write a whole number, 1 or more"),
        ({"epochs": True}, "epochs is True; write a whole number, 1 or more"),
        ({"loss": "hinge"}, "choose classification, next-token, mse, l1, huber, or write"),
        ({"amp": "fp8"}, "choose one of off, bfloat16, float16"),
        ({"parallelism": "fsdp"}, "choose one of ddp, fsdp2"),
        ({"clip_norm": -1}, "clip_norm is -1"),
    ],
)
def test_recipes_that_are_wrong(recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        TrainingSettings.of_recipe(recipe, "r.yaml")
    assert str(caught.value).startswith(("r.yaml, training: ", "r.yaml, training has no setting 'epoch'"))
    assert message in str(caught.value)


def test_yaml_reads_off_as_no(tmp_path: Path) -> None:
    assert TrainingSettings.of_recipe({"amp": False, "optimizer": {"lr": "1e-3"}}).optimizer.lr == 0.001


def test_norms_and_biases_have_no_weight_decay() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    decayed, free = make_optimizer(module, OptimizerSettings("adamw", 0.1, weight_decay=0.3)).param_groups
    assert ([p.shape for p in decayed["params"]], decayed["weight_decay"]) == ([(4, 3)], 0.3)
    assert (len(free["params"]), free["weight_decay"]) == (3, 0.0)


def test_schedules() -> None:
    def rates(settings: ScheduleSettings, total: int = 10) -> list[float]:
        return [round(rate_factor(settings, step, total), 3) for step in range(total)]

    assert rates(ScheduleSettings("constant", warmup=4), 6) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert rates(ScheduleSettings("step", every=2, gamma=0.5), 5) == [1, 1, 0.5, 0.5, 0.25]
    assert rates(ScheduleSettings("step", milestones=(1, 3)), 4) == [1, 0.1, 0.1, 0.01]
    cosine = rates(ScheduleSettings("cosine", final=0.2))
    assert cosine[0] == 1
    assert cosine[5] == 0.6
    assert cosine == sorted(cosine, reverse=True)
    assert rate_factor(ScheduleSettings("cosine", final=0.2), 10, 10) == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["classification", "next-token"])
def test_a_first_output_that_is_no_tensor_is_refused(name: str) -> None:
    loss, batch = make_loss(name), Batch((torch.zeros(2, 3),), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(UsageError, match="the first output of the model is a list"):
        loss(([torch.zeros(2, 3)], torch.zeros(2)), batch)
