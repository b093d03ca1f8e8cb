"""The verb ``train`` as a user calls it, and under the environment that torchrun makes."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import numpy as np
from training.trainer.cases import arrays, classifier
from training.trainer.stand_in_layers import StandIn

import sift_onnx
from sift_onnx.cli import main
from sift_onnx.training.trainer.kernels import layer_kernels

RECIPE = """\
version: 1
passes: [wide: {sparsity: 0.5, budget: layer}]
training:
  epochs: 2
  batch_size: 16
  optimizer: {type: adamw, lr: 1e-2, weight_decay: 0.05}
  schedule: {type: cosine, warmup: 2}
  clip_norm: 1.0
  checkpoint_every: 3
  sparsity: {algorithm: rigl, sparsity: 0.5, update: {freq: 2}, param_filter: body.*}
"""


def call(*args: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(args=[str(a) for a in args])
    return int(stop.value.code or 0)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn(["body.weight"])
    monkeypatch.setattr(layer_kernels, "sparsify_layers", found)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    classifier(tmp_path / "net.onnx", norm=False)
    arrays(tmp_path / "d.npz")
    (tmp_path / "r.yaml").write_text(RECIPE)
    return tmp_path


def arguments(folder: Path, out: str) -> list[object]:
    return [folder / "net.onnx", folder / out, "--recipe", folder / "r.yaml", "--data", folder / "d.npz"]


@pytest.mark.usefixtures("stand_in")
def test_one_recipe_transforms_and_trains(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("transform", folder / "net.onnx", folder / "w.onnx", "--recipe", folder / "r.yaml", "-q") == 0
    capfd.readouterr()
    command = ["train", folder / "w.onnx", folder / "o.onnx", "--recipe", folder / "r.yaml", "--data", folder / "d.npz"]
    assert call(*command, "--epochs", "3", "--log", folder / "log.jsonl", "--device", "cpu") == 0
    out, err = capfd.readouterr()
    assert f"{folder}/o.onnx: 12 steps" in out
    assert out.strip().endswith(f"Next: sift-onnx check {folder}/o.onnx")
    first, *epochs = err.splitlines()
    assert first == "The masked layer runs on sparse kernels."
    assert [re.sub(r"[\d.]+( s|%|,)", r"X\1", line) for line in epochs] == [
        f"epoch {n}/3: loss X, validation loss X, accuracy X%, X s" for n in (1, 2, 3)
    ]
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert {"start", "kernels", "step", "validation", "epoch", "checkpoint"} == {event["event"] for event in events}
    assert call("check", folder / "o.onnx") == 0


def test_json_and_resume(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("train", *arguments(folder, "o.onnx"), "--json", "-", "--device", "cpu") == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["schema"], document["steps"], document["ranks"]) == (1, 8, 1)
    assert document["sparsity"]["nnz"] * 2 == document["sparsity"]["numel"]
    assert document["cost"]["effective_macs"] < document["cost"]["macs"]
    assert [entry["step"] for entry in document["history"]["validations"]] == [4, 8]
    assert document["history"]["validations"][-1]["accuracy"] == document["validation"]["accuracy"]
    assert (
        call("train", *arguments(folder, "p.onnx"), "--resume", folder / "o.onnx.checkpoints", "--device", "cpu") == 0
    )
    assert (folder / "p.onnx").read_bytes() == (folder / "o.onnx").read_bytes()


def test_kernels_and_threads_are_options(folder: Path, capfd: pytest.CaptureFixture[str], stand_in: StandIn) -> None:
    base = [*arguments(folder, "o.onnx"), "--device", "cpu", "--force"]
    assert call("train", *base, "--kernels", "sparse", "--threads", 1, "-v") == 0
    out, err = capfd.readouterr()
    assert "examples/s, a dense model of as many multiply-accumulates by estimate" in out
    (told,) = [
        event for line in err.splitlines() if line.startswith("{") and (event := json.loads(line))["event"] == "kernels"
    ]
    assert told["layers"] == [{"name": "body.weight", "kernels": "sparse", "reason": "faster so: 1 ms against 2"}]
    assert call("train", *base, "--kernels", "dense", "--json", "-") == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert [line.partition(":")[0] for line in err.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    assert document["kernels"]["setting"] == "dense"
    assert document["kernels"]["layers"][0]["kernels"] == "dense"
    assert document["examples_per_second"] > 0
    assert document["original_examples_per_second_estimate"] is None
    assert call("train", *base, "-q") == 0
    assert capfd.readouterr().err == ""
    assert stand_in.asked == ["sparse", "auto"]


DATA = """\
import os, signal
import numpy as np

