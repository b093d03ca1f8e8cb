"""Verbs of the command line, called from Python: the same checks and the same code, and the result handed back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import onnx

from sift_onnx.cli import main
from sift_onnx.cli.output import results_taken
from sift_onnx.errors import CheckError, UsageError
from sift_onnx.model import Model, ModelLike

__all__ = ["call_verb", "files_of", "names_of"]

Report = TypeVar("Report")


def call_verb(verb: str, kind: type[Report], arguments: Sequence[str], options: Mapping[str, Any]) -> Report:
    """Call a verb.

    Args:
        verb: its name.
        kind: of what it reports.
        arguments: in their order.
        options: by their names as Python has them. None and False leave one out, sequences repeat it.

    Returns:
        What the verb reports, also where a check in it failed.

    Raises:
        SiftError: what the verb raises.
    """
    words = [word for name, value in options.items() for word in _words("--" + name.replace("_", "-"), value)]
    command = main.get_command(click.Context(main), verb)
    assert command is not None
    with results_taken() as taken:
        try:
            command.main([*words, "-q", "--", *arguments], prog_name=f"sift-onnx {verb}", standalone_mode=False)
        except click.ClickException as mistake:
            raise UsageError(mistake.format_message()) from None
        except click.Abort:
            raise KeyboardInterrupt from None
        except CheckError:
            if not taken:
                raise
    (result,) = taken
    assert isinstance(result, kind)
    return result


def _words(flag: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, Mapping):  # of shapes by the names of inputs
        for name, shape in value.items():
            if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable):
                raise UsageError(f"the shape of input {name!r} is {shape!r}; pass a list of sizes")
        return [w for name, shape in value.items() for w in (flag, f"{name}:{','.join(map(str, shape))}")]
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [word for each in values for word in (flag, str(each))]


def names_of(models: Sequence[ModelLike], paths: Sequence[str]) -> dict[str, str]:
    """Names of the models for results, by the paths that :func:`files_of` gave. Temporary files lose their folder."""
    return {
        path: path if isinstance(model, (str, os.PathLike)) else Path(path).name
        for model, path in zip(models, paths, strict=True)
    }


@contextmanager
def files_of(models: Sequence[ModelLike]) -> Iterator[list[str]]:
    """Paths of models: their own, or of files that are there as long as the context."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, model in enumerate(models):
            if isinstance(model, (str, os.PathLike)):
                paths.append(os.fspath(model))
                continue
            path = Path(folder, f"model-{number}.onnx" if number else "model.onnx")
            if isinstance(model, onnx.ModelProto):
                onnx.save(model, path)  # as it is, whatever is wrong with it
            else:
                Model.load(model).save(path)
            paths.append(str(path))
        yield paths
