"""What a user's function gives as data, and what is said if it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sift_onnx.datasets.parts import read_part
from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec

SPECS = (TensorSpec("x", np.dtype(np.float32), ("n", 2)),)
BATCH = (np.zeros((4, 2), np.float32), np.zeros(4, np.int64))


def loader() -> Iterator[Any]:
    yield BATCH
    raise OSError("disk is gone\nfor good")


def test_a_loader_that_fails_is_named_and_not_taken_for_its_reader() -> None:
    batches = read_part(loader, SPECS, "validation").batches
    assert next(batches).size == 4
    with pytest.raises(UsageError, match=r"^the data: the next batch fails: OSError: disk is gone$"):
        next(batches)


def test_a_part_that_is_missing_is_replaced_by_the_training_part() -> None:
    assert read_part({"train": [BATCH]}, SPECS, "validation").label == "the data, training part"
    assert read_part({"validation": [BATCH]}, SPECS, "validation").label == "the data, validation"


@pytest.mark.parametrize(
    ("given", "part", "message"),
    [
        ({"trein": [BATCH]}, "train", "the mapping has 'trein'; it needs 'train'$"),
        ({"x": BATCH[0]}, "validation", "the mapping has 'x'; it needs 'validation' or 'train'$"),
        ({}, "validation", "the mapping has nothing; it needs"),
        ({"train": 3}, "train", "int is not an iterable of batches"),
    ],
)
def test_a_mapping_of_other_names_is_refused(given: Any, part: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_part(given, SPECS, part)


def test_no_name_of_data_is_no_folder() -> None:
    with pytest.raises(UsageError, match=r"`data` is empty; write FILE\.py:FUNCTION"):
        read_part("", SPECS, "train")


def test_a_file_that_ends_the_program_does_not(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"the file does not load: RuntimeError: it ends the program by sys.exit\(3\)"):
        read_part(f"{tmp_path}/own.py:data", SPECS, "train")
