"""Commands that are killed at a random moment, or find no room: whatever is at the target is whole.

pytest tests/test_kills.py -m full        100 kills of transform, 100 of train
"""

from __future__ import annotations

import errno
import importlib.util
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import linear, random_weight
from nets import Net

from sift_onnx.cli import main
from sift_onnx.errors import SiftError
from sift_onnx.model import Model
from sift_onnx.model_files import writer

# Long enough for any of the commands here on a busy machine.
_PATIENCE = 120


def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sift_onnx", *map(str, arguments), "-q"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload]


def run_here(*arguments: object) -> None:
    """Run a command to its end in this process."""
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments), "-q"])
    assert stop.value.code == 0


def kill_at(process: subprocess.Popen[bytes], folder: Path, moment: float, rng: random.Random) -> None:
    """Kill a command after some seconds, or shortly after it has begun to write."""
    begin, while_writing = time.monotonic(), rng.random() < 0.6
    while process.poll() is None and time.monotonic() - begin < moment + (_PATIENCE if while_writing else 0):
        if while_writing and any(folder.rglob("*.part")):
            time.sleep(rng.random() * 0.05)
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=_PATIENCE)


def large_net() -> onnx.ModelProto:
    """Matrices of 4 MB, which become 10 times as large."""
    sizes = {"stem": (50, 1000), "up": (1000, 1000), "down": (1000, 1000), "head": (1000, 50)}
    return linear({name: random_weight(*shape) for name, shape in sizes.items()})


def kill_transforms(folder: Path, kills: int, seed: int) -> int:
    """How many of the kills came before the command had ended."""
    rng = random.Random(seed)
    source, target, whole = folder / "in.onnx", folder / "out" / "wide.onnx", folder / "whole.onnx"
    target.parent.mkdir()
    onnx.save(large_net(), source)
    command = ["--wide", "0.9", "--force"]
    begin = time.monotonic()
    run_here("transform", source, whole, *command)
    seconds = 1 + time.monotonic() - begin  # and imports
    given, wanted = source.read_bytes(), whole.read_bytes()
    old: bytes | None = None
    hits = 0
    for number in range(kills):
        if number == kills // 2:
            old = given
            target.write_bytes(given)
        process = start("transform", source, target, *command)
        kill_at(process, target.parent, rng.random() * 1.1 * seconds, rng)
        hits += process.returncode == -signal.SIGKILL
        assert source.read_bytes() == given
        if target.exists():
            content = target.read_bytes()
            assert content in (wanted, old), f"kill {number} left a damaged file of {len(content)} bytes"
            if content == wanted:
                target.unlink()
                if old is not None:
                    target.write_bytes(old)
        elif old is not None:
            raise AssertionError(f"kill {number} took the old file away")
        for part in target.parent.glob(".*.part"):
            part.unlink()
    run_here("transform", source, target, *command)
    assert target.read_bytes() == wanted
    return hits


@pytest.mark.parametrize("kills", [pytest.param(3), pytest.param(100, marks=pytest.mark.full)])
def test_a_killed_transform_leaves_the_old_file_or_the_new_one(tmp_path: Path, kills: int) -> None:
    assert kill_transforms(tmp_path, kills, seed=kills) > kills // 4


def small_net() -> onnx.ModelProto:
    net = Net()
    net.tokens_end(net.op("Relu", net.tokens(64)), 64)
    return net.model()


RECIPE = """\
version: 1
training:
  epochs: 6
  batch_size: 16
  checkpoint_every: 2
  keep_checkpoints: 3
  optimizer: {type: adamw, lr: 1e-2}
  sparsity: {algorithm: rigl, sparsity: 0.5, update: {freq: 2}, param_filter: body.*}
"""


def kill_trainings(folder: Path, kills: int, seed: int) -> int:
    """How many kills came before a command had ended; every run that is over is compared with an undisturbed one."""
    from training.trainer.cases import arrays, classifier

    from sift_onnx.training.trainer.state.checkpoint import checkpoints_in, load_checkpoint

    rng = random.Random(seed)
    source, whole, target = classifier(folder / "in.onnx", norm=False), folder / "whole.onnx", folder / "out.onnx"
    arrays(folder / "data.npz")
    (folder / "recipe.yaml").write_text(RECIPE)
    checkpoints = folder / "out.onnx.checkpoints"
    command = ["--recipe", folder / "recipe.yaml", "--data", folder / "data.npz", "--device", "cpu"]
    begin = time.monotonic()
    run_here("train", source, whole, *command)
    seconds = 4 + time.monotonic() - begin  # and the import of torch
    hits = 0
    for number in range(kills):
        known = checkpoints_in(checkpoints) if checkpoints.is_dir() else []
        process = start("train", source, target, *command, *(["--resume", checkpoints] if known else []), "--force")
        kill_at(process, folder, (0.3 + 0.8 * rng.random()) * seconds, rng)
        hits += process.returncode == -signal.SIGKILL
        for path in checkpoints_in(checkpoints) if checkpoints.is_dir() else []:
            load_checkpoint(path)
        if target.exists():
            assert target.read_bytes() == whole.read_bytes(), f"kill {number} left a damaged model"
            for path in (target, *checkpoints.iterdir()):
                path.unlink()
    known = checkpoints_in(checkpoints) if checkpoints.is_dir() else []
    run_here("train", source, target, *command, *(["--resume", checkpoints] if known else []))
    assert target.read_bytes() == whole.read_bytes(), "a run that was killed and resumed differs from one that was not"
    return hits


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize("kills", [pytest.param(1), pytest.param(100, marks=pytest.mark.full)])
def test_a_killed_training_leaves_whole_checkpoints_and_resumes_bit_for_bit(tmp_path: Path, kills: int) -> None:
    assert kill_trainings(tmp_path, kills, seed=kills) >= kills // 4


@contextmanager
def files_limited_to(nbytes: int) -> Iterator[None]:
    """As on a full disk, writing fails in the middle of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refused(command: Callable[[], None], folder: Path) -> SiftError:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SiftError) as caught:
        command()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    return caught.value


@pytest.mark.parametrize("limit", [0, 1, 50_000, 300_000])
@pytest.mark.parametrize("data_file", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_a_full_disk_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, data_file: bool, old: bool
) -> None:
    if data_file:
        monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 100_000)
    model = Model.load(linear({"w": random_weight(300, 300)}))
    target = tmp_path / "m.onnx"
    if old:
        Model.load(linear({"w": np.eye(4, dtype=np.float32)})).save(target)
    with files_limited_to(limit):
        error = refused(lambda: model.save(target, force=True), tmp_path)
    assert os.strerror(errno.EFBIG) in str(error)


def test_a_full_disk_is_one_line_and_exit_code_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx.save(small_net(), tmp_path / "in.onnx")
    with files_limited_to(5000), pytest.raises(SystemExit) as stop:
        main(["transform", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--wide", "0.5"])
    assert stop.value.code == 2
    assert capfd.readouterr().err.splitlines() == [
        f"Error: cannot write {tmp_path / 'out.onnx'}: {os.strerror(errno.EFBIG)}"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx.save(small_net(), tmp_path / "in.onnx")
    with pytest.raises(SystemExit) as stop:
        main(["transform", str(tmp_path / "in.onnx"), "/sys/out.onnx", "--wide", "0.5"])
    assert stop.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("Error: cannot write /sys/out.onnx: ")
