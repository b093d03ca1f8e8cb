"""What ``generate``, and ``benchmark`` of a decoder's steps, report."""

from __future__ import annotations

from typing import Any

from sift_onnx.records.record import SCHEMA, Amount, Count, Positive, Record

__all__ = ["DecodeRun", "GenerationReport"]


class DecodeRun(Record, frozen=True, kw_only=True):
    """A decoder on a back end, token by token.

    Attributes:
        model: the file, as given.
        label: model and back end in words.
        baseline: whether it is what others are compared with.
        backend: as it was chosen.
        batch: sequences that are generated together.
        threads: that it ran on.
        prompt: tokens of each prompt.
        tokens: new ones of each sequence.
        first_ms: until the first new token, median over rounds, in milliseconds.
        token_ms: of each step after it, for all sequences: median over rounds of their means.
        min_token_ms: the same of the fastest round.
        tokens_per_second: of all sequences, after the first token, at the median.
        rounds: that were timed.
    """

    model: str
    label: str
    baseline: bool
    backend: str
    batch: Count
    threads: Count
    prompt: Count
    tokens: Count
    first_ms: Positive
    token_ms: Positive
    min_token_ms: Positive
    tokens_per_second: Amount
    rounds: Count


class GenerationReport(Record, frozen=True, kw_only=True):
    """What a decoder has generated.

    Attributes:
        host: the machine and the software.
        model: the file, as given.
        backend: as it was chosen.
        threads: that it ran on.
        prompts: token ids of each prompt.
        generated: new ones of each sequence.
        first_ms: until the first new token, in milliseconds.
        tokens_per_second: of all sequences after the first token; None where there is no second one.
    """

    schema: int = SCHEMA
    host: dict[str, Any]
    model: str
    backend: str
    threads: Count
    prompts: tuple[tuple[Count, ...], ...]
    generated: tuple[tuple[Count, ...], ...]
    first_ms: Positive
    tokens_per_second: Amount | None = None
