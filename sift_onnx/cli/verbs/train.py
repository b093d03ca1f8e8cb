"""``sift-onnx train``: trains a model, with masks that stay or evolve, and writes it back."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

from sift_onnx.cli.candidates import files, folders, words
from sift_onnx.cli.interruption import asked_to_stop, command_again
from sift_onnx.cli.options import (
    WrittenPath,
    count_option,
    data_option,
    file_option,
    force_option,
    in_out_arguments,
    output_options,
    place_option,
    seed_option,
)
from sift_onnx.cli.output import deliver, note, progress_bar
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import MissingExtraError, OutputError, UsageError


@click.command(cls=Verb)
@in_out_arguments
@file_option(
    "--recipe",
    "recipe_file",
    completes=files(".yaml", ".yml"),
    help="Settings under the key 'training', in YAML: loss, optimizer, schedule, sparsity and so on.",
)
@data_option(
    "A function that returns a DataLoader or any iterable of (inputs..., target); arrays by the names of the "
    "model's inputs, and 'target', with 'val_' in front for validation; a folder of images; or a data set of Hugging "
    "Face's.",
)
@click.option(
    "--augment",
    type=click.Choice(["none", "crop", "crop-flip", "resized-crop-flip"]),
    help="Random changes of images to train on, by torchvision; whatever the recipe says.",
)
@count_option("--epochs", help="Passes over the data, whatever the recipe says.")
@file_option("--resume", completes=folders, metavar="DIR", help="Go on from the newest checkpoint in DIR.")
@place_option(
    "--checkpoints",
    completes=folders,
    metavar="DIR",
    help="Where checkpoints go, if the recipe has checkpoint_every.  [default: OUT.checkpoints]",
)
@click.option(
    "--device",
    metavar="NAME",
    default="auto",
    show_default=True,
    shell_complete=words(lambda: {"auto": "CUDA if there is one", "cpu": None, "cuda": None, "cuda:0": None}),
    help="auto (CUDA if there is one), cpu, cuda or cuda:N.",
)
@click.option(
    "--parallelism",
    type=click.Choice(["ddp", "fsdp2"]),
    help="Under torchrun: the whole model on each process, or a part of it; whatever the recipe says.",
)
@click.option(
    "--kernels",
    type=click.Choice(["auto", "sparse", "dense"]),
    help="Of masked layers: those that compute with active weights alone, dense ones, or one of them by the layer's "
    "density; whatever the recipe says.  [default: auto]",
)
@file_option(
    "--teacher",
    completes=files(".onnx"),
    metavar="MODEL",
    help="A trained model to learn from besides, as the dense original; see 'distillation' of the recipe.",
)
@count_option("--threads", help="Threads of torch and of sparse kernels.  [default: torch's number]")
@place_option("--log", completes=files(), type=WrittenPath(path_type=Path), help="Append log lines in JSON to FILE.")
@place_option(
    "--tensorboard",
    completes=folders,
    metavar="DIR",
    help="Write the log's figures to DIR for TensorBoard, which has to be installed.",
)
@click.option(
    "--track",
    metavar="NAME[:WHERE]",
    multiple=True,
    shell_complete=words(lambda: dict.fromkeys(("tensorboard:", "wandb", "mlflow"))),
    help="Hand the log's figures to tensorboard:DIR, wandb[:PROJECT] or mlflow[:EXPERIMENT] (repeatable).",
)
@seed_option
@force_option
@output_options
def train(
    source: Path,
    target: Path,
    recipe_file: Path | None,
    data: str,
    normalize: str | None,
    augment: Literal["none", "crop", "crop-flip", "resized-crop-flip"] | None,
    epochs: int | None,
    resume: Path | None,
    checkpoints: Path | None,
    device: str,
    parallelism: Literal["ddp", "fsdp2"] | None,
    kernels: Literal["auto", "sparse", "dense"] | None,
    teacher: Path | None,
    threads: int | None,
    log: Path | None,
    tensorboard: Path | None,
    track: tuple[str, ...],
    seed: int,
    force: bool,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Train the model IN, and write it to OUT with new weights and masks. Nothing else changes.

    Nodes that were exported in training mode are written in inference mode. Masks stay as they are unless the recipe's
    sparsity says how they evolve. Runs as it is under torchrun.

    Examples:
        sift-onnx train wide.onnx trained.onnx --recipe rigl.yaml --data digits.npz
        sift-onnx train wide.onnx trained.onnx --data data.py:loader --epochs 40
        torchrun --nproc-per-node 2 --no-python -- \\
            sift-onnx train wide.onnx trained.onnx --recipe rigl.yaml --data data.py:loader
    """
    from sift_onnx.recipe import Recipe

    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("training needs torch: pip install 'sift-onnx[train]'")
    if resume is not None and checkpoints is not None:
        raise UsageError("--resume names the folder of the checkpoints already; leave --checkpoints out")
    from sift_onnx.training.trainer.settings import TrainingSettings
    from sift_onnx.training.trainer.train_file import train_file

    settings = TrainingSettings()
    if recipe_file is not None:
        recipe = Recipe.load(recipe_file)
        if recipe.training is None:
            raise UsageError(f"{recipe_file} has no 'training'; its passes are for sift-onnx transform")
        settings = TrainingSettings.of_recipe(recipe.training, str(recipe_file))
    if epochs is not None:
        settings = dataclasses.replace(settings, epochs=epochs, steps=None)
    said: dict[str, Any] = {"parallelism": parallelism, "normalize": normalize, "augment": augment}
    settings = dataclasses.replace(settings, **{name: value for name, value in said.items() if value is not None})
    if click.get_current_context().get_parameter_source("seed") is ParameterSource.COMMANDLINE:
        settings = dataclasses.replace(settings, seed=seed)
    # Of several ranks the first one speaks.
    verbosity = verbosity if os.environ.get("RANK", "0") == "0" else -1
    trackers = (*track, *([] if tensorboard is None else [f"tensorboard:{tensorboard}"]))
    with (
        _named_on_interrupt(),
        asked_to_stop(verbosity) as stopping,
        _log_lines(log, trackers, verbosity) as report,
        progress_bar(verbosity) as bar,
    ):
        task = bar.add_task("training", total=None)

        def progress(step: int, total: int, loss: float) -> None:
            bar.update(task, completed=step, total=total, description=f"training, loss {loss:.4g}")

        document = train_file(
            source,
            target,
            data,
            settings,
            device=device,
            checkpoints=checkpoints,
            resume=resume,
            kernels=kernels,
            threads=threads,
            teacher=teacher,
            force=force,
            report=report,
            progress=progress,
            stopping=stopping,
        )
    if document is not None:
        summary = _what_it_is(document)
        deliver(document, json_path, lambda _: [summary])
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _leave_at_once()


