"""Results of the zoo as text: a Markdown table, and failures by cause."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["failures", "markdown", "newest"]

Result = dict[str, Any]
Key = tuple[str, str, str]
Index = Mapping[str, Mapping[str, Any]]


def newest(results: Iterable[Result]) -> dict[Key, Result]:
    """The last result for each file, sparsity and budget."""
    return {(r["file"], r["sparsity"], r["budget"]): r for r in results}


def markdown(results: Mapping[Key, Result], index: Index) -> str:
    """One row for each model and exporter, one column for each sparsity.

    A cell says how many times the MACs of the original the transformed model would have without masks: ``1 / (1 - s)``
    where every layer widened on both sides. With masks it has those of the original, or the cell says what failed.
    "batch 1" marks exports that do not run at another batch themselves.

    Args:
        results: from :func:`newest`.
        index: of the exports, which has those that failed too.
    """
    sparsities = sorted({sparsity for _, sparsity, _ in results})
    groups: dict[tuple[str, str, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for name, entry in index.items():
        groups[entry["model"], entry["library"], entry["exporter"]][name] = entry
    rows = [
        ["model", "library", "exporter", "nodes", "MACs in sparse layers", *(f"s = {s}" for s in sparsities), "pinned"],
        ["---"] * 3 + ["---:"] * (2 + len(sparsities)) + ["---"],
    ]
    for labels, files in groups.items():
        found = [r for r in results.values() if r["file"] in files]
        nodes = {str(entry["nodes"]) for entry in files.values() if not entry["error"]}
        shares = sorted(r["sparse_share"] for r in found if "sparse_share" in r)
        cells = [_cell([r for r in found if r["sparsity"] == s], files) for s in sparsities]
        rows.append([*labels, _span(sorted(nodes, key=int)), _span([f"{x:.1%}" for x in shares]), *cells, _pins(found)])
    notes = {entry["model"]: entry["note"] for entry in index.values() if entry["note"]}
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"- `{model}`: {note}." for model, note in notes.items())])


def _span(ascending: Sequence[str]) -> str:
    """The first and the last of some numbers, or just one."""
    return " to ".join(dict.fromkeys([*ascending[:1], *ascending[-1:]]))


def _cell(results: Sequence[Result], files: Index) -> str:
    """What holds at one sparsity, with fixed axes and with open ones; said once where it is the same for both."""
    said = {entry["axes"]: "not exported" for entry in files.values() if entry["error"]}
    for result in results:
        good = f"×{result['growth']:.2f}" + (" (batch 1)" if "original_error" in result else "") if result["ok"] else ""
        said[result["axes"]] = good or result["error"].split(":")[0]
    if len(set(said.values())) == 1 and len(said) == len(files):
        return next(iter(said.values()))
    return "; ".join(f"{axes} {text}" for axes, text in said.items())


def _pins(results: Sequence[Result]) -> str:
    """What keeps axes of weights from growing, and how many; the commonest reasons first."""
    layers: Counter[str] = Counter()
    for result in results:
        one: Counter[str] = Counter()
        for pin in result.get("pinned", ()):
            one[re.sub(r"'[^']*'", "a tensor", pin["reason"])] += pin["layers"]
        layers |= one
    return "; ".join(f"{reason} ({count}×)" for reason, count in layers.most_common(3))


def failures(results: Mapping[Key, Result]) -> str:
    """Failures by cause: names and numbers in the messages are left out, one message is quoted in full."""
    groups: dict[str, list[Result]] = defaultdict(list)
    unknown: dict[str, set[str]] = defaultdict(set)
    for result in results.values():
        if not result["ok"]:
            groups[_cause(result["error"])].append(result)
        for op in result.get("unknown", ()):
            unknown[op].add(result["file"].removesuffix(".onnx"))
    good = sum(result["ok"] for result in results.values())
    lines = [f"{good} of {len(results)} ok", ""]
    for found in sorted(groups.values(), key=len, reverse=True):
        lines.append(f"{len(found)}x [{found[0]['stage']}] {found[0]['error']}")
        for name in sorted({result["file"] for result in found}):
            at = ", ".join(r["sparsity"] for r in found if r["file"] == name)
            lines.append(f"    {name.removesuffix('.onnx')} at {at}")
    lines += ["", "exports that do not run at all of their shapes, and were checked at the first:"]
    lines += sorted({f"    {r['file']}: {r['original_error']}" for r in results.values() if "original_error" in r})
    lines += ["", "operators without a rule:"]
    lines += [f"    {op}: {', '.join(sorted(names))}" for op, names in sorted(unknown.items())]
    return "\n".join(lines)


def _cause(error: str) -> str:
    """An error without what differs from model to model."""
    return re.sub(r"'[^']*'|\d[\d,.]*", "_", error)[:120]
