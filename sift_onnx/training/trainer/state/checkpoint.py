"""Checkpoints: whole or not there, loaded without pickle, and only into the run they belong to."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sift_onnx.errors import OutputError, UsageError
from sift_onnx.files.atomic import atomic_file
from sift_onnx.training.kernels.released_names import released_names
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.trainer.settings import TrainingSettings, first_difference

__all__ = [
    "check_same_recipe",
    "check_same_run",
    "checkpoints_in",
    "load_checkpoint",
    "model_identity",
    "newest_checkpoint",
    "prepare_folder",
    "save_checkpoint",
]

_VERSION = 2
_NAME = re.compile(r"step-(\d+)\.pt$")


def prepare_folder(folder: Path) -> None:
    """Make a folder for checkpoints.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder} for checkpoints: {error.strerror or error}") from error


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    found = {int(match[1]): path for path in folder.glob("step-*.pt") if (match := _NAME.match(path.name))}
    return [found[step] for step in sorted(found)]


def newest_checkpoint(folder: Path) -> Path:
    """The checkpoint to go on from.

    Raises:
        UsageError: there is none.
    """
    found = checkpoints_in(folder) if folder.is_dir() else []
    if not found:
        raise UsageError(
            f"`resume` {folder}: there is no checkpoint (step-*.pt); leave `resume` out to start from the beginning"
        )
    return found[-1]


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write ``step-<step>.pt``, then delete all but the newest ``keep``.

    The file takes its name only once it is complete and on the disk.

    Raises:
        OutputError: it cannot be written.
    """
    path = folder / f"step-{step:08d}.pt"
    data = io.BytesIO()
    torch.save({"version": _VERSION, "step": step, **state}, data)
    with atomic_file(path) as file:
        file.write(data.getbuffer())
    for old in checkpoints_in(folder)[:-keep]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint: tensors, numbers and strings only.

    Raises:
        UsageError: it cannot be read, or is none of this tool's.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # torch's unpickler raises whatever bytes make it raise
        raise UsageError(f"{path} is not a checkpoint, or is damaged; delete it to go on from an older one") from error
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        raise UsageError(f"{path} is not a checkpoint of this version")
    return state


def check_same_recipe(path: Path, state: Mapping[str, Any], settings: TrainingSettings) -> None:
    """Compare the settings of a training with those of the checkpoint that it resumes.

    Raises:
        UsageError: they differ in what is computed.
    """
    difference = first_difference(state["settings"], settings.telling())
    if difference is not None:
        raise UsageError(f"{path}: {difference}; resume with the recipe the run was started with")


def check_same_run(path: Path, state: Mapping[str, Any], identity: str, ranks: int, data: Any) -> None:
    """Compare a training with the one whose checkpoint it resumes.

    Args:
        path: of the checkpoint, for messages.
        state: that it has.
        identity: of the model, by :func:`model_identity`.
        ranks: how many train together.
        data: their fingerprint; None where it is not compared.

    Raises:
        UsageError: model, ranks or data are others.
    """
    if state["graph"] != identity:
        raise UsageError(f"{path} is of a run with another model; resume with the model it was started with")
    difference = None
    if state["ranks"] != ranks:
        difference = f"{state['ranks']} ranks in the saved run and {ranks} in this one"
    elif data is not None and state["data"] != data:
        difference = f"data of {state['data']} in the saved run and of {data} in this one"
    if difference is not None:
        raise UsageError(f"{path}: {difference}; resume with the data and the ranks the run was started with")


def model_identity(module: ImportedModule) -> str:
    """A hash of what the model computes, and of the names, types and shapes of its tensors."""
    digest = hashlib.sha256(released_names(module.code).encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
    return digest.hexdigest()
