"""Results of the zoo as text: a Markdown table, and failures by cause."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["failures", "markdown", "newest"]

Result = dict[str, Any]
Key = tuple[str, str, str]


def newest(results: Iterable[Result]) -> dict[Key, Result]:
    """The last result for each file, sparsity and budget."""
    return {(r["file"], r["sparsity"], r["budget"]): r for r in results}


def markdown(results: Mapping[Key, Result], index: Mapping[str, Mapping[str, Any]]) -> str:
    """One row for each model and exporter; the columns of a sparsity say what holds for static and dynamic axes.

    Args:
        results: from :func:`newest`.
        index: of the exports, which has those that failed too.
    """
    sparsities = sorted({sparsity for _, sparsity, _ in results})
    rows = [
        ["model", "library", "exporter", "nodes", "MACs in sparse layers", *(f"s = {s}" for s in sparsities), "pinned"],
        ["---"] * 3 + ["---:"] * 2 + ["---"] * (len(sparsities) + 1),
    ]
    groups: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for name, entry in index.items():
        groups[entry["model"], entry["exporter"]][name] = entry
    for (model, exporter), files in groups.items():
        found = [r for r in results.values() if r["file"] in files]
        exported = [name for name, entry in files.items() if not entry["error"]]
        library = next(iter(files.values()))["library"]
        if not exported:
            rows.append([model, library, exporter, "", "", *["not exported"] * len(sparsities), ""])
            continue
        nodes = "-".join(str(n) for n in sorted({files[name]["nodes"] for name in exported}))
        shares = sorted({f"{r['sparse_share']:.1%}" for r in found if "sparse_share" in r})
        cells = [_cell([r for r in found if r["sparsity"] == s], files) for s in sparsities]
        rows.append([model, library, exporter, nodes, "-".join(dict.fromkeys(shares[:1] + shares[-1:])), *cells])
        rows[-1].append(_pins(found))
    notes = {entry["model"]: entry["note"] for entry in index.values() if entry["note"]}
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"- `{model}`: {note}." for model, note in notes.items())])


def _cell(results: list[Result], files: Mapping[str, Mapping[str, Any]]) -> str:
    """What holds at one sparsity: ``ok``, or which axes it fails with and why."""
    failed = {axes: entry for entry in files.values() if entry["error"] for axes in [entry["axes"]]}
    said = [f"{axes}: not exported" for axes in failed]
    said += [f"{r['axes']}: {r['error'].split(':')[0]}" for r in results if not r["ok"]]
    good = [r["axes"] for r in results if r["ok"]]
    if good and not said:
        return "ok"
    return "; ".join([*(f"{axes}: ok" for axes in good), *said])


def _pins(results: list[Result]) -> str:
    reasons = {f"{pin['size']} ({pin['reason']})" for r in results for pin in r.get("pinned", ())}
    return "; ".join(sorted(reasons))


def failures(results: Mapping[Key, Result]) -> str:
    """Failures by cause: names and numbers in the messages are left out, one message is quoted in full."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results.values():
        if not result["ok"]:
            groups[cause(result["error"])].append(result)
    unknown: dict[str, set[str]] = defaultdict(set)
    for result in results.values():
        for op in result.get("unknown", ()):
            unknown[op].add(result["file"].removesuffix(".onnx"))
    good = sum(result["ok"] for result in results.values())
    lines = [f"{good} of {len(results)} ok", ""]
    for found in sorted(groups.values(), key=len, reverse=True):
        lines.append(f"{len(found)}x [{found[0]['stage']}] {found[0]['error']}")
        for name in sorted({result["file"].removesuffix(".onnx") for result in found}):
            at = ", ".join(r["sparsity"] for r in found if r["file"] == f"{name}.onnx")
            lines.append(f"    {name} at {at}")
    lines += ["", "operators without a rule:"]
    lines += [f"    {op}: {', '.join(sorted(names))}" for op, names in sorted(unknown.items())]
    return "\n".join(lines)


def cause(error: str) -> str:
    """An error without what differs from model to model."""
    return re.sub(r"'[^']*'|\d[\d,.]*", "_", error)[:120]
