"""Decoders side by side: each on each back end, a prompt and some tokens in turn."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from sift_onnx.backends.base import Backend
from sift_onnx.backends.decoding.decoder import Decoder
from sift_onnx.backends.measure import Timing, host, paired_ratio
from sift_onnx.cli.comparison import Subject, zero_warnings
from sift_onnx.cli.output import note, status_line
from sift_onnx.records.benchmark import BenchmarkReport, RatioOfRuns
from sift_onnx.records.decoding import DecodeRun

__all__ = ["DecodeEntry", "compare_decoders"]

_LEAST_ROUNDS = 3


@dataclass
class DecodeEntry:
    """A decoder on a back end, and its times so far.

    Attributes:
        subject: the model.
        backend: as it was chosen.
        batch: sequences that are generated together.
        decoder: what is timed.
        first: seconds to the first token, by round.
        step: seconds of each token after it, by round.
    """

    subject: Subject
    backend: str
    batch: int
    decoder: Decoder
    first: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Model and back end in words."""
        return f"{self.subject.name} on {self.backend}"

    def generate(self, prompt: int, tokens: int, seed: int) -> None:
        """One round: random prompts of ``prompt`` tokens, and ``tokens`` new ones."""
        generator = np.random.default_rng(seed)
        ids = generator.integers(0, self.decoder.vocabulary or 2, (self.batch, prompt))
        start = time.perf_counter()
        made = self.decoder.generate(ids, tokens)
        next(made)
        first = time.perf_counter()
        for _ in made:
            pass
        end = time.perf_counter()
        self.first.append(first - start)
        self.step.append((end - first) / max(tokens - 1, 1))


def compare_decoders(
    subjects: Sequence[Subject],
    backends: Mapping[str, Backend],
    threads: int | None,
    batches: Sequence[int],
    decode: tuple[int, int],
    seconds: float,
    seed: int,
    verbosity: int,
) -> BenchmarkReport:
    """Every model on every back end, token by token.

    Args:
        subjects: the models.
        backends: by name.
        threads: of each program.
        batches: numbers of sequences that are generated together.
        decode: tokens of a prompt, and new ones.
        seconds: to measure each for.
        seed: of the random prompts.
        verbosity: as of the verbs.
    """
    runs: list[DecodeRun] = []
    ratios: list[RatioOfRuns] = []
    for batch in batches:
        entries = _open(subjects, backends, threads, batch, verbosity)
        _time_in_turns(entries, *decode, seconds, seed, verbosity)
        runs += [_record(entry, *decode) for entry in entries]
        ratios += _ratios(entries)
    return BenchmarkReport(
        host=host(), runs=(), ratios=tuple(ratios), warnings=tuple(zero_warnings(subjects)), decodes=tuple(runs)
    )


def _open(
    subjects: Sequence[Subject], backends: Mapping[str, Backend], threads: int | None, batch: int, verbosity: int
) -> list[DecodeEntry]:
    """Every model on every back end."""
    entries = []
    for subject in subjects:
        for name, backend in backends.items():
            compiling = f"compiling {subject.name} for {name}"
            note(compiling, verbosity - 1)
            with status_line(compiling, verbosity):
                decoder = Decoder(subject.path, threads, backend=backend)
            entries.append(DecodeEntry(subject, name, batch, decoder))
    return entries


def _time_in_turns(
    entries: Sequence[DecodeEntry], prompt: int, tokens: int, seconds: float, seed: int, verbosity: int
) -> None:
    """Rounds of all entries in turn, until each has run for ``seconds``; the first round is not counted."""
    with status_line(f"{len(entries)} in turn", verbosity):
        for entry in entries:
            entry.generate(prompt, tokens, seed)
            entry.first.clear()
            entry.step.clear()
        spent = [0.0] * len(entries)
        while len(entries[0].first) < _LEAST_ROUNDS or min(spent) < seconds:
            for number, entry in enumerate(entries):
                start = time.perf_counter()
                entry.generate(prompt, tokens, seed)
                spent[number] += time.perf_counter() - start


def _record(entry: DecodeEntry, prompt: int, tokens: int) -> DecodeRun:
    """A timed entry as it is reported."""
    token = median(entry.step)
    return DecodeRun(
        model=entry.subject.path,
        label=entry.label,
        baseline=entry.subject.is_baseline,
        backend=entry.backend,
        batch=entry.batch,
        threads=entry.decoder.threads,
        prompt=prompt,
        tokens=tokens,
        first_ms=1e3 * median(entry.first),
        token_ms=1e3 * token,
        min_token_ms=1e3 * min(entry.step),
        tokens_per_second=entry.batch / token,
        rounds=len(entry.step),
    )


def _ratios(entries: Sequence[DecodeEntry]) -> list[RatioOfRuns]:
    """The time of a token of every model over that of the baseline, the same back end first."""
    pairs = [(a, b) for a in entries for b in entries if b.subject.is_baseline and not a.subject.is_baseline]
    pairs.sort(key=lambda pair: pair[0].backend != pair[1].backend)
    return [
        RatioOfRuns(a=a.label, b=b.label, batch=a.batch, **vars(paired_ratio(_timing(a), _timing(b)))) for a, b in pairs
    ]


def _timing(entry: DecodeEntry) -> Timing:
    return Timing(tuple((round(1e9 * seconds),) for seconds in entry.step))
