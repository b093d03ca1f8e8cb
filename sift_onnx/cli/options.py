"""Options that several verbs share, and their parsing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sift_onnx.errors import OutputError

Command = TypeVar("Command", bound=Callable[..., Any])

_SHAPE = re.compile(r"(?P<name>.+):(?P<dims>\d+(?:,\d+)*)?$")


class InputShape(click.ParamType[Any]):
    """``NAME:1,3,224,224``; a scalar is ``NAME:``."""

    name = "NAME:DIMS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        if isinstance(value, tuple):
            return value
        match = _SHAPE.match(value)
        if match is None:
            self.fail(f"{value!r} is not of the form NAME:1,3,224,224", param, ctx)
        dims = match["dims"]
        return match["name"], tuple(int(d) for d in dims.split(",")) if dims else ()


def json_option(command: Command) -> Command:
    """``--json FILE|-``; a folder that is not there is refused before any work is done."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None and value != "-" and not Path(value).absolute().parent.is_dir():
            raise OutputError(f"cannot write JSON to {value!r} (--json): the folder does not exist")
        return value

    return click.option(
        "--json",
        "json_path",
        metavar="FILE|-",
        callback=check,
        help="Write the result as JSON to FILE, or to stdout with '-'.",
    )(command)


def verbosity_options(command: Command) -> Command:
    """``-v`` and ``-q``, as the one parameter ``verbosity`` (-1, 0, 1, ...)."""

    def count(ctx: click.Context, param: click.Parameter, value: int) -> int:
        quiet = ctx.params.pop("quiet", False)
        return -1 if quiet else value

    command = click.option("-v", "--verbose", "verbosity", count=True, callback=count, help="Say more on stderr.")(
        command
    )
    return click.option(
        "-q", "--quiet", is_flag=True, is_eager=True, help="Results only; nothing on stderr but errors."
    )(command)


def seed_option(command: Command) -> Command:
    """``--seed N``, 0 by default."""
    return click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of every random draw."
    )(command)


def force_option(command: Command) -> Command:
    """``--force``."""
    return click.option("--force", is_flag=True, help="Overwrite an existing output.")(command)


def input_shapes_option(command: Command) -> Command:
    """``--input-shapes NAME:1,3,224,224``, repeatable."""
    return click.option(
        "--input-shapes",
        type=InputShape(),
        multiple=True,
        help="Shape of an input with dynamic axes, e.g. x:1,3,224,224 (repeatable).",
    )(command)


def selection_options(command: Command) -> Command:
    """``--only GLOB`` and ``--keep-dense GLOB``, both repeatable, over initializer names."""
    command = click.option(
        "--keep-dense", metavar="GLOB", multiple=True, help="Weights that stay dense, by initializer name (repeatable)."
    )(command)
    return click.option(
        "--only",
        metavar="GLOB",
        multiple=True,
        help="Only these weights become sparse, by initializer name (repeatable).",
    )(command)


def choice_option(name: str, *choices: str, help: str) -> Callable[[Command], Command]:
    """An option that takes one of ``choices``, the first one by default."""
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=help)


def storage_option(command: Command) -> Command:
    """``--storage dense|sparse``."""
    return choice_option(
        "--storage",
        "dense",
        "sparse",
        help="How masked weights are stored: as ordinary tensors, or as ONNX sparse_initializer.",
    )(command)


def mask_options(command: Command) -> Command:
    """``--pattern`` and ``--distribution``."""
    command = choice_option(
        "--distribution",
        "uniform",
        "erk",
        help="How layers share the non-zeros: alike, or by the law of Erdős-Rényi kernels, which keeps more of small "
        "layers.",
    )(command)
    return click.option(
        "--pattern",
        metavar="PATTERN",
        default="unstructured",
        show_default=True,
        help="Which weights may be active together: unstructured, N:M (2:4), N:M-transposable (4:8-transposable) or "
        "block:RxC (block:4x4).",
    )(command)


def dry_run_option(command: Command) -> Command:
    """``--dry-run``."""
    return click.option("--dry-run", is_flag=True, help="Show what would be done, write nothing.")(command)
