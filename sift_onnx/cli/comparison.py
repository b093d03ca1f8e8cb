"""Models side by side: each on each back end, timed in turns, and set against a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sift_onnx.analysis.active_zeros import ActiveZeros, active_zero_warnings, active_zeros
from sift_onnx.analysis.graph_analysis import fitting_inputs
from sift_onnx.backends.base import Backend, CompileOptions, Program
from sift_onnx.backends.load import Load, under_load
from sift_onnx.backends.measure import Ratio, Timing, interleave, paired_ratio, summarize
from sift_onnx.cli.output import note, progress_bar, status_line
from sift_onnx.errors import BackendError, SiftError, UsageError
from sift_onnx.model import Model
from sift_onnx.plugins import first_line
from sift_onnx.records.benchmark import BenchmarkRun, RatioOfRuns
from sift_onnx.shapes.input_binding import BoundInputs, batch_of, bind
from sift_onnx.shapes.random_inputs import Feeds, random_feeds
from sift_onnx.shapes.tensor_specs import TensorSpec, graph_inputs

__all__ = [
    "Entry",
    "Subject",
    "assumptions",
    "check_batch",
    "compile_all",
    "latencies_missed",
    "own_batch",
    "rate_warnings",
    "ratio_record",
    "ratios_to_baseline",
    "run_record",
    "speedups_missed",
    "subjects_of",
    "time_in_turns",
    "zero_warnings",
]

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Subject:
    """A model of the comparison: its path as given, its short name, what it is fed, and how its weights are."""

    path: str
    name: str
    is_baseline: bool
    inputs: tuple[TensorSpec, ...]
    shapes: Shapes
    weights: tuple[ActiveZeros, ...] = ()

    def fed_with(self, batch: int | None) -> BoundInputs:
        """The shapes that it is run with."""
        return fitting_inputs(Model.load(self.path), self.shapes, batch, self.inputs)


@dataclass(frozen=True)
class Entry:
    """A model on a back end at a batch: what is timed."""

    subject: Subject
    backend: str
    batch: int
    program: Program
    feeds: Feeds
    inputs: BoundInputs

    @property
    def label(self) -> str:
        simulated = " (simulated)" if self.program.simulated_ms is not None else ""
        return f"{self.subject.name} on {self.backend}{simulated}"

    def run(self) -> None:
        self.program.run(self.feeds)


def subjects_of(models: Sequence[str], baseline: str | None, shapes: Shapes) -> list[Subject]:
    """The models and the baseline, read; ``shapes`` are handed to those that have such inputs."""
    paths = list(dict.fromkeys(models))
    inputs: dict[str, tuple[TensorSpec, ...]] = {}
    weights: dict[str, tuple[ActiveZeros, ...]] = {}
    for path in dict.fromkeys([*paths, *filter(None, [baseline])]):
        model = Model.load(path)
        inputs[path], weights[path] = graph_inputs(model.origin), tuple(active_zeros(model))
    known = {path: {spec.name for spec in specs} for path, specs in inputs.items()}
    for name in shapes:
        if not any(name in names for names in known.values()):
            raise UsageError(f"--input-shapes names the input {name!r}, which no model has")
    base_names = [Path(path).name for path in inputs]
    subjects: list[Subject] = []
    for path in [*paths, *filter(None, [baseline])]:
        name = Path(path).name if base_names.count(Path(path).name) == 1 else path
        is_baseline = len(subjects) == len(paths)
        if is_baseline and path in paths:
            name += " (baseline)"
        own = {key: shape for key, shape in shapes.items() if key in known[path]}
        subjects.append(Subject(path, name, is_baseline, inputs[path], own, weights[path]))
    return subjects


def zero_warnings(subjects: Sequence[Subject]) -> list[str]:
    """One line for each model of which a noticeable share of the active weights is zero."""
    models = {subject.path: subject.weights for subject in subjects}
    return [f"{path}: {warning}" for path, weights in models.items() for warning in active_zero_warnings(weights)]


@contextmanager
def _about(path: str) -> Iterator[None]:
    """Say in a usage error which of several models it is about."""
    try:
        yield
    except UsageError as error:
        raise type(error)(f"{path}: {error}") from error


def own_batch(subjects: Sequence[Subject]) -> int:
    """The batch that all subjects come with, or 1 where it is open.

    Raises:
        UsageError: they come with different ones.
    """
    own = {}
    for subject in subjects:
        with _about(subject.path):
            own[subject.path] = batch_of(subject.inputs, bind(subject.inputs, subject.shapes).shapes)
    if len(set(own.values())) > 1:
        listing = ", ".join(f"{path}: {batch}" for path, batch in own.items())
        raise UsageError(f"the models come with different batches ({listing}); choose one with --batch")
    return next(iter(own.values()))


def check_batch(subjects: Sequence[Subject], batch: int) -> None:
    """Refuse a batch that one of the subjects cannot have.

    Raises:
        UsageError: the model fixes another one.
    """
    for subject in subjects:
        with _about(subject.path):
            bind(subject.inputs, subject.shapes, batch)


def compile_all(
    subjects: Sequence[Subject], backends: Mapping[str, Backend], options: CompileOptions, seed: int, verbosity: int
) -> list[Entry]:
    """Every subject on every back end; each has run once.

    Raises:
        BackendError: a back end of the user's own failed.
    """
    entries = []
    for subject in subjects:
        with _about(subject.path):
            bound = subject.fed_with(options.batch)
            feeds = random_feeds(subject.inputs, options.batch, bound.shapes, seed)
        shapes = bound.shapes if bound.assumed else subject.shapes
        for name, backend in backends.items():
            compiling = f"compiling {subject.name} for {name}, batch {options.batch}"
            note(compiling, verbosity - 1)
            try:
                with status_line(compiling, verbosity):
                    program = backend.compile(subject.path, replace(options, input_shapes=shapes))
                    if program.simulated_ms is None:
                        program.run(feeds)
            except SiftError:
                raise
            except Exception as error:
                if ".py:" not in name:  # ours: a defect, which shows its traceback
                    raise
                raise BackendError(f"back end {name!r} failed on {subject.path}: {first_line(error)}") from error
            entries.append(Entry(subject, name, options.batch or 1, program, feeds, bound))
    return entries


def assumptions(entries: Sequence[Entry]) -> list[str]:
    """What was assumed of the sizes of the models' inputs, one line for each."""
    return [f"{entry.subject.path}: {line}" for entry in entries for line in entry.inputs.said]


