"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
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


def test_a_count_is_at_least_one() -> None:
    assert "0 is not in the range x>=1" in run("--number", "0")


def test_a_folder_is_no_place_for_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "m.onnx"), "--json", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == f"Error: cannot write JSON to {str(tmp_path)!r} (--json): it is a folder; name a file\n"
