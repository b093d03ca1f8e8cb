"""Commands whose help ends with examples, as it reads in the source: a docstring with a section ``Examples:``."""

from __future__ import annotations

import inspect
import os
from typing import Any

import click

from sift_onnx.cli.options import FilePath, WrittenPath
from sift_onnx.cli.output import to_stdout
from sift_onnx.errors import OutputError

__all__ = ["Verb", "VerbGroup"]

_HEADING = "\nExamples:\n"


class Verb(click.Command):
    """A command that takes the section ``Examples:`` of its docstring to the end of its help."""

    def __init__(self, *, help: str | None = None, **settings: Any) -> None:
        """As of :class:`click.Command`."""
        says, _, examples = inspect.cleandoc(help or "").partition(_HEADING)
        self.examples = inspect.cleandoc("\n" + examples).splitlines()
        super().__init__(help=says.strip() or None, **settings)

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        with to_stdout():  # of --help and --version
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        self._check_written(ctx)
        return super().invoke(ctx)

    def _check_written(self, ctx: click.Context) -> None:
        """Refuse to write over a file that the call names besides.

        Raises:
            OutputError: there is one.
        """
        named = [
            (param, str(path))
            for param in self.params
            if isinstance(param.type, FilePath)
            for path in _listed(ctx.params.get(param.name or ""))
        ]
        for i, (param, path) in enumerate(named):
            for other, same in (*named[:i], *named[i + 1 :]):
                if isinstance(param.type, WrittenPath) and path != "-" and _is_same(path, same):
                    raise OutputError(f"{_label(other)} and {_label(param)} name the same file, {same!r}; name two")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                # As they are: a command that is wrapped is one that cannot be copied.
                formatter.write("".join(f"{'':>{formatter.current_indent}}{line}\n" for line in self.examples))


class VerbGroup(Verb, click.Group):
    """A group of verbs, whose help has its own examples."""

    command_class = Verb

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as mistake:
            # click itself looks for a name like this one among commands that have been imported.
            names = self.list_commands(ctx)
            raise click.NoSuchCommand(mistake.command_name, possibilities=names, ctx=ctx) from None


def _listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _label(param: click.Parameter) -> str:
    return param.opts[0] if isinstance(param, click.Option) else (param.metavar or str(param.name)).strip("[].")
