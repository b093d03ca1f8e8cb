"""Long runs that are interrupted: they come to an end of their own, and name the command that goes on."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

__all__ = ["asked_to_stop", "command_again"]


@contextmanager
def asked_to_stop(verbosity: int = 0) -> Iterator[Callable[[], bool]]:
    """Whether the run was asked to stop, by Ctrl-C or by SIGTERM, which batch systems send; a second one stops it.

    Under torchrun, and off the main thread, signals are left as they are: ranks would not stop at the same step.
    """
    asked = threading.Event()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: Any) -> None:
        asked.set()
        if verbosity >= 0:
            click.echo("Stopping after this step; a second signal stops at once.", err=True)
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield asked.is_set
    finally:
        restore()


def command_again(context: click.Context, **changes: str | None) -> str:
    """The command that a verb was called by, quoted for a shell.

    Args:
        context: of the call.
        changes: other values of options, by the names of their parameters; None leaves one out.
    """
    words = ["sift-onnx", str(context.info_name)]
    for param in context.command.params:
        name = str(param.name)
        if name in changes:
            words += [] if changes[name] is None else [param.opts[0], str(changes[name])]
        elif context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            words += _words(param, context.params[name])
    return shlex.join(words)


def _words(param: click.Parameter, value: Any) -> list[str]:
    if isinstance(param, click.Argument):
        return [str(value)]
    if isinstance(value, bool):
        return [param.opts[0]] if value else list(param.secondary_opts[:1])
    values = value if isinstance(value, tuple) else (value,)
    return [word for each in values for word in (param.opts[0], str(each))]
