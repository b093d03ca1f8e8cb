"""Options of verbs against the fields of the passes that they set: the two say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import pytest

from sift_onnx.cli.verbs.prune import prune
from sift_onnx.cli.verbs.transform import FAMILIES, transform
from sift_onnx.passes import get_pass
from sift_onnx.passes.declared_settings import Setting, declared_settings

VERBS = {"transform": (transform, FAMILIES), "prune": (prune, ("prune",))}
GENERAL = {"source", "target", "storage", "dry_run", "force", "json_path", "verbosity", "recipe_file", "full", "help"}


@pytest.fixture(params=VERBS)
def verb(request: pytest.FixtureRequest) -> tuple[click.Command, list[dict[str, Setting]]]:
    """A verb and the settings of each of its passes, but for the sparsity, which the verbs ask for."""
    command, names = VERBS[request.param]
    settings = [dict(declared_settings(get_pass(name))) for name in names]
    return command, [{name: s for name, s in each.items() if name != "sparsity"} for each in settings]


def defaults_of(command: click.Command) -> Mapping[str, Any]:
    """What a verb hands on where no option is given."""
    more = ["--sparsity", "0.5"] if command is prune else []
    return command.make_context("verb", ["in.onnx", "out.onnx", *more]).params


def test_an_option_has_the_default_of_its_setting(verb: tuple[click.Command, list[dict[str, Setting]]]) -> None:
    command, passes = verb
    defaults = defaults_of(command)
    for settings in passes:
        for name, setting in settings.items():
            assert setting.form.held(defaults[name]) == setting.form.held(setting.default), name


def test_an_option_has_the_choices_of_its_settings(verb: tuple[click.Command, list[dict[str, Setting]]]) -> None:
    command, passes = verb
    words = {str(param.name): set(getattr(param.type, "choices", ())) for param in command.params}
    for name in {name for settings in passes for name in settings}:
        choices = {word for settings in passes if name in settings for word in settings[name].choices}
        assert words[name] == choices, name


def test_an_option_says_first_what_its_setting_says(verb: tuple[click.Command, list[dict[str, Setting]]]) -> None:
    command, passes = verb
    texts = {str(param.name): str(getattr(param, "help", "")) for param in command.params}
    for settings in passes:
        for name, setting in settings.items():
            assert texts[name].lower().startswith(setting.help.lower()), name


def test_every_option_sets_something(verb: tuple[click.Command, list[dict[str, Setting]]]) -> None:
    command, passes = verb
    settable = {name for settings in passes for name in settings}
    assert defaults_of(command).keys() - GENERAL - {*FAMILIES, "sparsity"} == settable
