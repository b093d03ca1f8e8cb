"""A run as events of Chrome's trace format: times in microseconds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from sift_onnx.backends.cpu.lower.placements import KERNELS, ONNXRUNTIME
from sift_onnx.backends.cpu.run.numpy_program import NUMPY, NumpyProgram
from sift_onnx.backends.cpu.run.parts import PartTime
from sift_onnx.backends.cpu.run.region_program import RegionProgram

__all__ = ["trace_events"]


def trace_events(times: Sequence[PartTime]) -> list[dict[str, Any]]:
    """One run that has just ended: an event for it, one per part, one per step of the regions.

    Args:
        times: of its parts, relative to the begin of the run.
    """
    total = max((part.start + part.seconds for part in times), default=0.0)
    origin = time.perf_counter() - total
    events = [_event("Session", "model_run", origin, total, {})]
    for number, part in enumerate(times):
        runner = part.program
        on_kernels, by_numpy = isinstance(runner, RegionProgram), isinstance(runner, NumpyProgram)
        where = KERNELS if on_kernels else NUMPY if by_numpy else ONNXRUNTIME
        name = f"part {number} ({where})"
        events.append(_event("Part", name, origin + part.start, part.seconds, {}))
        if not isinstance(runner, RegionProgram):
            continue
        for step in part.steps:
            if step.step is None:
                label, arguments = "reorder", {"op_name": "Reorder"}
            else:
                label = runner.region.names[step.step]
                arguments = {
                    "op_name": runner.region.ops[step.step],
                    "kernel": runner.kernel_name(step),
                }
            start = origin + part.start + step.start
            shown = arguments | {"provider": "kernels", "shape": "x".join(map(str, step.shape))}
            events.append(_event("Node", label, start, step.seconds, shown))
    return events


def _event(category: str, name: str, start: float, seconds: float, arguments: dict[str, str]) -> dict[str, Any]:
    return {
        "cat": category,
        "name": name,
        "ph": "X",
        "ts": start * 1e6,
        "dur": seconds * 1e6,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "args": arguments,
    }
