"""The help of every verb: alike in order and words, with examples at its end that are what the parser takes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from sift_onnx.cli.app import VERBS, main

# Options that several verbs have, in the order in which each of them has its share.
SHARED = ("input_shapes", "full", "dry_run", "seed", "force", "json_path", "quiet", "verbosity")


def commands() -> dict[str, click.Command]:
    """By the words that call them."""
    context = click.Context(main)
    found: dict[str, click.Command] = {}
    for verb in VERBS:
        command = main.get_command(context, verb)
        assert command is not None
        found[verb] = command
        if isinstance(command, click.Group):
            found |= {f"{verb} {name}": inner for name, inner in command.commands.items()}
    return found


def help_of(words: str) -> str:
    result = CliRunner().invoke(main, [*words.split(), "--help"], prog_name="sift-onnx")
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("words", ["", *commands()])
def test_examples_stand_at_the_end_and_parse(words: str) -> None:
    _, heading, examples = help_of(words).partition("\nExamples:\n")
    assert heading
    assert not re.search(r"\S {2,}\S", examples)  # a line that the source continues is not joined
    calls = [line for line in examples.replace("\\\n", " ").splitlines() if "sift-onnx" in line]
    assert len(calls) >= 1
    for call in calls:
        arguments = shlex.split(re.search(r"\bsift-onnx ([^>)]*)", call)[1])  # type: ignore[index]
        assert " ".join(arguments).startswith(words)
        with main.make_context("sift-onnx", arguments) as context:
            name, command, rest = main.resolve_command(context, [*context._protected_args, *context.args])
            while rest != ["--help"]:
                assert command is not None
                with command.make_context(name, rest, parent=context) as context:
                    if not isinstance(command, click.Group):
                        break
                    name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize("words", commands())
def test_shared_options_come_last_and_in_one_order(words: str) -> None:
    names = [param.name for param in commands()[words].params if isinstance(param, click.Option)]
    shared = [name for name in names if name in SHARED]
    assert shared == [name for name in SHARED if name in names]
    assert names[len(names) - len(shared) :] == shared


@pytest.mark.parametrize("words", commands())
def test_no_type_is_shown_by_the_name_that_click_has_for_it(words: str) -> None:
    shown = help_of(words)
    for name in ("INTEGER", "FLOAT", "TEXT", "PATH", "RANGE"):
        assert not re.search(rf"--\S+ {name}\b", shown)


@pytest.mark.parametrize("columns", [60, 80])
def test_the_list_of_verbs_fits(columns: int) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "sift_onnx", "--help"],
        env={**os.environ, "COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert all(len(line) <= columns for line in shown.splitlines())
    for verb, what in VERBS.items():
        assert re.search(rf"^  {verb} +{what.split()[0]}", shown, re.MULTILINE)
        assert columns < 80 or what in shown


@pytest.mark.parametrize(("typed", "meant"), [("transfrom", "transform"), ("benchmrk", "benchmark")])
def test_a_verb_that_is_none_is_told_its_neighbour(typed: str, meant: str) -> None:
    result = CliRunner().invoke(main, [typed])
    assert result.exit_code == 2
    assert f"No such command {typed!r}. Did you mean {meant!r}?" in result.stderr
