"""What ``profile`` reports."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from sift_onnx.records.record import SCHEMA, Amount, Count, Record, Share

__all__ = ["NodeProfile", "Placement", "ProfileReport"]


class Placement(Record, frozen=True):
    """Where a node of the model went: its name and op type, the device or kernel that has it, and why that one."""

    name: str
    op: str
    placement: str
    reason: str


class NodeProfile(Placement, frozen=True):
    """A node as it was executed. What a back end does not report is None.

    Attributes:
        ms: median over the runs of its time in one run, in milliseconds.
        kernel: what ran it.
        density: share of its weights that are active: that its mask leaves, or, without one, that are not zero.
        gflops: operations on active weights per second, in 10**9.
        share_of_peak: these, in units of what the machine does if it does nothing but multiply and add.
    """

    ms: Amount
    kernel: str | None = None
    density: Share | None = None
    gflops: Amount | None = None
    share_of_peak: Amount | None = None


class ProfileReport(Record, frozen=True, kw_only=True):
    """Time per executed node.

    Attributes:
        host: the machine.
        model: the file.
        backend: as it was chosen.
        batch: items per run.
        threads: that it ran on.
        nominal: shapes of inputs of which a size was assumed, by name.
        assumed: what was assumed, one line each.
        peak_gflops: what the threads reach if they do nothing but multiply and add; None where it is not known.
        active_weights: of the model.
        active_zeros: how many of them are zero.
        warnings: one line each.
        runs: how many runs the medians are over.
        total_ms: sum over the nodes, in milliseconds.
        nodes: in order of execution; they need not be those of the model.
        placements: where each node of the model went, and why.
    """

    schema: int = SCHEMA
    host: dict[str, Any] | None = None
    model: str
    backend: str
    batch: Count
    threads: Count
    nominal: dict[str, tuple[Count, ...]] | None = None
    assumed: tuple[str, ...] | None = None
    peak_gflops: Amount | UnsetType | None = UNSET
    active_weights: Count = 0
    active_zeros: Count = 0
    warnings: tuple[str, ...] | None = None
    runs: Count = 0
    total_ms: Amount
    nodes: tuple[NodeProfile, ...]
    placements: tuple[Placement, ...]
