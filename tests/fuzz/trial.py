"""What is done with a case, and what counts as a finding."""

from __future__ import annotations

import io
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from fuzz.cases import OUTSIDE, lay_out
from sift_onnx import InferenceSession
from sift_onnx.cli import main
from sift_onnx.errors import SiftError
from sift_onnx.graphs.constants import array_of
from sift_onnx.model import Model

__all__ = ["STAGES", "FindingError", "Outcome", "try_file"]

STAGES = ("load", "inspect", "transform", "session")
_MOST_CHARACTERS = 2000
_EXIT_CODES = (0, 1, 2, 3, 4)


class FindingError(Exception):
    """Something that a user would call a defect."""


@dataclass
class Outcome:
    """How far a case came.

    Attributes:
        passed: the stages that went through; the others ended in a clean error.
        findings: what is wrong, with a traceback.
    """

    passed: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def try_file(content: bytes, number: int, say: Callable[[str], None] = lambda stage: None) -> Outcome:
    """Take a file through all stages; ``say`` is told what begins, for the case that it never returns."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        path = lay_out(Path(folder), content)
        for stage in STAGES:
            say(stage)
            try:
                with np.errstate(all="ignore"):
                    if _RUN[stage](path, Random(number)):
                        outcome.passed.append(stage)
            except BaseException:
                outcome.findings.append(f"{stage}: {traceback.format_exc()}")
    return outcome


def _load(path: Path, rng: Random) -> bool:
    try:
        model = Model.load(path)
        for constant in model.initializers().values():
            array_of(constant)
    except SiftError as error:
        _judge_message(str(error))
        return False
    return True


def _inspect(path: Path, rng: Random) -> bool:
    return _command("inspect", str(path), *rng.choice(((), ("--json", "-"))))


def _transform(path: Path, rng: Random) -> bool:
    target = path.with_name("out.onnx")
    family = rng.choice(("--wide", "--wide", "--wide", "--parallel", "--factorized", "--doped", "prune"))
    options = ["--pattern", rng.choice(("2:4", "block:2x2"))] if rng.random() < 0.2 else []
    options += ["--storage", rng.choice(("dense", "sparse"))]
    if family == "prune":
        done = _command("prune", str(path), str(target), "--sparsity", "0.75", *options)
    else:
        if family == "--wide" and not options[2:]:
            options += rng.choice(([], [], ["--init", "embed"], ["--budget", "layer"], ["--attention", "heads"]))
        done = _command("transform", str(path), str(target), family, rng.choice(("0.5", "0.75", "0.9")), *options)
    _judge_folder(path.parent, done)
    return done


def _session(path: Path, rng: Random) -> bool:
    try:
        InferenceSession(path, threads=1)
    except SiftError as error:
        _judge_message(str(error))
        return False
    return True


_RUN: dict[str, Callable[[Path, Random], bool]] = {
    "load": _load,
    "inspect": _inspect,
    "transform": _transform,
    "session": _session,
}


def _command(*arguments: str) -> bool:
    """Run ``sift-onnx`` in this process; whether it left with 0."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as end:
            code = end.code
    if code not in _EXIT_CODES:
        raise FindingError(f"exit code {code}: {err.getvalue()}")
    lines = err.getvalue().splitlines()
    said = [line for line in lines if not line.lower().startswith("warning: ")]
    for line in lines:
        _judge_message(line)
    if len(said) != bool(code):
        raise FindingError(f"exit code {code}, and {len(said)} lines of it: {said}")
    if not out.getvalue().replace("\n", "").isprintable():
        raise FindingError("control characters on stdout")
    return code == 0


def _judge_message(text: str) -> None:
    if not text.strip():
        raise FindingError("an error without a message")
    if not text.isprintable():
        raise FindingError(f"an error of several lines, or with control characters: {text!r}")
    if len(text) > _MOST_CHARACTERS:
        raise FindingError(f"an error of {len(text)} characters: {text[:300]}")


def _judge_folder(folder: Path, done: bool) -> None:
    """A command that failed leaves nothing, another one a model that can be read; neither brings in the outside."""
    made = [file for file in folder.iterdir() if file.name.startswith((".", "out.onnx"))]
    if any(file.name.endswith(".part") for file in made) or (made and not done):
        raise FindingError(f"left behind: {[file.name for file in made]}")
    for file in made:
        if OUTSIDE[:26] in file.read_bytes():
            raise FindingError("data from outside of the model's folder")
    if done:
        try:
            Model.load(folder / "out.onnx")
        except SiftError as error:
            raise FindingError(f"a model was written that cannot be read: {error}") from error
