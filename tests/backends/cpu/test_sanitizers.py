from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CMAKE = shutil.which("cmake")

pytestmark = [
    pytest.mark.skipif(CMAKE is None or shutil.which("c++") is None, reason="needs cmake and a C++ compiler"),
    pytest.mark.slow,
]


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_native_kernel_tests_are_clean(sanitizer: str, tmp_path: Path) -> None:
    assert CMAKE is not None
    configure = [CMAKE, "-S", ROOT, "-B", tmp_path, "-DSIFT_NATIVE_TESTS=ON", f"-DSIFT_SANITIZE={sanitizer}"]
    subprocess.run(configure, check=True, capture_output=True)
    build = subprocess.run([CMAKE, "--build", tmp_path, "-j2"], check=False, capture_output=True, text=True)
    assert build.returncode == 0, build.stdout + build.stderr
    # The first report ends the program, and its status says so.
    options = {"UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1", "TSAN_OPTIONS": "halt_on_error=1"}
    tests = subprocess.run(
        [tmp_path / "kernel_tests"], check=False, capture_output=True, text=True, env=os.environ | options
    )
    assert tests.returncode == 0, tests.stdout + tests.stderr
