"""The kernels, built by other compilers and for other processors, pass their native tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
AARCH64_LIBRARIES = Path("/usr/aarch64-linux-gnu")


def require(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def build(folder: Path, *definitions: str) -> Path:
    """The native tests; whatever the compiler warns of is an error."""
    options = ["-DSIFT_NATIVE_TESTS=ON", "-DCMAKE_CXX_FLAGS=-Werror", *definitions]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, *options], check=True, capture_output=True)
    done = subprocess.run(["cmake", "--build", folder, "-j2"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "kernel_tests"


@pytest.mark.slow
def test_clang_builds_kernels_that_pass(tmp_path: Path) -> None:
    require("cmake", "clang++")
    tests = build(tmp_path, "-DCMAKE_CXX_COMPILER=clang++")
    done = subprocess.run([tests], check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_kernels_for_aarch64_pass_in_an_emulator(tmp_path: Path) -> None:
    require("cmake", "aarch64-linux-gnu-g++", "qemu-aarch64")
    tests = build(
        tmp_path,
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
    )
    emulated = ["qemu-aarch64", "-L", AARCH64_LIBRARIES, tests]
    done = subprocess.run(emulated, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "instruction sets: neon portable"
