"""The interface that other programs rely on: names, arguments and options that are there, whatever is added."""

from __future__ import annotations

import importlib
import inspect

import click
import pytest

import sift_onnx
from sift_onnx.cli import main

# Parameters in their order, with "*" before those that are keywords only; defaults of the others are not pinned.
SIGNATURES = {
    "load": "path",
    "save": "model path storage='dense' force=False",
    "transform": "model * wide=None parallel=None factorized=None doped=None recipe=None",
    "inspect": "model",
    "masks": "model",
    "to_torch": "model",
    "write_back": "model module",
    "prune": "model sparsity",
    "densify": "model",
    "check": "model reference=None",
    "benchmark": "models",
    "evaluate": "model data",
    "profile": "model",
    "report": "results html",
    "simulate": "model preset='wse2' batch=None training=False fidelity='fast'",
}
NAMES = {
    "passes": "Wide Parallel Factorized Doped LowRank Prune Densify UnshareInitializers FoldBatchNorm InsertBatchNorm",
    "training.sparse": "Static GMP SET RigL Group SparsityAlgorithm DynamicSparsityAlgorithm configure attach",
    "errors": "SiftError UsageError UnsupportedError BackendError CheckError",
}
NEED_TORCH = {"to_torch", "write_back", "training.sparse"}
SELECTION = "--pattern --only --keep-dense"
OPTIONS = {
    "transform": "--wide --parallel --factorized --doped --recipe --init --activation --budget --attention "
    f"--distribution {SELECTION} --round-to --storage --input-shapes --strict --dry-run --seed --force",
    "prune": f"--sparsity --method {SELECTION} --seed --force",
    "densify": "--force",
    "inspect": "--input-shapes",
    "check": "--atol --rtol --seed",
    "convert": "--storage --force",
    "benchmark": "--backend --baseline --batch --threads --seconds --warmup --max-latency-ms --min-speedup --seed",
    "quantize": "--data --format --force",
    "evaluate": "--data --backend --metric --baseline",
    "profile": "--trace --backend",
    "simulate": "--preset --batch --training --weights --fidelity --trace --html",
    "train": "--recipe --data --epochs --resume --device --threads --kernels --teacher --seed --force",
    "generate": "--prompt-ids --max-new-tokens --temperature --top-k --seed",
    "models list": "",
    "models export": "--width --num-classes --batch --keep-batch-norm --fold-batch-norm --force",
    "report": "--html --model --force",
    "doctor": "",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_function_takes_what_it_took(name: str) -> None:
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    words = SIGNATURES[name].split()
    found = list(inspect.signature(getattr(sift_onnx, name)).parameters.values())
    positional = words[: words.index("*")] if "*" in words else words
    for word, parameter in zip(positional, found, strict=False):
        assert spelled(parameter, "=" in word) == word
        assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    assert len(found) >= len(positional)
    assert set(words[len(positional) + 1 :]) <= {spelled(parameter, True) for parameter in found}


def spelled(parameter: inspect.Parameter, with_default: bool) -> str:
    return f"{parameter.name}={parameter.default!r}" if with_default else parameter.name


@pytest.mark.parametrize("module", NAMES)
def test_a_module_has_the_names_that_it_had(module: str) -> None:
    if module in NEED_TORCH:
        pytest.importorskip("torch")
    there = importlib.import_module(f"sift_onnx.{module}")
    assert [name for name in NAMES[module].split() if not hasattr(there, name)] == []


@pytest.mark.parametrize("words", OPTIONS)
def test_a_verb_takes_the_options_that_it_took(words: str) -> None:
    command: click.Command = main
    for word in words.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    flags = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    assert set(f"{OPTIONS[words]} --json -v -q".split()) <= flags
