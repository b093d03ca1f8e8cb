"""What an experiment found beside what the paper says, and its place on disk: JSON, a plot and a page of text.

The JSON has the figures; plot and page are made of it, when it is written and whenever it is read again.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

from sift_onnx.backends.processors import usable_processors

__all__ = [
    "Claim", "Detail", "Experiment", "Outcome", "document_of", "front_page", "machine", "page", "read_results", "write",
]  # fmt: skip

_KEYS = (
    "schema", "name", "title", "setting", "command", "machine", "seconds", "processor_seconds", "claims", "values",
)  # fmt: skip
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
        draw: draws the plot into a matplotlib figure.
        details: further tables.
    """

    name: str
    title: str
    what: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    claims: Sequence[Claim]
    draw: Callable[[Any], None] = field(repr=False)
    details: Sequence[Detail] = ()


@dataclass(frozen=True)
class Experiment:
    """A table or figure: how its figures are found, and what they say.

    Attributes:
        measure: returns the figures, as JSON has them.
        tell: makes an outcome of these figures, read from JSON; it measures nothing.
    """

    measure: Callable[[], dict[str, Any]]
    tell: Callable[[dict[str, Any]], Outcome]


def machine(device: str) -> dict[str, Any]:
    """What the figures were measured on."""
    if device == "cpu":
        described = f"{usable_processors()} cores of {pages.processor_name()}"
    else:
        import torch

        described = torch.cuda.get_device_name(device)
    packages = {name: version(name) for name in ("sift-onnx", "onnx", "onnxruntime", "torch", "numpy")}
    return {"device": described, "python": platform.python_version(), **packages}


def document_of(
    name: str,
    values: Mapping[str, Any],
    *,
    setting: str,
    command: str,
    device: str,
    seconds: float,
    processor_seconds: float | None,
) -> dict[str, Any]:
    """What ``results.json`` has, but for what is told of the figures.

    Args:
        name: of the experiment.
        values: its figures.
        setting: that it was run in.
        command: that ran it.
        device: of trainings.
        seconds: that passed; little, where trainings had been run before.
        processor_seconds: of all its trainings, those of earlier runs included; None where that is not known.
    """
    found: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "setting": setting,
        "command": command,
        "machine": machine(device),
        "seconds": round(seconds, 1),
    }
    if processor_seconds is not None:
        found["processor_seconds"] = round(processor_seconds, 1)
    # As JSON has it, so that nothing is told of what a file would not hold.
    return {**found, "values": json.loads(json.dumps(values))}


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The documents of all experiments in ``folder``."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/results.json"))]


def write(document: Mapping[str, Any], outcome: Outcome, folder: Path) -> None:
    """``results.json``, ``chart.svg`` and ``README.md`` in a folder of the outcome's name inside ``folder``."""
    own = folder / outcome.name
    own.mkdir(parents=True, exist_ok=True)
    told = {**document, "title": outcome.title, "claims": [asdict(claim) for claim in outcome.claims]}
    text = json.dumps({key: told[key] for key in _KEYS if key in told}, indent=1)
    (own / "results.json").write_text(text + "\n", encoding="utf-8")
    with pages.chart(own / "chart.svg", pages.digest(document["values"]), figsize=(9.6, 3.6)) as figure:
        outcome.draw(figure)
    (own / "README.md").write_text(page(document, outcome), encoding="utf-8")


def front_page(found: Sequence[Mapping[str, Any]], setting: str) -> str:
    """A page with a line for each sentence of ``found``, which :func:`read_results` returns."""
    claims = [(document, claim) for document in found for claim in document["claims"]]
    count = {verdict: sum(claim["agrees"] is verdict for _, claim in claims) for verdict in _VERDICTS}
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
    return "\n".join(lines) + "\n"


def page(document: Mapping[str, Any], outcome: Outcome) -> str:
    """The page of an experiment."""
    lines = [f"# {outcome.title}", "", f"    {document['command']}", "", outcome.what, ""]
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
    measured_on = document["machine"]
    packages = ", ".join(f"{name} {value}" for name, value in measured_on.items() if name != "device")
    taken = f"{document['seconds']:.0f} s"
    if "processor_seconds" in document:
        taken += f" (its trainings took {document['processor_seconds']:.0f} s of processor time)"
    lines.append(f"Measured in {taken} on {measured_on['device']}; {packages}.")
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]