def _leave_at_once() -> None:
    """End the process without the interpreter's shutdown.

    Threads of torch's process groups may still be there then, and their destructors abort the process: torchrun would
    report a failed rank after everything has been written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextlib.contextmanager
def _named_on_interrupt() -> Iterator[None]:
    """Say where an interrupted run has its checkpoint, and by which command it goes on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        step, kept = getattr(stop, "step", None), getattr(stop, "checkpoint", None)
        if kept is not None:
            note(f"Interrupted after step {step}; the newest checkpoint is {kept}")
            again = command_again(click.get_current_context(), resume=str(kept.parent), checkpoints=None)
            note(f"Go on with: {again}")
        elif step is not None:
            note(f"Interrupted after step {step}; no checkpoint is kept beside those of another run (--checkpoints)")
        raise


@contextlib.contextmanager
def _log_lines(path: Path | None, trackers: Sequence[str], verbosity: int) -> Iterator[Any]:
    """What hands log lines to the file and trackers, and tells warnings, kernels and epochs, with -v all, on stderr."""
    from sift_onnx.training.trainer.trackers import open_tracker

    leads = os.environ.get("RANK", "0") == "0"
    with contextlib.ExitStack() as stack:
        file = None
        try:
            tracked = [stack.enter_context(open_tracker(spec)) for spec in trackers if leads]
        except MissingExtraError as error:
            raise MissingExtraError(f"{error}; or use --log FILE, whose lines are JSON") from error
        if path is not None and leads:
            try:
                file = stack.enter_context(path.open("a", encoding="utf-8", buffering=1))
            except OSError as error:
                raise OutputError(f"cannot write {path} (--log): {error.strerror or error}") from error

        def report(event: dict[str, Any]) -> None:
            line = json.dumps(event)
            if file is not None:
                file.write(line + "\n")
            for track in tracked:
                track(event)
            if event["event"] == "warning":
                note(f"Warning: {event['text']}", verbosity)
            elif event["event"] == "kernels":
                note(_sentence(event["text"]), verbosity)
                if verbosity > 0:
                    note(line, verbosity)
            elif verbosity > 0:
                note(line, verbosity)
            elif event["event"] == "early-stop":
                note(_sentence(event["text"]), verbosity)
            elif event["event"] == "epoch" and not sys.stderr.isatty():
                # On a terminal there is a progress bar.
                note(_epoch_line(event), verbosity)

        yield report


def _epoch_line(event: Mapping[str, Any]) -> str:
    of = f"/{event['epochs']}" if event["epochs"] is not None else ""
    parts = [f"epoch {event['epoch']}{of}: loss {event['loss']:.4g}"]
    validation = event["validation"]
    if validation:
        parts.append(f"validation loss {validation['loss']:.4g}")
    if "accuracy" in validation:
        parts.append(f"accuracy {validation['accuracy']:.2%}")
    return ", ".join([*parts, f"{event['seconds']:.1f} s"])


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _what_it_is(document: dict[str, Any]) -> str:
    from sift_onnx.reports.numbers import rate

    validation, sparsity = document["validation"], document["sparsity"]
    steps = document["steps"]
    parts = [
        f"{document['out']}: {steps} step{'s' * (steps != 1)} in {document['seconds']:.1f} s on {document['device']}"
    ]
    if document["loss"] is not None:
        parts.append(f"loss {document['loss']:.4g}")
    if validation:
        parts.append(f"validation loss {validation['loss']:.4g}")
    if "accuracy" in validation:
        parts.append(f"accuracy {validation['accuracy']:.2%}")
    if "best_step" in document:
        parts.append(f"the best state, of step {document['best_step']}")
    if sparsity["numel"]:
        parts.append(f"{sparsity['layers']} masked layers {1 - sparsity['nnz'] / sparsity['numel']:.2%} sparse")
    if document["kernels"]["layers"] and document["kernels"]["setting"] != "dense":
        # A run that was over when it was resumed has none.
        if document["examples_per_second"] is not None:
            parts.append(f"{rate(document['examples_per_second'])} examples/s")
        original = document["original_examples_per_second_estimate"]
        if original is not None:
            parts.append(f"a dense model of as many multiply-accumulates by estimate {rate(original)}")
    return ", ".join(parts) + f". Next: sift-onnx check {document['out']}"
