"""The settings of a training and the table that describes them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from sift_onnx.training.trainer.settings import (
    DistillationSettings,
    OptimizerSettings,
    ScheduleSettings,
    TrainingSettings,
)

TABLE = Path(__file__).parents[3] / "docs" / "training.md"


def test_the_table_of_settings_has_each_setting_with_its_default() -> None:
    rows = [line.split("|")[1:3] for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    defaults = {name: default.strip(" `") for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    for field in dataclasses.fields(TrainingSettings):
        if field.name == "distillation":
            default: object = ""
        elif field.name in ("optimizer", "schedule"):
            default = {"optimizer": OptimizerSettings, "schedule": ScheduleSettings}[field.name]().type
        else:
            default = field.default
        shown = "" if field.name in ("epochs", "steps") else "none" if default in (None, ()) else str(default)
        assert defaults[field.name] == shown.removesuffix(".0"), field.name


_ROWS = (
    ("optimizer", OptimizerSettings),
    ("schedule", ScheduleSettings),
    ("distillation", DistillationSettings),
)


def test_the_table_of_settings_names_those_of_optimizers_and_schedules() -> None:
    text = TABLE.read_text(encoding="utf-8")
    for row, kind in _ROWS:
        (line,) = re.findall(rf"^\| `{row}` \|.*$", text, re.MULTILINE)
        assert {field.name for field in dataclasses.fields(kind)} - {"type"} <= set(re.findall(r"`(\w+)`", line))