class Batches:
    def __len__(self):
        return 8

    def __iter__(self):
        x, y = (np.load(f"{os.path.dirname(__file__)}/d.npz")[name] for name in ("x", "target"))
        for i in range(8):
            if os.environ.get("KILLED_AT") == str(i):
                os.kill(os.getpid(), signal.SIGKILL)
            yield x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]

def batches():
    return Batches()
"""


def test_a_process_that_is_killed_goes_on_where_it_was(folder: Path) -> None:
    (folder / "data.py").write_text(DATA)
    recipe = RECIPE.replace("checkpoint_every: 3", "checkpoint_every: 2").replace("epochs: 2", "epochs: 1")
    (folder / "r.yaml").write_text(recipe)
    own = ["--recipe", folder / "r.yaml", "--data", f"{folder}/data.py:batches", "--device", "cpu", "-q"]
    program = "import sys; from sift_onnx.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "train", folder / "net.onnx", folder / "killed.onnx", *own]
    stop = random.Random(7).randrange(3, 8)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KILLED_AT": str(stop)}
    killed = subprocess.run([str(part) for part in command], env=environment, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (folder / "killed.onnx").exists()
    kept = sorted(path.name for path in (folder / "killed.onnx.checkpoints").iterdir())
    assert kept[-1] == f"step-{stop - stop % 2:08d}.pt"

    resume = ["--resume", folder / "killed.onnx.checkpoints"]
    assert call("train", folder / "net.onnx", folder / "killed.onnx", *own, *resume) == 0
    assert call("train", folder / "net.onnx", folder / "whole.onnx", *own) == 0
    assert (folder / "killed.onnx").read_bytes() == (folder / "whole.onnx").read_bytes()


INTERRUPTED = """
import os, signal
import numpy as np

def batches():
    data = np.load(os.path.join(os.path.dirname(__file__), "d.npz"))
    def train():
        for i in range(8):
            if i == 5 and not os.path.exists("again"):
                os.kill(os.getpid(), signal.SIGINT)
            yield data["x"][8 * i : 8 * i + 8], data["target"][8 * i : 8 * i + 8]
    return train()
