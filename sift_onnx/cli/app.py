"""The ``sift-onnx`` command: finds the verb, and maps what goes wrong to one line and an exit code."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from sift_onnx.cli.plugin_list import plugin_rows
from sift_onnx.errors import SiftError, UnsupportedError, printable

# verb -> module under sift_onnx.cli that holds a click command of the same name; imported when the verb is called,
# so that `--help` needs neither onnxruntime nor torch.
VERBS = {
    "transform": "transform",
    "prune": "prune",
    "densify": "densify",
    "convert": "convert",
    "inspect": "inspect",
    "check": "check",
    "benchmark": "benchmark",
    "train": "train",
    "simulate": "simulate",
    "profile": "profile",
    "report": "report",
    "models": "models",
    "doctor": "doctor",
}


class LazyVerbs(click.Group):
    """A click group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"sift_onnx.cli.{VERBS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        rows = plugin_rows()
        if rows:
            with formatter.section("Plug-ins"):
                formatter.write_dl(rows)

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        extra["standalone_mode"] = False
        try:
            with _warnings_in_one_line():
                result = super().main(args, **extra)
        except click.exceptions.Exit as stop:
            sys.exit(stop.exit_code)
        except click.ClickException as mistake:
            mistake.show()
            sys.exit(mistake.exit_code)
        except SiftError as mistake:
            click.echo(f"Error: {mistake}", err=True)
            sys.exit(mistake.exit_code)
        except MemoryError as shortage:
            reason = printable(f" ({shortage})" if str(shortage) else "")
            click.echo(f"Error: there is not enough memory for this model{reason}", err=True)
            sys.exit(UnsupportedError.exit_code)
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted.", err=True)
            sys.exit(130)
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(0)
        sys.exit(result if isinstance(result, int) else 0)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Warnings go to stderr, each of them once, without the place in the code that Python would add."""
    said: set[str] = set()

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        text = printable(str(message))
        if text not in said:
            said.add(text)
            click.echo(f"Warning: {text}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@click.group(cls=LazyVerbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sift-onnx", prog_name="sift-onnx")
def main() -> None:
    """Make an exported ONNX model bigger and sparser at the same FLOPs, and run it.

    \b
    sift-onnx models export resnet18 resnet18.onnx
    sift-onnx transform resnet18.onnx wide.onnx --wide 0.9
    sift-onnx inspect wide.onnx
    """
