"""What goes wrong in any verb: one line, and an exit code that says whose fault it is."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from builders import linear, random_weight

from sift_onnx.backends.base import CompileOptions
from sift_onnx.cli import main
from sift_onnx.errors import UsageError
from sift_onnx.model import Model


def test_a_shortage_of_memory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    onnx.save(linear({"w": random_weight(4, 4)}), tmp_path / "m.onnx")

    def load(source: object) -> Model:
        raise MemoryError("Unable to allocate 1 TiB")

    monkeypatch.setattr(Model, "load", load)
    with pytest.raises(SystemExit) as stop:
        main(["inspect", str(tmp_path / "m.onnx")])
    assert stop.value.code == 3
    assert capfd.readouterr().err == "Error: there is not enough memory for this model (Unable to allocate 1 TiB)\n"


@pytest.mark.parametrize("threads", [0, -1, 10**9])
def test_a_number_of_threads_that_cannot_be_is_refused(threads: int) -> None:
    with pytest.raises(UsageError, match=f"threads is {threads}"):
        CompileOptions(threads)