def time_in_turns(
    entries: Sequence[Entry], seconds: float, warmup: float, verbosity: int, load: Load | None = None
) -> list[Timing]:
    """Timings of the entries in turn; simulated ones get theirs from the simulation, slice by slice the same.

    Args:
        entries: what is timed.
        seconds: of each.
        warmup: seconds of each before.
        verbosity: of the command.
        load: how they are called; None is by one caller, again and again.

    Raises:
        UsageError: a load is given for a simulation.
    """
    simulated = next((entry.label for entry in entries if entry.program.simulated_ms is not None), None)
    if load is not None and simulated is not None:
        raise UsageError(f"{simulated}: a simulation has no callers; leave --streams and --rate out")
    timed = [entry for entry in entries if entry.program.simulated_ms is None]
    measured = iter(_measure(timed, seconds, warmup, verbosity, load) if timed else [])
    timings = [next(measured) if entry.program.simulated_ms is None else None for entry in entries]
    slices = next((len(timing.slices) for timing in timings if timing is not None), 1)
    return [
        timing if timing is not None else Timing(((_simulated_ns(entry),),) * slices)
        for entry, timing in zip(entries, timings, strict=True)
    ]


def _simulated_ns(entry: Entry) -> int:
    assert entry.program.simulated_ms is not None
    return max(1, round(1e6 * entry.program.simulated_ms))


