"""Every command and every piece of code in README.md and docs/ runs as it is written there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from document_blocks import commands_outside, runnable

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Against what hangs: the README takes three minutes on two cores of its own, and ten on cores that others use too.
_SECONDS = 1800


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_runs(path: Path, tmp_path: Path) -> None:
    if not runnable(path.read_text(encoding="utf-8")):
        pytest.skip("nothing in it runs")
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = dict(
        os.environ,
        PATH=os.pathsep.join(folders),
        NO_COLOR="1",
        OMP_NUM_THREADS="1",
        PYTHONPATH=str(ROOT / "tests/support"),
    )
    script = Path(__file__).with_name("run_document.py")
    result = subprocess.run(
        [sys.executable, str(script), str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )

    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_command_is_out_of_reach(path: Path) -> None:
    assert commands_outside(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_reader_sees_all_that_runs(path: Path) -> None:
    assert "<!--" not in path.read_text(encoding="utf-8")


def test_blocks_are_found_in_order() -> None:
    fences = "```sh\ntrue\n```\n```python\nx = 1\n```\n\n```yaml a.yaml\nb: 1\n```\n```text\nno\n```\n"
    text = f"{fences}    sift-onnx doctor\n"

    assert [(block.language, block.name, block.text, block.line) for block in runnable(text)] == [
        ("sh", "", "true\n", 2),
        ("python", "", "x = 1\n", 5),
        ("yaml", "a.yaml", "b: 1\n", 9),
    ]
    assert commands_outside(text) == ["sift-onnx doctor"]
