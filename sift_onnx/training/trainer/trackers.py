"""Figures of log lines for experiment trackers, where they are installed: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sift_onnx.errors import MissingExtraError, OutputError, UsageError
from sift_onnx.plugins import first_line

__all__ = ["TRACKERS", "Track", "open_tracker"]

# Takes figures by name, and the step that they are of.
Track = Callable[[Mapping[str, float], int], None]

# Fields of an event that are not figures over steps.
_NO_FIGURES = ("event", "step", "epoch", "examples")
_PREFIX = {"step": "train", "validation": "validation"}


@contextmanager
def open_tracker(spec: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that takes log lines, and hands their figures on as ``train/loss`` and so on.

    Args:
        spec: ``tensorboard:DIR``, ``wandb[:PROJECT]`` or ``mlflow[:EXPERIMENT]``.

    Raises:
        UsageError: there is no such tracker.
        MissingExtraError: it is not installed.
        OutputError: it cannot be written to.
    """
    name, _, where = spec.partition(":")
    if name not in TRACKERS:
        raise UsageError(f"tracker {name!r} is unknown; choose {', '.join(TRACKERS)}")
    with TRACKERS[name](where) as track:

        def note(event: Mapping[str, Any]) -> None:
            prefix = _PREFIX.get(event["event"])
            if prefix is not None:
                figures = {key: value for key, value in event.items() if key not in _NO_FIGURES}
                track({f"{prefix}/{key}": value for key, value in figures.items()}, event["step"])

        yield note


@contextmanager
def _tensorboard(where: str) -> Iterator[Track]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("TensorBoard is not installed: pip install tensorboard") from error
    folder = Path(where or "runs")
    try:
        writer = SummaryWriter(str(folder))
    except OSError as error:
        raise OutputError(f"cannot write TensorBoard's files to {folder}: {error.strerror or error}") from error

    def track(figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    try:
        yield track
    finally:
        writer.close()


@contextmanager
def _wandb(where: str) -> Iterator[Track]:
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError("Weights & Biases is not installed: pip install wandb") from error
    try:
        run = wandb.init(project=where or "sift-onnx")
    except Exception as error:  # of the network, or of the account
        raise OutputError(f"Weights & Biases does not start a run: {first_line(error)}") from error
    try:
        yield lambda figures, step: run.log(dict(figures), step=step)
    finally:
        run.finish()


@contextmanager
def _mlflow(where: str) -> Iterator[Track]:
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtraError("MLflow is not installed: pip install mlflow") from error
    try:
        if where:
            mlflow.set_experiment(where)
        run = mlflow.start_run()
    except Exception as error:  # of the server, or of the file system
        raise OutputError(f"MLflow does not start a run: {first_line(error)}") from error
    with run:
        yield lambda figures, step: mlflow.log_metrics(dict(figures), step=step)


TRACKERS: dict[str, Callable[[str], AbstractContextManager[Track]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
