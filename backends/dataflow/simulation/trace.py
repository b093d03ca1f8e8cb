"""A run as trace events, for chrome://tracing and Perfetto.

A microsecond of the trace is one cycle, so that durations are exact. A layer is a process; its threads are grid
columns, or cores where events were followed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sift_onnx.backends.dataflow.cycles.event_log import EventLog
from sift_onnx.backends.dataflow.cycles.layer_result import LayerResult
from sift_onnx.backends.dataflow.simulation.result import Simulation
from sift_onnx.errors import OutputError

__all__ = ["WrittenTrace", "trace_document", "write_trace"]

Event = dict[str, Any]


@dataclass(frozen=True)
class WrittenTrace:
    """How many events a trace holds, and how many more there were."""

    events: int
    dropped: int


def write_trace(path: str | Path, simulation: Simulation, max_events: int = 200_000) -> WrittenTrace:
    """Write the trace of ``simulation`` as JSON.

    Args:
        path: the file; overwritten.
        simulation: what was run.
        max_events: events at most; later ones are dropped, and counted in ``otherData`` and in what is returned.

    Raises:
        OutputError: the file cannot be written.
    """
    document = trace_document(simulation, max_events)
    try:
        Path(path).write_text(json.dumps(document), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the trace {str(path)!r}: {error.strerror}") from error
    return WrittenTrace(document["otherData"]["events"], document["otherData"]["dropped"])


def trace_document(simulation: Simulation, max_events: int) -> dict[str, Any]:
    """The trace as a JSON document; see :func:`write_trace`."""
    names: list[Event] = []
    events: list[Event] = []
    dropped = 0
    start = 0
    for number, layer in enumerate(simulation.layers, 1):
        label = f"{layer.name} ({layer.step})" if layer.step != "forward" else layer.name
        names.append({"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": label}})
        for event in _layer_events(layer, number, start):
            if len(events) < max_events:
                events.append(event)
            else:
                dropped += 1
        if layer.events is not None:
            dropped += layer.events.dropped
        start += layer.cycles
    return {
        "traceEvents": names + events,
        "displayTimeUnit": "ns",
        "otherData": {
            "model": simulation.model,
            "machine": simulation.machine.name,
            "time_unit": "1 us in this trace is 1 cycle",
            "events": len(events),
            "dropped": dropped,
        },
    }


def _layer_events(layer: LayerResult, pid: int, start: int) -> Iterator[Event]:
    details = {"bound": layer.bound, "utilization": layer.utilization, "nnz": layer.nnz, "limits": dict(layer.limits)}
    yield _span(pid, 0, layer.op, "layer", start, layer.cycles, details)
    if layer.events is not None:
        yield from _core_events(layer.events, pid, start)
        return
    for column, busy in enumerate(layer.column_busy.tolist()):
        if busy:
            yield _span(pid, 1 + column, f"column {column}", "busy", start, busy)


def _core_events(log: EventLog, pid: int, start: int) -> Iterator[Event]:
    """One pass of the layer; its events in the order of time."""
    rows = 1 + max((y for _, y in log.busy_cycles), default=0)
    timed: list[tuple[float, int, Event]] = []

    def thread(x: int, y: int) -> int:
        return 1 + x * rows + y

    for x, y, begin, end in log.busy:
        timed.append((begin, 1, _span(pid, thread(x, y), f"core {x},{y}", "busy", start + begin, end - begin)))
    depth: dict[tuple[int, int], int] = {}
    for x, y, time, change in sorted(log.queue, key=lambda entry: (entry[2], entry[3])):
        depth[x, y] = depth.get((x, y), 0) + change
        timed.append((time, 0, _counter(pid, f"queue {x},{y}", start + time, {"wavelets": depth[x, y]})))
    for x, y, time, words in log.link:
        timed.append((time, 0, _counter(pid, f"link {x},{y}", start + time, {"words": words})))
        timed.append((time + words, 0, _counter(pid, f"link {x},{y}", start + time + words, {"words": 0})))
    timed.sort(key=lambda entry: entry[:2])
    yield from (event for _, _, event in timed)


def _span(
    pid: int, tid: int, name: str, category: str, begin: float, cycles: float, details: dict[str, Any] | None = None
) -> Event:
    event: Event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, "ts": begin, "dur": cycles}
    return event | {"args": details} if details is not None else event


def _counter(pid: int, name: str, time: float, values: dict[str, int]) -> Event:
    return {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": time, "args": values}
