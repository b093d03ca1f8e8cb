"""What a shell completes: verbs, options, names that the program knows, and files, without waiting for torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete, get_completion_class
from click.testing import CliRunner

from sift_onnx.backends.dataflow import available_presets
from sift_onnx.cli.app import VERBS, main
from sift_onnx.models import ARCHITECTURES

PROGRAM = Path(sys.executable).with_name("sift-onnx")


def completions(*words: str) -> list[str]:
    """What may stand for the last word; ``(file)`` and ``(dir)`` are for the shell to list."""
    *done, incomplete = words
    items = ShellComplete(main, {}, "sift-onnx", "_SIFT_ONNX_COMPLETE").get_completions(list(done), incomplete)
    return [item.value if item.type == "plain" else f"({item.type})" for item in items]


def commands() -> list[tuple[list[str], click.Command]]:
    """Every verb, and what stands behind ``models``."""
    context = click.Context(main)
    found = []
    for verb in VERBS:
        command = main.get_command(context, verb)
        assert command is not None
        found.append(([verb], command))
        if isinstance(command, click.Group):
            found += [([verb, name], inner) for name, inner in command.commands.items()]
    return found


def test_verbs() -> None:
    assert completions("") == list(VERBS)
    assert completions("tra") == ["transform", "train"]
    assert completions("models", "") == ["export", "list"]


@pytest.mark.parametrize(
    ("words", "command"), commands(), ids=lambda value: "-".join(value) if isinstance(value, list) else ""
)
def test_options_and_choices(words: list[str], command: click.Command) -> None:
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        longest = max(option.opts, key=len)
        assert longest in completions(*words, longest[:4])
        if isinstance(option.type, click.Choice):
            assert completions(*words, longest, "") == list(option.type.choices)
            assert completions(*words, f"{longest}=") == list(option.type.choices)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["models", "export", "resnet5"], ["resnet50", "resnet50-cifar"]),
        (["models", "export", "resnet18", "r.onnx", "--batch", "d"], ["dynamic"]),
        (["simulate", "m.onnx", "--preset", "wse"], ["wse2", "wse2-sdk", "wse3"]),
        (["simulate", "gpt3"], ["gpt3-1.3b"]),
        (["benchmark", "--backend", "o"], ["onnxruntime"]),
        (["benchmark", "m.onnx", "--backend", "dataflow:ws"], ["dataflow:wse2", "dataflow:wse2-sdk", "dataflow:wse3"]),
        (["profile", "m.onnx", "--backend", "c"], ["cpu"]),
        (["prune", "a", "b", "--pattern", "4:"], ["4:8", "4:8-transposable"]),
        (["train", "a", "b", "--device", "cu"], ["cuda", "cuda:0"]),
        (["train", "a", "b", "--resume", ""], ["(dir)"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_names(words: list[str], expected: list[str]) -> None:
    assert completions(*words) == expected


def test_every_architecture_and_preset_is_offered() -> None:
    assert completions("models", "export", "") == list(ARCHITECTURES)
    assert completions("simulate", "m.onnx", "--preset", "")[: len(available_presets())] == list(available_presets())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files of several kinds."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.onnx", "b.ONNX", "run.json", "recipe.yaml", "settings.yml", ".hidden.onnx", "data.npz", "model.pb"):
        (tmp_path / name).touch()
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "c.onnx").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["inspect", ""], ["a.onnx", "b.ONNX", "nets/"]),
        (["inspect", "a"], ["a.onnx"]),
        (["inspect", "nets/"], ["nets/c.onnx"]),
        (["inspect", "."], [".hidden.onnx"]),
        (["transform", "a.onnx", "b"], ["b.ONNX"]),
        (["report", "run.json", "--html", "p.html", "ru"], ["run.json"]),
        (["transform", "a.onnx", "w.onnx", "--recipe", "s"], ["settings.yml"]),
        (["train", "a.onnx", "t.onnx", "--data", "d"], ["data.npz"]),
        (["check", "a.onnx", "--json", "r"], ["run.json"]),
        # A folder alone is the shell's: behind a plain candidate it would begin the next word.
        (["inspect", "ne"], ["(dir)"]),
        # A model may have another name.
        (["inspect", "mod"], ["(file)"]),
        (["inspect", "gone/"], []),
    ],
)
def test_files(folder: Path, words: list[str], expected: list[str]) -> None:
    assert completions(*words) == expected


def test_a_name_that_needs_quotes_is_left_to_the_shell(folder: Path) -> None:
    (folder / "my model.onnx").touch()
    assert completions("inspect", "m") == ["(file)"]


def test_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert completions("inspect", "~/a") == ["~/a.onnx"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell], prog_name="sift-onnx")
    assert result.exit_code == 0
    kind = get_completion_class(shell)
    assert kind is not None
    assert result.stdout.strip() == kind(main, {}, "sift-onnx", "_SIFT_ONNX_COMPLETE").source().strip()
    if shutil.which(shell):
        subprocess.run([shell, "-n", "/dev/stdin"], input=result.stdout, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tr"], ["transform", "train"]),
        (["benchmark", "m.onnx", "--backend", "dataflow", ":", "wse3"], ["wse3"]),
        (["benchmark", "m.onnx", "--backend", "dataflow", ":"], list(available_presets())),
        (["benchmark", "m.onnx", "--backend", "dataflow:wse3"], ["dataflow:wse3"]),  # COMP_WORDBREAKS without a colon
        (["prune", "a", "b", "--pattern", "block", ":", "4"], ["4x4"]),
        (["prune", "a", "b", "--pattern", "4", ":", "8", "--method", ""], ["magnitude", "random"]),
        (["prune", "a", "b", "--method", "=", "r"], ["random"]),
    ],
)
def test_words_as_bash_breaks_them(words: list[str], expected: list[str]) -> None:
    bash = shutil.which("bash")
    if bash is None or not PROGRAM.exists():
        pytest.skip("needs bash and the installed program")
    quoted = " ".join(f"'{word}'" for word in ["sift-onnx", *words])
    script = f"""
        eval "$(sift-onnx completion bash)"
        compopt() {{ :; }}
        COMP_WORDS=({quoted}); COMP_CWORD={len(words)}
        _sift_onnx_completion sift-onnx
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "--norc", "-c", script], capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}
    )
    assert (done.stdout.split(), done.stderr) == (expected, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_option_with_its_value(shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    shell_complete = kind(main, {}, "sift-onnx", "_SIFT_ONNX_COMPLETE")
    items = shell_complete.get_completions(["prune", "a", "b"], "--method=r")
    assert [item.value for item in items] == ["--method=random"]
    assert [item.value for item in shell_complete.get_completions(["prune", "a", "b", "--method"], "r")] == ["random"]


@pytest.mark.parametrize(
    "words", [[""], ["benchmark", "--"], ["models", "export", ""], ["benchmark", "--backend", ""], ["simulate", "g"]]
)
def test_neither_torch_nor_onnxruntime_is_imported(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sift_onnx"],
        env={
            **os.environ,
            "_SIFT_ONNX_COMPLETE": "zsh_complete",
            "COMP_WORDS": " ".join(["sift-onnx", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert done.stdout.startswith("plain\n")
    assert "click" in imported
    assert not imported & {"torch", "onnxruntime", "matplotlib"}


def test_verbs_and_options_wait_for_no_onnx() -> None:
    program = (
        "import sys; from sift_onnx.cli.app import VERBS, main; import click; "
        "[main.get_command(click.Context(main), verb) for verb in VERBS]; "
        "roots = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(roots & {'onnx', 'onnxruntime', 'numpy', 'rich', 'torch'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
