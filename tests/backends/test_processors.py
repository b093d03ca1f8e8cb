"""How many threads a process starts where its user does not say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sift_onnx.backends import processors
from sift_onnx.backends.base import default_threads
from sift_onnx.backends.measure import host
from sift_onnx.backends.processors import cgroup_quota
from sift_onnx.cli.verbs.doctor import inspect_host


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {}, None),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "400000 100000\n"}, 1.0),
        ("0::/outside\n", {"cpu.max": "200000 100000\n"}, 2.0),
        (
            "3:cpu,cpuacct:/a\n0::/\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        (
            "3:cpu,cpuacct:/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
            None,
        ),
        (
            "3:cpu,cpuacct:/a/b\n",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "150000\n",
                "cpu,cpuacct/a/cpu.cfs_period_us": "50000\n",
                "cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            "3:cpu,cpuacct:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        ("0::/../../other\n", {"cpu.max": "300000 100000\n", "../other/cpu.max": "100000 100000\n"}, 3.0),
        ("0::/a\n", {"cpu.max": "400000 100000\n", "a/cpu.max": "max 100000\n"}, 4.0),
    ],
    ids=[
        "v2",
        "v2-unlimited",
        "v2-no-controller",
        "v2-nested",
        "v2-other-mount",
        "v1",
        "v1-unlimited",
        "v1-nested",
        "v1-named-after-one",
        "v2-above-the-mount",
        "v2-limited-above",
    ],
)
def test_cgroup_quota_is_the_tightest_of_the_groups_above(
    tmp_path: Path, own: str, files: dict[str, str], quota: float | None
) -> None:
    (tmp_path / "self").write_text(own)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") == quota


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (1.5, 2), (0.5, 1), (64.0, 8)])
def test_threads_are_the_allowed_processors_within_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(processors, "cgroup_quota", lambda: quota)
    assert processors.usable_processors() == threads
    assert default_threads() == threads
    assert inspect_host()["threads"] == threads
    assert host()["usable_processors"] == threads
    assert host()["affinity"] == 8


@pytest.fixture
def group_of_one_processor() -> Iterator[Path]:
    """A control group below the own one that may use one processor's time."""
    found = _cpu_controller()
    if found is None:
        pytest.skip("this system mounts no cpu controller")
    version, parent = found
    group = parent / f"sift-onnx-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        if version == 2:
            (group / "cpu.max").write_text("100000 100000")
        else:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("100000")
    except OSError as error:
        group.rmdir()
        pytest.skip(f"the group's quota cannot be set: {error}")
    yield group
    group.rmdir()


def _cpu_controller() -> tuple[int, Path] | None:
    """The version of control groups that limits processors here, and the folder of this process's own group."""
    for line in Path("/proc/self/cgroup").read_text().splitlines() if Path("/proc/self/cgroup").exists() else []:
        _, controllers, path = line.split(":", 2)
        mount = Path("/sys/fs/cgroup") / controllers
        if "cpu" in controllers.split(",") and (mount / "cpu.cfs_quota_us").exists():
            return 1, mount / path.lstrip("/")
        if not controllers and (mount / "cgroup.controllers").exists():
            return 2, mount / path.lstrip("/")
    return None


def test_a_process_in_a_real_group_of_one_processor_has_one_thread(group_of_one_processor: Path) -> None:
    program = """
import os, sys
open(os.path.join(sys.argv[1], "cgroup.procs"), "w").write(str(os.getpid()))
from sift_onnx.backends.base import CompileOptions, default_threads
from sift_onnx.backends.cpu.run.session import InferenceSession
from sparse_nets import SparseNet
net = SparseNet()
net.output(net.conv(net.input("x", 1, 4, 8, 8), 4, 4, 3))
print(default_threads(), InferenceSession(net.model()).threads)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    done = subprocess.run(
        [sys.executable, "-c", program, group_of_one_processor],
        capture_output=True, text=True, check=False, timeout=120, env=environment,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("1 1\n", 0), done.stderr
