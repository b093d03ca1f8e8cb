"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import onnx
import pytest
from builders import convolutions
from click.testing import CliRunner

from sift_onnx.cli import main
from sift_onnx.cli.options import count_option, input_shapes_option


@click.command()
@input_shapes_option
@count_option("--number", help="N.")
def echo(input_shapes: dict[str, tuple[int, ...]], number: int | None) -> None:
    """Print what arrives."""
    click.echo((input_shapes, number))


def run(*words: str) -> str:
    return CliRunner().invoke(echo, words).output


def test_input_shapes_become_a_mapping() -> None:
    assert run("--input-shapes", "x:1,3", "--input-shapes", "a:b:") == "({'x': (1, 3), 'a:b': ()}, None)\n"
    assert run() == "({}, None)\n"


def test_an_input_is_named_once(tmp_path: Path) -> None:
    shapes = ("--input-shapes", "x:1", "--input-shapes", "x:2")
    for verb in ("inspect", "check", "benchmark", "profile", "simulate"):
        result = CliRunner().invoke(main, [verb, str(tmp_path / "m.onnx"), *shapes])
        assert (result.exit_code, result.stderr) == (2, "Error: --input-shapes names 'x' twice\n"), verb


@pytest.mark.parametrize("shape", ["x", "x:1.5", "x:1,", ":1", "x:-1"])
def test_a_shape_that_is_none_is_refused(shape: str) -> None:
    assert "is not of the form NAME:1,3,224,224" in run("--input-shapes", shape)


def test_a_size_is_one_that_machines_can_count_to() -> None:
    assert "99999999999999999999 is above 2147483647" in run("--input-shapes", "x:1,99999999999999999999")


def test_a_count_is_at_least_one() -> None:
    assert "0 is not in the range x>=1" in run("--number", "0")


def test_a_count_is_one_that_machines_can_count_to(tmp_path: Path) -> None:
    assert "99999999999 is above 2147483647" in run("--number", "99999999999")
    for verb in ("simulate", "benchmark", "profile"):
        result = CliRunner().invoke(main, [verb, "--batch", "99999999999999999999999", str(tmp_path / "m.onnx")])
        assert (result.exit_code, "is above 2147483647" in result.stderr) == (2, True), verb


def test_a_folder_is_no_place_for_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "m.onnx"), "--json", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == f"Error: cannot write JSON to {str(tmp_path)!r} (--json): it is a folder; name a file\n"


def commands(group: click.Group = main) -> Iterator[tuple[str, click.Command]]:
    """Every verb, by its words."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {words}", inner) for words, inner in commands(command))
        elif command is not None:
            yield name, command


def is_number(param: click.Parameter) -> bool:
    return isinstance(param.type, click.types.FloatParamType)


NUMBERS = [(verb, param.opts[0]) for verb, command in commands() for param in command.params if is_number(param)]


@pytest.mark.parametrize("value", ["nan", "-inf", "1e999"])
@pytest.mark.parametrize(("verb", "option"), NUMBERS)
def test_a_number_is_finite(verb: str, option: str, value: str) -> None:
    result = CliRunner().invoke(main, [*verb.split(), f"{option}={value}", "a", "b"])
    assert result.exit_code == 2
    assert option in result.stderr
    assert "finite" in result.stderr


def test_numbers_of_all_verbs_are_known() -> None:
    assert {option for _, option in NUMBERS} >= {
        "--seconds",
        "--warmup",
        "--min-speedup",
        "--atol",
        "--wide",
        "--width",
    }


@pytest.mark.parametrize("family", ["--wide", "--parallel", "--factorized", "--doped"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_sparsity_is_finite(tmp_path: Path, family: str, value: str) -> None:
    onnx.save(convolutions(), tmp_path / "in.onnx")
    words = ["transform", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), f"{family}={value}"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert "not a number" in result.stderr
