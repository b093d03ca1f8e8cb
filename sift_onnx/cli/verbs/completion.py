"""``sift-onnx completion``: the script that makes a shell complete what is typed after ``sift-onnx``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from sift_onnx.cli.verb import Verb

__all__ = ["COMPLETE_VARIABLE", "PROGRAM", "completion"]

PROGRAM = "sift-onnx"
# click's own name for it; what is in a user's start-up file asks for it.
COMPLETE_VARIABLE = "_SIFT_ONNX_COMPLETE"


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes verbs, options, names and files in SHELL.

    Bash and zsh read it when they start: put the line for yours into ~/.bashrc, or into ~/.zshrc behind compinit. Fish
    finds it in its folder of completions. Bash must be 4.4 or newer.

    Examples:
        eval "$(sift-onnx completion bash)"
        eval "$(sift-onnx completion zsh)"
        sift-onnx completion fish > ~/.config/fish/completions/sift-onnx.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the choices are click's
    click.echo(kind(click.get_current_context().find_root().command, {}, PROGRAM, COMPLETE_VARIABLE).source())
