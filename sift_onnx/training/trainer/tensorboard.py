"""The figures of log lines for TensorBoard, where that is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sift_onnx.errors import MissingExtraError, OutputError

__all__ = ["tensorboard_log"]

# Fields of an event that are not figures over steps.
_NO_FIGURES = ("event", "step", "epoch", "examples")
_PREFIX = {"step": "train", "validation": "validation"}


@contextmanager
def tensorboard_log(folder: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that takes log lines, and writes their figures to ``folder`` as ``train/loss`` and so on.

    Raises:
        MissingExtraError: TensorBoard is not installed.
        OutputError: the folder cannot be written to.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("TensorBoard is not installed: pip install tensorboard") from error
    try:
        writer = SummaryWriter(str(folder))
    except OSError as error:
        raise OutputError(f"cannot write TensorBoard's files to {folder}: {error.strerror or error}") from error

    def note(event: Mapping[str, Any]) -> None:
        prefix = _PREFIX.get(event["event"])
        if prefix is None:
            return
        for name, value in event.items():
            if name not in _NO_FIGURES:
                writer.add_scalar(f"{prefix}/{name}", value, event["step"])
        writer.flush()

    try:
        yield note
    finally:
        writer.close()
