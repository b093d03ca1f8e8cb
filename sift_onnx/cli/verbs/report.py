"""``sift-onnx report``: one page of HTML from results of the other verbs."""

from __future__ import annotations

import fnmatch
import os
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sift_onnx.cli.candidates import files
from sift_onnx.cli.options import (
    FilePath,
    WrittenPath,
    file_option,
    force_option,
    model_argument,
    output_options,
)
from sift_onnx.cli.output import deliver, note, status_line
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import UsageError, listing

if TYPE_CHECKING:
    from sift_onnx.reports.charts.masks import MaskPicture

_PICTURES = 4


@click.command(cls=Verb)
@model_argument("runs", ".json", type=FilePath(), metavar="RUN.json...", nargs=-1, required=True)
@file_option(
    "--html",
    completes=files(".html"),
    type=WrittenPath(),
    required=True,
    help="The page to write; it loads nothing from elsewhere.",
)
@file_option(
    "--model",
    "models",
    completes=files(".onnx"),
    type=FilePath(),
    multiple=True,
    help="Also show masks of this model (repeatable): JSON results hold none.",
)
@click.option(
    "--layer",
    "globs",
    multiple=True,
    metavar="GLOB",
    help=f"Weights whose masks are shown, by initializer name (repeatable).  [default: {_PICTURES} along the depth]",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser, if there is a display.")
@force_option
@output_options
def report(
    runs: tuple[str, ...],
    html: str,
    models: tuple[str, ...],
    globs: tuple[str, ...],
    opens: bool,
    force: bool,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Show results of other verbs on one self-contained page of HTML: RUN.json are files that their --json wrote.

    Results of transform, prune, densify, inspect, check, train, evaluate, benchmark, profile and simulate, in any
    number and order, of one model or of several. What each section shows, and what it is made of, is in docs/report.md.

    Examples:
        sift-onnx report transform.json benchmark.json --html report.html
        sift-onnx report *.json --model wide.onnx --html report.html --open
    """
    from sift_onnx.model_files.paths import check_input, check_output
    from sift_onnx.reports.answer_table import answer_table
    from sift_onnx.reports.answers import answers
    from sift_onnx.reports.charts.canvas import require_charts
    from sift_onnx.reports.documents import read_document
    from sift_onnx.reports.page.frame import write_page
    from sift_onnx.reports.results_page import results_page

    if globs and not models:
        raise UsageError("--layer chooses among the masks of a model; name the model with --model FILE")
    require_charts()
    for model in models:
        check_input(Path(model))
    with status_line("reading results", verbosity):
        documents = [read_document(path) for path in dict.fromkeys(runs)]
    check_output(Path(html), force)
    pictures = []
    for model in dict.fromkeys(models):
        with status_line(f"reading masks of {model}", verbosity):
            pictures.append((Path(model).name, _pictures(model, globs)))
    with status_line("drawing", verbosity):
        page = results_page(documents, pictures)
    write_page(html, page)
    size = len(page.encode("utf-8"))
    entries = [{"file": d.path, "verb": d.kind, "model": getattr(d.data, "model", None)} for d in documents]
    summary = f"{html}: {len(documents)} result{'s' * (len(documents) != 1)}, {size / 1e6:.2f} MB"
    found = answers(documents)
    document = {"schema": 1, "page": html, "bytes": size, "results": entries, "answers": [a.to_dict() for a in found]}
    deliver(document, json_path, lambda _: [*answer_table(found), summary])
    if opens:
        _open(html, verbosity)


def _pictures(model: str, globs: Sequence[str]) -> list[MaskPicture]:
    """Pictures of the masks that match, or of some along the depth of the model."""
    from sift_onnx.graphs.constants import sparse_weight_of
    from sift_onnx.model import Model
    from sift_onnx.reports.charts.masks import picture_of

    masked = Model.load(model).masked()
    if not masked:
        raise UsageError(f"{model} has no masks to show; leave --model out, or name a transformed or pruned model")
    names = list(_matching(list(masked), globs, model)) if globs else _spread(list(masked))
    weights = {name: sparse_weight_of(masked[name]) for name in names}
    return [picture_of(name, weight.mask()) for name, weight in weights.items() if weight is not None]


def _matching(names: Sequence[str], globs: Sequence[str], model: str) -> Iterator[str]:
    for glob in globs:
        if not fnmatch.filter(names, glob):
            there = listing(names, 3)
            raise UsageError(f"--layer {glob!r} matches no weight with a mask in {model}; there are {there}")
    yield from (name for name in names if any(fnmatch.fnmatchcase(name, glob) for glob in globs))


def _spread(names: list[str]) -> list[str]:
    last = len(names) - 1
    return [names[i] for i in sorted({round(last * i / (_PICTURES - 1)) for i in range(_PICTURES)})]


def _open(html: str, verbosity: int) -> None:
    """Open the page in a browser where there is a display; elsewhere say where it is."""
    has_display = sys.platform in ("darwin", "win32") or any(os.environ.get(v) for v in ("DISPLAY", "WAYLAND_DISPLAY"))
    if not has_display:
        note(f"there is no display to open {html} on (--open); copy it to a machine that has one", verbosity)
    elif not webbrowser.open(Path(html).absolute().as_uri()):
        note(f"no browser was found to open {html} (--open)", verbosity)
