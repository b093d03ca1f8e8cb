"""The names of the package: imported when they are asked for, and said to need what is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
from click.testing import CliRunner

import sift_onnx
from sift_onnx.cli import main

# As if torch were not installed.
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import sift_onnx
from sift_onnx.errors import MissingExtraError
{use}
"""


def run(use: str) -> subprocess.CompletedProcess[str]:
    program = WITHOUT_TORCH.format(use=use)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["to_torch", "write_back"])
def test_what_needs_torch_says_so(name: str) -> None:
    done = run(f"try:\n    sift_onnx.{name}\nexcept MissingExtraError as error:\n    print(error)")
    assert done.stdout == f"{name} needs torch: pip install 'sift-onnx[train]'\n", done.stderr


def test_all_other_names_do_without_torch() -> None:
    done = run("print(all(hasattr(sift_onnx, n) for n in sift_onnx.__all__ if n not in ('to_torch', 'write_back')))")
    assert done.stdout == "True\n", done.stderr


def test_the_version_is_that_of_the_distribution_and_of_the_command() -> None:
    assert sift_onnx.__version__ == metadata.version("sift-onnx")
    assert "__version__" in dir(sift_onnx)
    assert CliRunner().invoke(main, ["--version"]).stdout == f"sift-onnx, version {sift_onnx.__version__}\n"
