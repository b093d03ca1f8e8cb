"""A profile in words: a table of nodes, and where the time went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from sift_onnx.report.fitting_table import FittingTable

__all__ = ["nodes_table", "placement_lines", "summary_line"]


def nodes_table(result: Mapping[str, Any]) -> FittingTable:
    """The ``nodes`` of a result of ``sift-onnx profile``, in order of execution."""
    table = FittingTable(spare=("of peak", "share", "density", "GFLOP/s", "kernel"))
    table.add_column("node")
    table.add_column("op", no_wrap=True)
    table.add_column("runs in", no_wrap=True)
    for heading in ("ms", "share", "density", "GFLOP/s", "of peak"):
        table.add_column(heading, justify="right")
    table.add_column("kernel")
    total = result["total_ms"] or 1.0
    for node in result["nodes"]:
        table.add_row(
            Text(node["name"]),
            node["op"],
            node["placement"],
            f"{node['ms']:.3f}",
            _percent(node["ms"] / total),
            _percent(node.get("density")),
            f"{node['gflops']:.1f}" if "gflops" in node else "",
            _percent(node.get("share_of_peak")),
            node.get("kernel", ""),
        )
    return table


def summary_line(result: Mapping[str, Any]) -> str:
    """Total time, and how it is shared between those who run nodes."""
    shares: dict[str, float] = defaultdict(float)
    for node in result["nodes"]:
        shares[node["placement"]] += node["ms"]
    total = result["total_ms"] or 1.0
    listed = ", ".join(f"{place} {ms / total:.0%}" for place, ms in sorted(shares.items(), key=lambda item: -item[1]))
    peak = f"; peak {result['peak_gflops']:.0f} GFLOP/s" if result.get("peak_gflops") else ""
    return (
        f"{result['model']} on {result['backend']}, batch {result['batch']}, {result['threads']} threads: "
        f"{result['total_ms']:.3f} ms, {listed}{peak}"
    )


def placement_lines(result: Mapping[str, Any]) -> list[str]:
    """Why nodes are where they are: one line per place and reason, most nodes first."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for placement in result["placements"]:
        groups[placement["placement"], placement["reason"]].append(placement["name"])
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1])))
    return [f"{place}: {_listing(names)}: {reason}" for (place, reason), names in ordered]


def _listing(names: list[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
