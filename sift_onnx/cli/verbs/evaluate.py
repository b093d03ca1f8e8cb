"""``sift-onnx evaluate``: how good the outputs of models are on data."""

from __future__ import annotations

from typing import Any

import click

from sift_onnx.cli.candidates import backends as known_backends
from sift_onnx.cli.candidates import files, words
from sift_onnx.cli.options import (
    FilePath,
    Number,
    count_option,
    data_option,
    file_option,
    model_argument,
    number_option,
    output_options,
    seed_option,
)
from sift_onnx.cli.output import deliver, notes, progress_bar
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import CheckError, UsageError


@click.command(cls=Verb)
@model_argument("models", type=FilePath(), metavar="MODEL...", nargs=-1, required=True)
@data_option("What train takes: held-out examples of it, or all where nothing is held out.")
@click.option(
    "--backend",
    "backends",
    metavar="NAME",
    multiple=True,
    default=("cpu",),
    show_default=True,
    shell_complete=files(".py", names=known_backends),
    help="Back end to run on: cpu, onnxruntime, or FILE.py:CLASS for your own (repeatable).",
)
@click.option(
    "--metric",
    "metrics",
    metavar="NAME",
    multiple=True,
    shell_complete=words(lambda: dict.fromkeys(("top1", "top5", "loss", "perplexity", "mse", "mae"))),
    help="top1, top5, loss, perplexity, mse, mae, or FILE.py:NAME for your own (repeatable).  [default: by the task]",
)
@file_option(
    "--baseline",
    completes=files(".onnx"),
    type=FilePath(),
    metavar="MODEL",
    help="Model to compare with, on the same examples and back ends.",
)
@count_option("--batch", help="Examples per run.  [default: the model's own, or the data's, or 64]")
@count_option("--samples", help="At most N examples.")
@count_option("--threads", help="Threads.  [default: cores this process may use]")
@number_option(
    "--max-drop",
    Number(min=0),
    "Gate: fail if the first metric of a MODEL is worse than --baseline's by more than this.",
)
@seed_option
@output_options
def evaluate(
    models: tuple[str, ...],
    data: str,
    backends: tuple[str, ...],
    metrics: tuple[str, ...],
    baseline: str | None,
    max_drop: float | None,
    json_path: str | None,
    verbosity: int,
    **options: Any,
) -> None:
    """Measure the accuracy of MODELs on data.

    The task is found by the shapes of outputs and targets: classes, the next token, or numbers. Losses are
    means over the examples, in nats.

    Examples:
        sift-onnx evaluate trained.onnx --data digits.npz
        sift-onnx evaluate int8.onnx --data digits.npz --baseline trained.onnx --max-drop 0.005
        sift-onnx evaluate gpt.onnx --data data.py:tokens --metric perplexity --backend cpu --backend onnxruntime
    """
    from sift_onnx.evaluation.evaluate import evaluate as evaluate_models
    from sift_onnx.reports.evaluation import drops, evaluation_words

    if max_drop is not None and baseline is None:
        raise UsageError("--max-drop needs --baseline: worse than what?")
    with progress_bar(verbosity) as bar:
        task = bar.add_task("evaluating", total=None)
        report = evaluate_models(
            list(models),
            data,
            backend=backends,
            metric=metrics,
            baseline=baseline,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            **options,
        )
    deliver(report, json_path, evaluation_words)
    notes(verbosity, None, report.warnings)
    missed = [] if max_drop is None else list(drops(report, max_drop))
    if missed:
        raise CheckError("; ".join(missed))
