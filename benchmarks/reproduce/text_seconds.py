"""A GPT at equal seconds of training, which is beyond the paper: Sparse Wide with RigL, and the best dense rival.

The question of Figure 1's second plot, asked of Linear layers: dense models of several sizes, and the dense original
trained for as many seconds as each Sparse Wide one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from compare import Difference, mean_and_spread
from jobs import Jobs
from outcome import Claim, Detail, Experiment, Outcome
from step_times import text_step_times
from text import SETTINGS, pre_train

__all__ = ["TextRun", "best_dense", "text_seconds"]

SPARSITIES = ("0.75", "0.9")
# Factors on the width of the dense original.
SCALES = (1.0, 1.2, 1.4)
TUNING_SEEDS = range(1000, 1003)
FIRST_SEED = 200
ROUNDS = 5
# The head of a wide model costs more, which the layers with masks repay.
BUDGET = "model"
# Times are not known better than to this share of them.
SLACK = 1.02


@dataclass(frozen=True)
class TextRun:
    """A model and how long it is trained.

    Attributes:
        sparsity: of Sparse Wide with RigL; empty for a dense model.
        scale: factor on the width of the dense model.
        length: of the training, as a share of the usual one.
    """

    sparsity: str = ""
    scale: float = 1.0
    length: float = 1.0

    @property
    def label(self) -> str:
        """What rows call it."""
        name = f"Sparse Wide {float(self.sparsity):.0%}, RigL" if self.sparsity else "dense"
        name += f", width x{self.scale:g}" if self.scale != 1 else ""
        return name + (f", steps x{self.length:g}" if self.length != 1 else "")


def best_dense(
    perplexities: Mapping[TextRun, Sequence[float]], seconds: Mapping[TextRun, float], most: float
) -> TextRun:
    """The dense training of lowest mean perplexity among those that take ``most`` seconds or less.

    It is chosen by the perplexities that it is then compared by, which favours it.

    Raises:
        ValueError: none is so short.
    """
    within = [run for run in perplexities if not run.sparsity and seconds[run] <= SLACK * most]
    return min(within, key=lambda run: statistics.mean(perplexities[run]))


def text_seconds(setting: str, device: str, jobs: Jobs) -> Experiment:
    """Time steps, train, and compare."""
    return Experiment(partial(_train, setting, device, jobs), partial(_tell, setting))


def _train(setting: str, device: str, jobs: Jobs) -> dict[str, Any]:
    chosen = SETTINGS[setting]
    timed = [*(TextRun(scale=scale) for scale in SCALES), *(TextRun(s) for s in SPARSITIES)]
    models = [{"sparsity": run.sparsity, "scale": run.scale, "budget": BUDGET} for run in timed]
    (found,) = jobs.run(
        text_step_times, [{"setting": setting, "models": models, "rounds": ROUNDS}], "A GPT, step times"
    )
    times = dict(zip(timed, found, strict=True))
    original = TextRun()
    ratios = {s: round(times[TextRun(s)]["ms"] / times[original]["ms"], 2) for s in SPARSITIES}
    runs = list(dict.fromkeys([*timed, *(TextRun(length=ratio) for ratio in ratios.values())]))

    def job(run: TextRun, rate: float, seed: int) -> dict[str, Any]:
        how = {"setting": setting, "budget": BUDGET, "device": device, "folder": str(jobs.folder / "models")}
        return {**asdict(run), "algorithm": "rigl" if run.sparsity else "static", "rate": rate, "seed": seed, **how}

    tuning = [job(original, rate, seed) for rate in chosen.rates for seed in TUNING_SEEDS]
    scores = iter(jobs.run(pre_train, tuning, "A GPT, learning rates"))
    means = {rate: statistics.mean(next(scores)["perplexity"] for _ in TUNING_SEEDS) for rate in chosen.rates}
    rate = min(means, key=lambda rate: means[rate])
    seeds = range(FIRST_SEED, FIRST_SEED + chosen.seeds)
    results = iter(
        jobs.run(pre_train, [job(run, rate, seed) for run in runs for seed in seeds], "A GPT at equal seconds")
    )
    trained = {run: [next(results) for _ in seeds] for run in runs}
    ms = {run: times[TextRun(run.sparsity, run.scale)]["ms"] for run in runs}
    return {
        "rate": rate,
        "runs": [
            {
                "label": run.label,
                **asdict(run),
                "macs": own[0]["macs"],
                "ms": ms[run],
                "seconds": ms[run] * round(run.length * chosen.pre_training) / 1e3,
                "test": [one["test"] for one in own],
            }
            for run, own in trained.items()
        ],
        "times": [{"label": run.label, **own} for run, own in times.items()],
    }


def _tell(setting: str, values: dict[str, Any]) -> Outcome:
    chosen, rate = SETTINGS[setting], values["rate"]
    entries = {TextRun(entry["sparsity"], entry["scale"], entry["length"]): entry for entry in values["runs"]}
    perplexities = {run: entry["test"] for run, entry in entries.items()}
    seconds = {run: entry["seconds"] for run, entry in entries.items()}
    claims = []
    for s in SPARSITIES:
        run = TextRun(s)
        # The dense original has been trained for as long, up to the rounding of steps.
        shortest = min(taken for other, taken in seconds.items() if not other.sparsity)
        rival = best_dense(perplexities, seconds, max(seconds[run], shortest))
        difference = Difference.of(perplexities[rival], perplexities[run])
        claims.append(
            Claim(
                f"Not in the paper: at {float(s):.0%}, Sparse Wide with RigL is better than the best dense training "
                "that takes no more seconds on this CPU.",
                difference.is_above,
                f"Perplexity lower by {difference} in {seconds[run]:.1f} s ({rival.label}: {seconds[rival]:.1f} s).",
                "Where the time of a step goes is in the table below.",
            )
        )
    rows = [
        [
            run.label,
            f"{entry['macs']:,}",
            f"{entry['ms']:.1f}",
            f"{seconds[run]:.1f}",
            mean_and_spread(perplexities[run], 3),
        ]
        for run, entry in entries.items()
    ]
    what = (
        f"{chosen.data[0].upper()}{chosen.data[1:]}. The pre-training alone: {chosen.pre_training} steps of "
        f"{chosen.batch} examples, AdamW. Sparse Wide keeps the multiply-accumulates of all weights together; products "
        "of activations in attention grow beside them, which counts in seconds. RigL updates masks every "
        f"{chosen.update} steps until three quarters of the training. All have the learning rate that is best for the "
        f"dense original on validation text by {len(TUNING_SEEDS)} seeds, {rate:g}. Perplexity of the next byte of "
        f"test text, mean ± standard deviation over {chosen.seeds} seeds. Seconds are steps times the time of a step "
        "on one core, measured apart from the trainings: all models take turns in one process, an update of masks in "
        f"each turn, median of {ROUNDS} rounds; its optimizer is SGD for all."
    )
    details = [
        [
            own["label"],
            f"{own['ms']:.1f} ({own['spread'][0]:.1f} to {own['spread'][1]:.1f})",
            *(f"{part:.1f}" for part in own["phases"].values()),
            ", ".join(f"{name} {share:.0%}" for name, share in own["operations"]),
        ]
        for own in values["times"]
    ]
    header = ("", "ms of a step (rounds)", "forward", "backward", "optimizer and masks", "of it, by torch's profiler")

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        for run, own in perplexities.items():
            color = f"C{1 + SPARSITIES.index(run.sparsity)}" if run.sparsity else "black"
            spread = statistics.stdev(own) if len(own) > 1 else 0.0
            style = {"color": color, "markerfacecolor": color if run.length == 1 else "white"}
            axis.errorbar(seconds[run], statistics.mean(own), spread, fmt="o", capsize=3, label=run.label, **style)
        axis.set_xlabel("seconds of training, one core")
        axis.set_ylabel("test perplexity of the next byte")
        axis.grid(alpha=0.3)
        figure.legend(loc="outside right upper")

    title = "A GPT at equal seconds: beyond the paper"
    table = ("model", "multiply-accumulates", "ms of a step", "seconds of training", "test perplexity")
    detail = Detail("Where the time of a step goes", header, details)
    return Outcome("text-seconds", title, what, table, rows, claims, draw, (detail,))
