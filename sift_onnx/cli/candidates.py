"""What may complete a value in the shell: files by their suffix, and names that the program knows.

Each function gives what click takes as ``shell_complete`` of an argument or an option. Names are looked up when the
shell asks; nothing here imports torch or onnxruntime.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem

__all__ = ["Candidates", "architectures", "backends", "decoders", "files", "folders", "patterns", "presets", "words"]

Candidates: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
# Names, and what each of them is, if that needs saying.
Names: TypeAlias = Mapping[str, str | None]

# click's scripts hand a file's name on as it is; one that would need quotes is left to the shell.
_NEEDS_NO_QUOTES = re.compile(r"[\w@%+./~-]*")


def words(*sources: Callable[[], Names]) -> Candidates:
    """Names."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return list(_starting(sources, incomplete))

    return complete


def files(*suffixes: str, names: Callable[[], Names] | None = None) -> Candidates:
    """Files that end in one of ``suffixes``, the folders on the way to them, and names.

    Where no file fits, the shell offers those that there are: a model need not be called ``.onnx``.
    """
    sources = () if names is None else (names,)

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        named = list(_starting(sources, incomplete))
        found = _files(incomplete, suffixes)
        # What is left to the shell would replace the names: bash then completes from the start.
        return named if named and any(item.type != "plain" for item in found) else named + found

    return complete


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders."""
    return [CompletionItem(incomplete, type="dir")]


def architectures() -> Names:
    """What ``models export`` builds."""
    from sift_onnx.models.registry import ARCHITECTURES

    return {row.name: row.description for row in ARCHITECTURES.values()}


def backends() -> Names:
    """Back ends, those of plug-ins and the machines of the simulator among them."""
    from sift_onnx.backends.base import available_backends

    simulated = {f"dataflow:{preset}": None for preset in presets()}
    return {name: None for name in available_backends()} | simulated


def presets() -> Names:
    """Machines of the simulator."""
    from sift_onnx.backends.dataflow.machines.preset_files import available_presets

    return {name: None for name in available_presets()}


def decoders() -> Names:
    """Models that ``simulate`` knows by their sizes."""
    from sift_onnx.backends.dataflow.workloads.decoder import available_decoders

    return {name: "a decoder by its sizes" for name in available_decoders()}


def patterns() -> Names:
    """Patterns of masks: those that hardware has, one of each kind first."""
    return {
        "unstructured": "no constraint",
        "2:4": "at most 2 of 4 consecutive input features",
        "1:4": None,
        "4:8": None,
        "4:8-transposable": "at most 4 in each row and column of 8x8 blocks",
        "2:4-transposable": None,
        "block:4x4": "blocks of 4 output by 4 input features",
        "block:8x8": None,
        "block:16x16": None,
    }


def _starting(sources: tuple[Callable[[], Names], ...], incomplete: str) -> Iterator[CompletionItem]:
    for source in sources:
        for name, is_what in source().items():
            if name.startswith(incomplete):
                yield CompletionItem(name, help=is_what)


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[CompletionItem]:
    """Plain candidates, or one item that hands the question on to the shell."""
    head, slash, tail = incomplete.rpartition("/")
    fitting, inner = [], []
    try:
        for entry in os.scandir(os.path.expanduser(head + slash) or "."):
            if not entry.name.startswith(tail) or (entry.name.startswith(".") and not tail.startswith(".")):
                continue
            if entry.is_dir():
                inner.append(f"{head}{slash}{entry.name}/")
            elif entry.name.lower().endswith(suffixes):
                fitting.append(f"{head}{slash}{entry.name}")
    except OSError:
        return []
    if not fitting:
        # The shell continues after a folder; a plain candidate would end the word there.
        return [CompletionItem(incomplete, type="dir" if inner else "file")]
    candidates = sorted(fitting) + sorted(inner)
    if not all(_NEEDS_NO_QUOTES.fullmatch(name) for name in candidates):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in candidates]
