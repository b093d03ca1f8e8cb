"""How many processors this process may use: what its affinity allows, within the quota of its control groups."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath

__all__ = ["allowed_processors", "cgroup_quota", "usable_processors"]

_OWN = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def usable_processors() -> int:
    """Threads that the process has processors for: as many as it may run on, and no more than its quota keeps busy.

    The one rule of the project: the default of every ``threads``.
    """
    allowed, quota = allowed_processors(), cgroup_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def allowed_processors() -> int:
    """Processors that the process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(own: Path = _OWN, root: Path = _MOUNT) -> float | None:
    """Processors' worth of time that the process's control groups and those above them allow; None without a limit.

    Args:
        own: where the process's groups are listed, as cgroups(7) says: ``ID:CONTROLLERS:PATH``, version 2 with ID 0.
        root: where the groups' files are mounted.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Where controllers are mounted together, some systems name the folder after one of them.
        mount = next((folder for name in (controllers, "cpu") if (folder := root / name).is_dir()), root)
        quotas += [_folder_quota(folder) for folder in _groups(mount, path)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(mount: Path, path: str) -> list[Path]:
    """Folders of a group and of those above it. Where the path is not below the mount, the mount is all there is."""
    inside = PurePosixPath(path.lstrip("/"))
    if ".." in inside.parts:
        return [mount]
    return [mount / folder for folder in (inside, *inside.parents)]


def _folder_quota(folder: Path) -> float | None:
    """The limit that one group sets, in processors: version 2's ``cpu.max`` or version 1's pair of files."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text()
    except OSError:
        return None
    return None if quota in {"max", "-1"} else int(quota) / int(period)
