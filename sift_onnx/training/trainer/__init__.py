"""Training of ONNX models from a recipe: data, losses, optimizers, checkpoints and the loop."""

from sift_onnx.training.trainer.data import DataSource, load_data
from sift_onnx.training.trainer.loop import InterruptedRun, Trainer
from sift_onnx.training.trainer.settings import (
    DistillationSettings,
    OptimizerSettings,
    ScheduleSettings,
    TrainingSettings,
)
from sift_onnx.training.trainer.train_file import train_file

__all__ = [
    "DataSource",
    "DistillationSettings",
    "InterruptedRun",
    "OptimizerSettings",
    "ScheduleSettings",
    "Trainer",
    "TrainingSettings",
    "load_data",
    "train_file",
]
