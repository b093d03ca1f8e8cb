"""The ``sift-onnx`` command: finds the verb, and maps what goes wrong to one line and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from sift_onnx.cli import shell_words as shell_words  # registers how shells take words
from sift_onnx.cli.flags import with_flags
from sift_onnx.cli.output import flush_results
from sift_onnx.cli.verb import VerbGroup
from sift_onnx.errors import SiftError, UnsupportedError, printable

# Each is a module of sift_onnx.cli.verbs with a click command of the same name. It is imported when the verb is called,
# so that neither `--help` nor a shell's completion waits for onnxruntime or torch.
VERBS = {
    "transform": "Make a model bigger and sparser at the same FLOPs",
    "prune": "Mask a share of the weights of a model as it is",
    "densify": "Drop the masks of a model",
    "convert": "Store masked weights as dense or as sparse tensors",
    "inspect": "Shape, non-zeros and MACs of each weight layer",
    "check": "Whether a model is sound, and computes what another does",
    "benchmark": "Time models, and compare them with a baseline",
    "generate": "Tokens of a decoder, one at a time",
    "quantize": "Weights and activations to bytes, with masks kept",
    "evaluate": "Accuracy of models on data, beside a baseline",
    "train": "Train a model with masks that stay or evolve",
    "simulate": "Cycles and energy on a machine that skips zeros",
    "profile": "Time each node of a model, and say where it runs",
    "report": "One page of HTML from results of the other verbs",
    "models": "List the paper's architectures, or export one",
    "doctor": "What this installation and this machine have",
    "completion": "Print the script that completes words in a shell",
}

# The exit code of a program that was ended by SIGPIPE, as shells report it: 128 and the number of the signal.
READER_GONE = 141


class _ReaderGoneError(Exception):
    """The reader of the results has closed the pipe; click would leave with 1, which means a check that failed."""


class LazyVerbs(VerbGroup):
    """A click group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"sift_onnx.cli.verbs.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        verbs = [CompletionItem(verb, help=what) for verb, what in VERBS.items() if verb.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        with _reader_watched():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader_watched():
            result = super().invoke(ctx)
            flush_results()
        return result

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from sift_onnx.cli.plugin_list import plugin_rows

        rows = plugin_rows()
        if rows:
            with formatter.section("Plug-ins"):
                formatter.write_dl(rows)
        super().format_epilog(ctx, formatter)

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        extra["standalone_mode"] = False
        if sys.stdout is None:  # `>&-`
            sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        try:
            with _warnings_in_one_line():
                result = super().main(args, **extra)
        except click.exceptions.Exit as stop:
            _leave(stop.exit_code)
        except click.ClickException as mistake:
            with contextlib.suppress(OSError):
                mistake.show()
            _leave(mistake.exit_code)
        except SiftError as mistake:
            _leave(mistake.exit_code, f"Error: {with_flags(str(mistake))}")
        except MemoryError as shortage:
            reason = printable(f" ({shortage})" if str(shortage) else "")
            _leave(UnsupportedError.exit_code, f"Error: there is not enough memory for this model{reason}")
        except (KeyboardInterrupt, click.Abort):
            _leave(130, "Interrupted.")
        except _ReaderGoneError:
            _leave(READER_GONE)
        _leave(result if isinstance(result, int) else 0)


def _leave(exit_code: int, last_words: str | None = None) -> NoReturn:
    """End the process, even if its streams are closed."""
    if last_words is not None:
        with contextlib.suppress(OSError):
            click.echo(last_words, err=True)
    try:
        sys.stdout.flush()
    except OSError:
        # The interpreter would try again when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(exit_code)


@contextmanager
def _reader_watched() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGoneError from error


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Warnings go to stderr, each once, without the location in the code that Python would add."""
    said: set[str] = set()

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        text = with_flags(printable(str(message)))
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

    Examples:
        sift-onnx models export resnet18 resnet18.onnx
        sift-onnx transform resnet18.onnx wide.onnx --wide 0.9
        sift-onnx inspect wide.onnx
        sift-onnx transform --help
    """
