"""``sift-onnx generate``: tokens from a decoder, one at a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sift_onnx.cli.options import (
    FilePath,
    Number,
    TokenIds,
    backend_option,
    count_option,
    model_argument,
    number_option,
    output_options,
    seed_option,
)
from sift_onnx.cli.output import deliver, status_line, to_stdout
from sift_onnx.cli.verb import Verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sift_onnx.records.decoding import GenerationReport


@click.command(cls=Verb)
@model_argument("path", type=FilePath())
@click.option(
    "--prompt-ids",
    "prompts",
    type=TokenIds(),
    multiple=True,
    required=True,
    help="Token ids of the prompt, e.g. 1,2,3 (repeatable: several sequences are generated together).",
)
@count_option("--max-new-tokens", help="New tokens of each sequence.", default=32, show_default=True)
@number_option("--temperature", Number(min=0), "0 takes the most likely token; otherwise one is drawn.", default=0.0)
@click.option(
    "--top-k",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Draw from the N most likely tokens; 0 draws from all.",
)
@click.option("--eos", type=click.IntRange(min=0), metavar="ID", multiple=True, help="A token that ends a sequence.")
@backend_option()
@count_option("--threads", help="Threads.  [default: cores this process may use]")
@seed_option
@output_options
def generate(
    path: str,
    prompts: tuple[tuple[int, ...], ...],
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    eos: tuple[int, ...],
    backend: str,
    threads: int | None,
    seed: int,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Generate token ids with a decoder that has its cache as inputs and outputs.

    The ids of a single sequence are printed as they come; several sequences have a line each.

    Examples:
        sift-onnx generate decoder.onnx --prompt-ids 1,2,3 --max-new-tokens 20
        sift-onnx generate decoder.onnx --prompt-ids 1,2,3 --temperature 0.8 --top-k 40 --seed 1
    """
    from sift_onnx.backends.decoding.decoder import Decoder
    from sift_onnx.backends.measure import host
    from sift_onnx.records.decoding import GenerationReport

    with status_line(f"compiling {path}", verbosity):
        decoder = Decoder(path, threads, backend=backend)
    streams = len(prompts) == 1 and json_path != "-"
    generated: list[list[int]] = [[] for _ in prompts]
    times = [time.perf_counter()]
    steps = decoder.generate(
        prompts, max_new_tokens, temperature=temperature, top_k=top_k, seed=seed, eos=eos
    )  # fmt: skip
    for tokens in steps:
        times.append(time.perf_counter())
        for sequence, token in zip(generated, tokens, strict=True):
            if token is not None:
                sequence.append(token)
        if streams:
            _print(f"{' ' if len(times) > 2 else ''}{tokens[0]}")
    if streams:
        _print("\n")
    after = sum(map(len, generated)) - len(prompts)
    report = GenerationReport(
        host=host(),
        model=path,
        backend=backend,
        threads=decoder.threads,
        prompts=prompts,
        generated=tuple(map(tuple, generated)),
        first_ms=1e3 * (times[1] - times[0]),
        tokens_per_second=after / (times[-1] - times[1]) if after else None,
    )

    def in_words(report: GenerationReport) -> Iterator[RenderableType]:
        if not streams:
            yield from (" ".join(map(str, sequence)) for sequence in report.generated)

    deliver(report, json_path, in_words)


def _print(text: str) -> Any:
    with to_stdout():
        sys.stdout.write(text)
        sys.stdout.flush()
