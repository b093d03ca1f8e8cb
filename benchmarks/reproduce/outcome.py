"""What an experiment found beside what the paper says, and its place on disk: JSON, a plot and a page of text."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

from sift_onnx.backends.processors import usable_processors

__all__ = ["Claim", "Detail", "Outcome", "machine", "write", "write_front_page"]

_VERDICTS = {True: "agrees", False: "**does not**", None: "cannot be told"}


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, held against what was measured.

    Attributes:
        text: what the paper says.
        agrees: whether the measurement says so too; None where it cannot tell, within its own spread.
        evidence: the figures that decide.
        why: where it does not agree, what is known of the reason.
    """

    text: str
    agrees: bool | None
    evidence: str
    why: str = ""


@dataclass(frozen=True)
class Detail:
    """A further table of the page, behind the claims.

    Attributes:
        heading: above it.
        header: of the table.
        rows: of the table.
    """

    heading: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Outcome:
    """Of one table or figure.

    Attributes:
        name: of its folder.
        title: what of the paper it repeats.
        what: how it was measured, in sentences.
        header: of the table.
        rows: of the table.
        claims: of the paper.
        values: the figures themselves, for programs.
        draw: draws the plot into a matplotlib figure.
        details: further tables.
    """

    name: str
    title: str
    what: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    claims: Sequence[Claim]
    values: dict[str, Any]
    draw: Callable[[Any], None] = field(repr=False)
    details: Sequence[Detail] = ()


def machine(device: str) -> dict[str, Any]:
    """What the figures were measured on."""
    if device == "cpu":
        described = f"{usable_processors()} cores of {pages.processor_name()}"
    else:
        import torch

        described = torch.cuda.get_device_name(device)
    packages = {name: version(name) for name in ("sift-onnx", "onnx", "onnxruntime", "torch", "numpy")}
    return {"device": described, "python": platform.python_version(), **packages}


def write(outcome: Outcome, folder: Path, command: str, setting: str, device: str, seconds: float) -> None:
    """``results.json``, ``chart.svg`` and ``README.md`` in a folder of the outcome's name inside ``folder``."""
    own = folder / outcome.name
    own.mkdir(parents=True, exist_ok=True)
    measured_on = machine(device)
    document = {
        "schema": 1,
        "name": outcome.name,
        "title": outcome.title,
        "setting": setting,
        "command": command,
        "machine": measured_on,
        "seconds": round(seconds, 1),
        "claims": [asdict(claim) for claim in outcome.claims],
        "values": outcome.values,
    }
    (own / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    with pages.chart(own / "chart.svg", pages.digest(outcome.values), figsize=(9.6, 3.6)) as figure:
        outcome.draw(figure)
    (own / "README.md").write_text(_page(outcome, command, measured_on, seconds), encoding="utf-8")


def write_front_page(folder: Path) -> None:
    """Write ``README.md``, a line for each sentence of all results in ``folder``, those of earlier runs among them."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/results.json"))]
    claims = [(document, claim) for document in found for claim in document["claims"]]
    count = {verdict: sum(claim["agrees"] is verdict for _, claim in claims) for verdict in _VERDICTS}
    setting = found[0]["setting"] if found else folder.name
    lines = [
        f"# What was found: the {setting} setting",
        "",
        f"Of {len(claims)} sentences, {count[True]} agree with the figures, {count[False]} do not, and of "
        f"{count[None]} it cannot be told, as where a difference is within two standard errors. How each was measured "
        "stands on the page of its table or figure.",
        "",
        "| of the paper | sentence | here | figures |",
        "| --- | --- | --- | --- |",
    ]
    for document, claim in claims:
        name = document["title"].split(":")[0]
        cells = (
            f"[{name}]({document['name']}/README.md)",
            claim["text"],
            _VERDICTS[claim["agrees"]],
            claim["evidence"],
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _page(outcome: Outcome, command: str, measured_on: dict[str, Any], seconds: float) -> str:
    lines = [f"# {outcome.title}", "", f"    {command}", "", outcome.what, ""]
    lines += _table(outcome.header, outcome.rows)
    lines += ["", f"![{outcome.title}](chart.svg)", ""]
    for heading, verdict in (("What agrees", True), ("What does not", False), ("What cannot be told", None)):
        claims = [claim for claim in outcome.claims if claim.agrees is verdict]
        if claims:
            lines += [f"## {heading}", ""]
            for claim in claims:
                why = f" {claim.why}" if claim.why and verdict is not True else ""
                lines.append(f"* {claim.text} {claim.evidence}{why}")
            lines.append("")
    for detail in outcome.details:
        lines += [f"## {detail.heading}", "", *_table(detail.header, detail.rows), ""]
    packages = ", ".join(f"{name} {value}" for name, value in measured_on.items() if name != "device")
    lines.append(f"Measured in {seconds:.0f} s on {measured_on['device']}; {packages}.")
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]
