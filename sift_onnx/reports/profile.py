"""A profile in words: a table of nodes, and where the time went."""

from __future__ import annotations

from collections import defaultdict

from rich.text import Text

from sift_onnx.records.profile import ProfileReport
from sift_onnx.reports.fitting_table import FittingTable

__all__ = ["node_rows", "nodes_table", "placement_lines", "summary_line"]


def nodes_table(report: ProfileReport) -> FittingTable:
    """The ``nodes`` of a result of ``sift-onnx profile``, in order of execution."""
    columns = "<node|<op|<runs in|ms|share|density|GFLOP/s|of peak|<kernel"
    table = FittingTable(columns, spare=("of peak", "share", "density", "GFLOP/s", "kernel"))
    for column in table.columns[1:3]:
        column.no_wrap = True
    for row in node_rows(report):
        table.add_row(*map(Text, row))
    return table


def node_rows(report: ProfileReport) -> list[tuple[str, ...]]:
    """Each node as cells: name, operator, placement, milliseconds, share, density, GFLOP/s, share of peak, kernel."""
    total = report.total_ms or 1.0
    return [
        (
            node.name,
            node.op,
            node.placement,
            f"{node.ms:.3f}",
            _percent(node.ms / total),
            _percent(node.density),
            f"{node.gflops:.1f}" if node.gflops is not None else "",
            _percent(node.share_of_peak),
            node.kernel or "",
        )
        for node in report.nodes
    ]


def summary_line(report: ProfileReport) -> str:
    """Total time, and how it is shared between those who run nodes."""
    shares: dict[str, float] = defaultdict(float)
    for node in report.nodes:
        shares[node.placement] += node.ms
    total = report.total_ms or 1.0
    listed = ", ".join(f"{place} {ms / total:.0%}" for place, ms in sorted(shares.items(), key=lambda item: -item[1]))
    peak = f"; peak {report.peak_gflops:.0f} GFLOP/s" if report.peak_gflops else ""
    return (
        f"{report.model} on {report.backend}, batch {report.batch}, {report.threads} threads: "
        f"{report.total_ms:.3f} ms, {listed}{peak}"
    )


def placement_lines(report: ProfileReport) -> list[str]:
    """Why nodes are where they are: one line per place and reason, most nodes first."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for placement in report.placements:
        groups[placement.placement, placement.reason].append(placement.name)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1])))
    return [f"{place}: {_listing(names)}: {reason}" for (place, reason), names in ordered]


def _listing(names: list[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
