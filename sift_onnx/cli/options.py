"""Arguments and options that several verbs share, and their parsing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sift_onnx.cli.candidates import Candidates, backends, files, patterns, words
from sift_onnx.errors import OutputError, UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

STORAGES = ("dense", "sparse")
STORAGE_HELP = "How masked weights are stored: as ordinary tensors, or as ONNX sparse_initializer."

LARGEST_COUNT = 2**31 - 1

_SHAPE = re.compile(r"(?P<name>.+):(?P<dims>\d+(?:,\d+)*)?$")


class Number(click.FloatRange):
    """A finite number within a range; NaN lies in every range of click's, and infinity in every open one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return float(super().convert(number, param, ctx))


class Count(click.IntRange):
    """A whole number of at least 1 that machines can count to."""

    def __init__(self) -> None:
        """Without a limit that help would show."""
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(super().convert(value, param, ctx))
        if number > LARGEST_COUNT:
            self.fail(f"{number} is above {LARGEST_COUNT}", param, ctx)
        return number


class FilePath(click.Path):
    """A path that is not empty, as a shell's variable without a value is, and that operating systems accept."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty; name a file", param, ctx)
        if "\0" in str(value):
            self.fail(f"{str(value)!r} has a null character in it", param, ctx)
        return super().convert(value, param, ctx)


class WrittenPath(FilePath):
    """One that is written, and must be none that the call names besides; see :class:`~sift_onnx.cli.verb.Verb`."""


class TokenIds(click.ParamType[Any]):
    """``1,2,3``."""

    name = "ID,ID"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if not re.fullmatch(r"\d+(,\d+)*", value):
            self.fail(f"{value!r} is not of the form 1,2,3", param, ctx)
        ids = tuple(map(int, value.split(",")))
        if max(ids) > LARGEST_COUNT:
            self.fail(f"{max(ids)} is above {LARGEST_COUNT}", param, ctx)
        return ids


class PromptAndTokens(click.ParamType[Any]):
    """``128,32``."""

    name = "PROMPT,TOKENS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        parts = value.split(",")
        counts = [int(part) for part in parts if part.isdigit()]
        if len(parts) != 2 or len(counts) != 2 or counts[0] < 1 or counts[1] < 2:
            self.fail(f"{value!r} is not of the form 128,32, with two new tokens at least", param, ctx)
        if max(counts) > LARGEST_COUNT:
            self.fail(f"{max(counts)} is above {LARGEST_COUNT}", param, ctx)
        return counts[0], counts[1]


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
        dims = tuple(int(d) for d in match["dims"].split(",")) if match["dims"] else ()
        if max(dims, default=0) > LARGEST_COUNT:
            self.fail(f"{value!r}: {max(dims)} is above {LARGEST_COUNT}", param, ctx)
        return match["name"], dims


def model_argument(name: str, *suffixes: str, **settings: Any) -> Callable[[Command], Command]:
    """An argument that names a model file, as ``MODEL`` in the help unless ``settings`` say otherwise.

    Args:
        name: of the parameter.
        suffixes: of files that complete it; ``.onnx`` if there are none.
        settings: as of :func:`click.argument`.
    """
    defaults = {
        "metavar": "MODEL",
        "type": FilePath(path_type=Path),
        "shell_complete": files(*suffixes or (".onnx",)),
    }
    return click.argument(name, **{**defaults, **settings})


def in_out_arguments(command: Command) -> Command:
    """``IN`` and ``OUT``, as the parameters ``source`` and ``target``."""
    return model_argument("source", metavar="IN")(model_argument("target", metavar="OUT")(command))


def file_option(*names: str, completes: Candidates, help: str, **settings: Any) -> Callable[[Command], Command]:
    """An option that takes a path, ``FILE`` in the help unless ``settings`` say otherwise."""
    defaults = {"metavar": "FILE", "type": FilePath(path_type=Path)}
    return click.option(*names, shell_complete=completes, help=help, **{**defaults, **settings})


def place_option(*names: str, completes: Candidates, help: str, **settings: Any) -> Callable[[Command], Command]:
    """A :func:`file_option` of what is written while a verb works, which may be there already, and is not stdout."""

    def check(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
        from sift_onnx.model_files.paths import refuse_dash

        if value is not None:
            refuse_dash(value)
        return value

    return file_option(*names, completes=completes, help=help, callback=check, **settings)


def choice_option(name: str, *choices: str, help: str, **settings: Any) -> Callable[[Command], Command]:
    """An option that takes one of ``choices``, the first one by default unless it is required."""
    defaults = {} if settings.get("required") else {"default": choices[0], "show_default": True}
    return click.option(name, type=click.Choice(choices), help=help, **{**defaults, **settings})


def count_option(name: str, help: str, **settings: Any) -> Callable[[Command], Command]:
    """An option that takes a whole number of at least 1."""
    return click.option(name, type=Count(), metavar="N", help=help, **settings)


def backend_option(
    help: str = "Back end: cpu, onnxruntime, or FILE.py:CLASS for your own.",
) -> Callable[[Command], Command]:
    """``--backend`` of a verb that runs on one; ours by default."""
    return click.option(
        "--backend",
        metavar="NAME",
        default="cpu",
        show_default=True,
        shell_complete=files(".py", names=backends),
        help=help,
    )


def number_option(name: str, number: Number, help: str, **settings: Any) -> Callable[[Command], Command]:
    """An option that takes a finite number; a default is shown."""
    defaults = {"metavar": "X", "show_default": "default" in settings}
    return click.option(name, type=number, help=help, **{**defaults, **settings})


def output_options(command: Command) -> Command:
    """``--json FILE|-``, and ``-q`` and ``-v`` as the one parameter ``verbosity`` (-1, 0, 1, ...).

    JSON that cannot be written is refused before any work is done.
    """

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None and value != "-":
            if not Path(value).absolute().parent.is_dir():
                raise OutputError(f"cannot write JSON to {value!r} (--json): the folder does not exist")
            if Path(value).is_dir():
                raise OutputError(f"cannot write JSON to {value!r} (--json): it is a folder; name a file")
        return value

    def count(ctx: click.Context, param: click.Parameter, value: int) -> int:
        return -1 if ctx.params.pop("quiet", False) else value

    to_file = "Write the result as JSON to FILE, or to stdout with '-'."
    quiet = "Nothing but errors; --json is still written."
    for option in (
        click.option("-v", "--verbose", "verbosity", count=True, callback=count, help="Say more on stderr."),
        click.option("-q", "--quiet", is_flag=True, is_eager=True, help=quiet),
        file_option("--json", "json_path", completes=files(".json"), help=to_file, metavar="FILE|-", type=WrittenPath(),
                    callback=check),
    ):  # fmt: skip
        command = option(command)
    return command


def input_shapes_option(command: Command) -> Command:
    """``--input-shapes NAME:1,3,224,224``, repeatable, as a mapping of names to shapes."""

    def collect(
        ctx: click.Context, param: click.Parameter, value: tuple[tuple[str, tuple[int, ...]], ...]
    ) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for name, dims in value:
            if name in shapes:
                raise UsageError(f"--input-shapes names {name!r} twice")
            shapes[name] = dims
        return shapes

    return click.option(
        "--input-shapes",
        type=InputShape(),
        multiple=True,
        callback=collect,
        help="Shape of an input with dynamic axes, e.g. x:1,3,224,224 (repeatable).",
    )(command)


def data_option(help: str, **settings: Any) -> Callable[[Command], Command]:
    """``--data``, which all verbs read alike, and ``--normalize`` of its images."""

    def add(command: Command) -> Command:
        command = click.option(
            "--normalize",
            metavar="imagenet|MEAN/STD",
            help="Of images: subtract MEAN and divide by STD, a number for each channel.",
        )(command)
        return click.option(
            "--data",
            metavar="FILE.py:FUNCTION|FILE.npz|FOLDER|hf:NAME[:SPLIT]",
            shell_complete=files(".npz", ".py"),
            help=help,
            **{"required": True, **settings},
        )(command)

    return add


def selection_options(command: Command) -> Command:
    """``--only GLOB`` and ``--keep-dense GLOB``, both repeatable, over initializer names."""
    command = click.option(
        "--keep-dense", metavar="GLOB", multiple=True, help="Weights that stay dense, by initializer name (repeatable)."
    )(command)
    text = "Only these weights become sparse, by initializer name (repeatable)."
    return click.option("--only", metavar="GLOB", multiple=True, help=text)(command)


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
        shell_complete=words(patterns),
        help="Which weights may be active together: unstructured, N:M (2:4), N:M-transposable (4:8-transposable) or "
        "block:RxC (block:4x4).",
    )(command)


seed_option = click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Seed of every random draw."
)
force_option = click.option("--force", is_flag=True, help="Overwrite an existing output.")
storage_option = choice_option("--storage", *STORAGES, help=STORAGE_HELP)
full_option = click.option(
    "--full", is_flag=True, help="A row for every layer; of more than 40, those that repeat share one otherwise."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done, write nothing.")