"""


def test_an_interrupted_run_names_the_command_that_goes_on(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "data.py").write_text(INTERRUPTED)
    (folder / "r.yaml").write_text(
        RECIPE.replace("epochs: 2", "steps: 8").replace("checkpoint_every: 3", "log_every: 4")
    )
    options = ["--recipe", "r.yaml", "--data", "data.py:batches", "--device", "cpu"]
    assert call("train", "net.onnx", "o.onnx", *options, "--checkpoints", "kept ones") == 130
    err = capfd.readouterr().err.splitlines()
    assert "Interrupted after step 6; the newest checkpoint is kept ones/step-00000006.pt" in err
    assert err[-1] == "Interrupted."
    (command,) = (line.removeprefix("Go on with: ") for line in err if line.startswith("Go on with: "))
    assert "--resume 'kept ones'" in command
    (folder / "again").touch()
    program, *words = shlex.split(command)
    assert program == "sift-onnx"
    assert call(*words, "-q") == 0
    assert call("train", "net.onnx", "whole.onnx", *options, "-q") == 0
    assert (folder / "o.onnx").read_bytes() == (folder / "whole.onnx").read_bytes()


def test_figures_for_other_trackers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, list[tuple[dict[str, float], int]]] = {"wandb": [], "mlflow": []}
    ended: list[str] = []

    class Run:
        def log(self, figures: dict[str, float], step: int) -> None:
            logged["wandb"].append((figures, step))

        def finish(self) -> None:
            ended.append("wandb")

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            ended.append("mlflow")

    wandb, mlflow = types.ModuleType("wandb"), types.ModuleType("mlflow")
    wandb.init = lambda project: Run() if project == "digits" else None  # type: ignore[attr-defined]
    mlflow.start_run = Run  # type: ignore[attr-defined]
    mlflow.log_metrics = lambda figures, step: logged["mlflow"].append((figures, step))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    assert call("train", *arguments(folder, "o.onnx"), "--track", "wandb:digits", "--track", "mlflow", "-q") == 0
    assert logged["wandb"] == logged["mlflow"]
    names = {name for figures, _ in logged["wandb"] for name in figures}
    assert {"train/loss", "train/nnz", "validation/accuracy"} <= names
    assert sorted(ended) == ["mlflow", "wandb"]
    assert call("train", *arguments(folder, "p.onnx"), "--track", "excel", "-q") == 2


@pytest.mark.usefixtures("stand_in")
def test_figures_for_tensorboard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, log_dir: str) -> None:
            assert log_dir == str(folder / "board")

        def add_scalar(self, tag: str, value: float, global_step: int) -> None:
            written.append((tag, value, global_step))

        def flush(self) -> None:
            pass

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    stand_in = types.ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    (folder / "r.yaml").write_text(RECIPE + "  log_every: 2\n")
    assert call("train", *arguments(folder, "o.onnx"), "--tensorboard", folder / "board", "--device", "cpu", "-q") == 0
    assert {tag for tag, _, _ in written} == {
        *(
            f"train/{name}"
            for name in ("loss", "lr", "examples_per_second", "original_examples_per_second_estimate", "nnz")
        ),
        *(f"validation/{name}" for name in ("loss", "accuracy")),
        "closed",
    }
    assert [step for tag, _, step in written if tag == "train/loss"] == [2, 4, 6, 8]
    assert {value for tag, value, _ in written if tag == "train/nnz"} == {576}
    assert written[-1][0] == "closed"


def test_tensorboard_that_is_not_installed(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert call("train", *arguments(folder, "o.onnx"), "--tensorboard", folder / "board", "--device", "cpu") != 0
    err = capfd.readouterr().err
    assert "TensorBoard is not installed: pip install tensorboard; or use --log FILE" in err
    assert not (folder / "o.onnx").exists()


def test_mistakes_are_one_line_and_exit_code_2(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.yaml").write_text("version: 1\npasses: [wide]\n")
    base = ["train", folder / "net.onnx", folder / "o.onnx", "--data", folder / "d.npz"]
    for more, message in (
        ([], "give one of epochs and steps"),
        (["--recipe", folder / "bad.yaml"], "has no 'training'"),
        (["--epochs", 1, "--resume", folder / "c", "--checkpoints", folder / "c"], "leave --checkpoints out"),
        (["--epochs", 1, "--resume", folder / "c"], "there is no checkpoint"),
        (["--epochs", 1, "--device", "tpu9"], "--device 'tpu9'"),
        (["--epochs", 1, "--log", folder / "no" / "log"], "--log"),
    ):
        assert call(*base, *more) == 2
        err = capfd.readouterr().err
        assert err.startswith("Error: ")
        assert message in err
        assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_two_ranks_train_what_one_does(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "import sys; from sift_onnx.cli import main; main(sys.argv[1:])"
    common = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, "-c", program, "train", *map(str, arguments(folder, "two.onnx")), "--device", "cpu"]
    processes = [
        subprocess.Popen(
            command,
            env={**common, "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert ("8 steps" in results[0][0], results[1][0]) == (True, "")
    assert call("train", *arguments(folder, "one.onnx"), "--device", "cpu", "-q") == 0
    one, two = (sift_onnx.to_torch(folder / name) for name in ("one.onnx", "two.onnx"))
    for name, tensor in one.state_dict().items():
        np.testing.assert_allclose(two.state_dict()[name], tensor, rtol=1e-3, atol=1e-5, err_msg=name)
    for name, mask in one.masks.items():
        assert np.array_equal(mask, two.masks[name])
