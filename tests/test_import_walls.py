"""Who may import whom: the contracts of pyproject.toml hold, and each of them breaks when its wall is climbed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = ROOT / "pyproject.toml"

# Imports every module of the rooms named on the command line; torch behaves as if it were not installed.
IMPORT_ALL_WITHOUT_TORCH = """
import importlib, pkgutil, sys
sys.modules["torch"] = None
for room in sys.argv[1:]:
    package = importlib.import_module(room)
    for module in pkgutil.walk_packages(package.__path__, room + "."):
        # An editable install has the folder of the sources on the package's path: its rooms appear a second time, and
        # would register their rules again. Adapters import what they are for, and some of that imports torch.
        again = ".sift_onnx." in module.name or ".passes.passes" in module.name or ".backends.backends" in module.name
        if not again and not {"training", "models", "hosts"} & set(module.name.split(".")):
            importlib.import_module(module.name)
print(*sorted(name for name in sys.modules if name.startswith("sift_onnx")))
"""

FOR_TYPES_ALONE = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import sift_onnx.files.file_bytes
"""


@pytest.fixture(scope="module")
def installed_layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources laid out as a wheel has them; the linter does not see through an editable install."""
    folder = tmp_path_factory.mktemp("layout")
    tables = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    for package, source in tables["tool"]["scikit-build"]["wheel"]["packages"].items():
        if (ROOT / source).is_dir():
            shutil.copytree(
                ROOT / source, folder / package, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
            )
    return folder


def lint(layout: Path) -> subprocess.CompletedProcess[str]:
    """Run the import linter on a layout; -S leaves the finder of an editable install out, which would come first."""
    paths = [str(layout), *(path for path in sys.path if path.endswith("-packages"))]
    command = "from importlinter.cli import lint_imports_command as lint; lint()"
    return subprocess.run(
        [sys.executable, "-S", "-c", command, "--config", str(PYPROJECT), "--no-cache"],
        cwd=layout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_import_stays_within_its_walls(installed_layout: Path) -> None:
    outcome = lint(installed_layout)

    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert " 0 broken" in outcome.stdout


@pytest.mark.parametrize(
    ("module", "planted", "complaint"),
    [
        ("errors", "import sift_onnx.model", "sift_onnx.errors is not allowed to import sift_onnx.model"),
        ("files/wire", "import sift_onnx.weights.sparse", "sift_onnx.files is not allowed to import sift_onnx.weights"),
        ("weights/sparse", "import sift_onnx.passes", "sift_onnx.weights.sparse -> sift_onnx.passes"),
        ("model", "def late():\n    import sift_onnx.cli", "sift_onnx.model is not allowed to import sift_onnx.cli"),
        (
            "analysis/planted",
            "from sift_onnx import reports",
            "sift_onnx.analysis is not allowed to import sift_onnx.reports",
        ),
        ("passes/planted", "import sift_onnx.cli.app", "sift_onnx.passes is not allowed to import sift_onnx.cli"),
        ("passes/planted", "import sift_onnx.backends", "sift_onnx.passes is not allowed to import sift_onnx.backends"),
        ("backends/planted", "from sift_onnx import passes", "backends is not allowed to import sift_onnx.passes"),
        ("passes/planted", "import sift_onnx.hosts.qonnx", "sift_onnx.passes is not allowed to import sift_onnx.hosts"),
        ("cli/planted", "from qonnx.core import modelwrapper", "sift_onnx.cli.planted -> qonnx"),
        ("weights/sparse", "import torch", "sift_onnx.weights.sparse -> torch"),
        ("cli/planted", "from torch import nn", "sift_onnx.cli.planted -> torch"),
        ("passes/planted", "import sift_onnx.models.resnet", "sift_onnx.passes is not allowed to import torch"),
        (
            "backends/lowering/planted",
            "import sift_onnx.backends.cpu.isa",
            "sift_onnx.backends.lowering is not allowed to import sift_onnx.backends.cpu",
        ),
        ("analysis/axes/system", "import onnx", "sift_onnx.analysis.axes is not allowed to import onnx"),
        # A room that no layer names.
        ("planted", "", "planted"),
    ],
)
def test_a_wall_that_is_climbed_is_reported(
    installed_layout: Path, tmp_path: Path, module: str, planted: str, complaint: str
) -> None:
    layout = tmp_path / "layout"
    shutil.copytree(installed_layout, layout)
    with (layout / "sift_onnx" / f"{module}.py").open("a", encoding="utf-8") as source:
        source.write(f"\n{planted}\n")

    outcome = lint(layout)

    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert complaint in outcome.stdout


@pytest.mark.parametrize(
    ("planted", "circle"),
    [
        (
            {"sparsity/draw": "import sift_onnx.shapes", "shapes/inference": "import sift_onnx.sparsity.draw"},
            "sift_onnx",
        ),
        ({"analysis/heads": "import sift_onnx.analysis.graph_analysis"}, "sift_onnx.analysis"),
        ({"analysis/findings": "import sift_onnx.analysis.rules.pooling"}, "sift_onnx.analysis"),
        ({"files/wire": "def late():\n    import sift_onnx.files.file_bytes"}, "sift_onnx.files"),
        ({"files/wire": FOR_TYPES_ALONE}, "sift_onnx.files"),
        ({"training/kernels/spatial/pooling": "import sift_onnx.training.importing.importer"}, "sift_onnx.training"),
    ],
)
def test_a_circle_is_reported(installed_layout: Path, tmp_path: Path, planted: dict[str, str], circle: str) -> None:
    layout = tmp_path / "layout"
    shutil.copytree(installed_layout, layout)
    for module, line in planted.items():
        with (layout / "sift_onnx" / f"{module}.py").open("a", encoding="utf-8") as source:
            source.write(f"\n{line}\n")

    outcome = lint(layout)

    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert f"No cycles are allowed in {circle}.\n" in outcome.stdout


def test_training_and_models_may_import_torch_and_nobody_below_may_import_them(
    installed_layout: Path, tmp_path: Path
) -> None:
    layout = tmp_path / "layout"
    shutil.copytree(installed_layout, layout)
    package = layout / "sift_onnx"
    (package / "training").mkdir(exist_ok=True)
    (package / "training" / "__init__.py").write_text("from sift_onnx.training.planted import torch\n")
    for room in ("training", "models"):
        (package / room / "planted.py").write_text("import torch\nimport sift_onnx.passes\n", encoding="utf-8")

    kept = lint(layout)
    (package / "shapes" / "planted.py").write_text("import sift_onnx.training\n", encoding="utf-8")
    broken = lint(layout)

    assert kept.returncode == 0, kept.stdout + kept.stderr
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "sift_onnx.shapes is not allowed to import sift_onnx.training" in broken.stdout


def import_all_without_torch(*rooms: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", IMPORT_ALL_WITHOUT_TORCH, *rooms], capture_output=True, text=True, check=False
    )


def test_core_passes_backends_and_verbs_import_without_torch() -> None:
    outcome = import_all_without_torch("sift_onnx", "sift_onnx.passes", "sift_onnx.backends")

    assert outcome.returncode == 0, outcome.stderr
    assert {"sift_onnx.errors", "sift_onnx.passes", "sift_onnx.cli.verbs.doctor", "sift_onnx.backends.cpu.isa"} <= set(
        outcome.stdout.split()
    )


def test_blocked_torch_is_really_missing() -> None:
    outcome = import_all_without_torch("sift_onnx.models.resnet")

    assert outcome.returncode == 1
    assert "import of torch halted" in outcome.stderr
