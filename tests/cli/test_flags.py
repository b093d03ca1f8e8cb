"""Settings that messages name: in Python as keywords, on the command line as options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import sift_onnx
from sift_onnx.cli import main
from sift_onnx.cli.app import VERBS
from sift_onnx.cli.flags import SETTINGS, with_flags

ROOT = Path(sift_onnx.__file__).parent.parent
ROOMS = [ROOT / name for name in ("sift_onnx", "passes", "backends", "models")]
CORE = [path for room in ROOMS for path in room.rglob("*.py") if ROOT / "sift_onnx" / "cli" not in path.parents]
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in CORE}
# A command that is cited has its flags; --json is what wrote the files that a report reads.
CITED = re.compile(rf"\b({'|'.join(VERBS)}) --[a-z-]+|--json\b|\bvar\(--\w+\)")
# Of algorithms in a recipe; no verb that runs them has such an option.
KEYS = {"sparsity"}
NAMED = re.compile(r"`([a-z_]+)(?:=[^`]*)?`")


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The text of each literal that is no docstring; of an f-string, names of parts that are put in."""
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "x" for p in node.values)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inner.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


def keywords() -> set[str]:
    """Names of parameters of functions, and of fields of classes, outside of the command line."""
    nodes = [node for tree in TREES.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    fields = [part for node in nodes if isinstance(node, ast.ClassDef) for part in node.body]
    names = {part.target.id for part in fields if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)}
    return names | {arg.arg for f in functions for arg in (*f.args.args, *f.args.kwonlyargs)}


def options() -> set[str]:
    """Long options of all verbs, as settings are spelled."""
    commands: list[click.Command] = []
    for verb in VERBS:
        command = main.get_command(click.Context(main), verb)
        assert command is not None
        commands += [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    flags = [flag for command in commands for param in command.params for flag in param.opts]
    return {flag.removeprefix("--").replace("-", "_") for flag in flags if flag.startswith("--")}


def test_each_setting_is_an_option_of_a_verb_and_a_keyword_in_python() -> None:
    assert set(SETTINGS) <= options()
    assert set(SETTINGS) <= keywords()


def test_each_setting_is_named_by_a_message() -> None:
    named = {name for tree in TREES.values() for _, text in texts(tree) for name in NAMED.findall(text)}
    named |= {"only", "keep_dense"}  # Selection puts these in
    assert set(SETTINGS) == named & options() - KEYS


def test_messages_of_the_core_have_no_flags() -> None:
    found = [
        f"{path}:{line}: {text}"
        for path, tree in TREES.items()
        for line, text in texts(tree)
        if re.search(r"(?<![\w-])--[a-z]", CITED.sub("", text))
    ]
    assert not found


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("drop `keep_dense`", "drop --keep-dense"),
        ("use `storage='dense'`", "use --storage dense"),
        ("add `force=True`", "add --force"),
        ("`attention='heads'` or `'keep'` leaves", "--attention heads or keep leaves"),
        ("`input_shapes={'x': (1, 3, N, N)}` says", "--input-shapes x:1,3,N,N says"),
        ("`input_shapes={'x': (N,)}`", "--input-shapes x:N"),
        ('`input_shapes={"it\'s": (1, ...)}`', "--input-shapes it's:1,..."),
        ("torch says that `lr=x` is wrong", "torch says that `lr=x` is wrong"),
        ("`only` '*.weight' matches", "--only '*.weight' matches"),
        ("`data", "`data"),
    ],
)
def test_a_setting_becomes_an_option(message: str, shown: str) -> None:
    assert with_flags(message) == shown
    assert with_flags({"layers": [{"reason": message, "nnz": 3}]}) == {"layers": [{"reason": shown, "nnz": 3}]}
