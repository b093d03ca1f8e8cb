"""A page of each verb of the command line, from its click command."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from sift_onnx.cli import main
from sift_onnx.cli.verb import Verb

__all__ = ["verb_pages"]


def verb_pages() -> Iterator[tuple[str, str]]:
    """Name and Markdown of each verb."""
    context = click.Context(main, info_name="sift-onnx")
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        yield name, _page(command, click.Context(command, info_name=name, parent=context), 1)


def _page(command: click.Command, context: click.Context, level: int) -> str:
    parts = [f"{'#' * level} {context.command_path.removeprefix('sift-onnx ')}", _prose(command.help or "")]
    if isinstance(command, click.Group):
        for name, member in command.commands.items():
            parts.append(_page(member, click.Context(member, info_name=name, parent=context), level + 1))
        return "\n\n".join(parts)
    parts.append(f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```")
    options = [p for p in command.get_params(context) if isinstance(p, click.Option) and not p.hidden]
    rows = [record for option in options if (record := option.get_help_record(context)) is not None]
    table = "".join(f"| `{_cell(names)}` | {_text(text)} |\n" for names, text in rows)
    parts.append(f"| option | meaning |\n|---|---|\n{table}")
    if isinstance(command, Verb) and command.examples:
        lines = "\n".join(command.examples)
        parts.append(f"```text\n{lines}\n```")
    return "\n\n".join(parts)


def _prose(text: str) -> str:
    return re.sub(r"(?<![\w`])(--[\w-]+)", r"`\1`", text.replace("\b", "")).replace("<", "&lt;")


def _text(text: str) -> str:
    return _prose(text).replace("|", "\\|").replace("*", "\\*").replace("[", "\\[")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