def _measure(
    entries: Sequence[Entry], seconds: float, warmup: float, verbosity: int, load: Load | None
) -> list[Timing]:
    with progress_bar(verbosity) as progress:
        bar = progress.add_task(f"batch {entries[0].batch}: {len(entries)} in turn", total=None)

        def on_round(done: int, expected: int) -> None:
            progress.update(bar, completed=done, total=expected)

        runs = [entry.run for entry in entries]
        if load is not None:
            return under_load(runs, load, seconds=seconds, warmup=warmup, on_round=on_round)
        return interleave(runs, seconds=seconds, warmup=warmup, on_round=on_round)


def ratios_to_baseline(entries: Sequence[Entry], timings: Sequence[Timing]) -> list[tuple[Entry, Entry, Ratio]]:
    """Every model on every back end over the baseline on every back end, the same back end first."""
    timed = list(zip(entries, timings, strict=True))
    pairs = [(a, b) for a in timed for b in timed if b[0].subject.is_baseline and not a[0].subject.is_baseline]
    pairs.sort(key=lambda pair: pair[0][0].backend != pair[1][0].backend)
    return [(a, b, paired_ratio(time_a, time_b)) for (a, time_a), (b, time_b) in pairs]


def run_record(entry: Entry, timing: Timing, load: Load | None = None) -> BenchmarkRun:
    """A timed entry as it is reported; ``load`` says how it was called, if not by one caller."""
    summary = summarize(timing)
    weights = entry.subject.weights
    return BenchmarkRun(
        model=entry.subject.path,
        label=entry.label,
        baseline=entry.subject.is_baseline,
        backend=entry.backend,
        batch=entry.batch,
        threads=entry.program.threads,
        simulated=entry.program.simulated_ms is not None,
        active_weights=sum(weight.active for weight in weights),
        active_zeros=sum(weight.zeros for weight in weights),
        **vars(summary),
        items_per_second=entry.batch * timing.iterations_per_second,
        streams=load.streams if load is not None else None,
        rate=load.rate if load is not None else None,
        unserved=timing.unserved if load is not None and load.rate is not None else None,
        nominal=entry.inputs.nominal,
        nodes=dict(Counter(placement.placement for placement in entry.program.placements)) or None,
        verdict=entry.program.verdict or None,
    )


def rate_warnings(runs: Sequence[BenchmarkRun]) -> list[str]:
    """One line for each run that could not keep the rate of requests."""
    return [
        f"{run.label}, batch {run.batch}: the rate of {run.rate:g} requests per second was not kept; {run.unserved:,} "
        f"of {run.iterations + run.unserved:,} requests waited for too long and were given up, and the latencies are "
        "of the others; choose a lower --rate or more --streams"
        for run in runs
        if run.unserved
    ]


def ratio_record(a: Entry, b: Entry, ratio: Ratio) -> RatioOfRuns:
    """The time of ``a`` over that of ``b``, as it is reported."""
    return RatioOfRuns(a=a.label, b=b.label, batch=a.batch, **vars(ratio))


def latencies_missed(entries: Sequence[Entry], timings: Sequence[Timing], limit: float | None) -> list[str]:
    """One line for each model whose median is above ``limit``, in milliseconds."""
    missed = []
    for entry, timing in zip(entries, timings, strict=True):
        median = summarize(timing).median_ms
        if limit is not None and not entry.subject.is_baseline and median > limit:
            missed.append(
                f"{entry.label}, batch {entry.batch}: median {median:.3f} ms misses --max-latency-ms {limit:g} "
                f"by {median - limit:.3f} ms"
            )
    return missed


def speedups_missed(ratios: Sequence[tuple[Entry, Entry, Ratio]], wanted: float | None) -> list[str]:
    """One line for each model that is not ``wanted`` times as fast as the baseline on the same back end."""
    missed = []
    for a, b, ratio in ratios:
        speedup = 1 / ratio.median
        if wanted is not None and a.backend == b.backend and speedup < wanted:
            missed.append(
                f"{a.label}, batch {a.batch}: {speedup:.3f}x the speed of {b.label} misses --min-speedup {wanted:g} "
                f"by {wanted - speedup:.3f}x"
            )
    return missed
