"""Table 19 of the paper in miniature: sparse pre-training, then sparse or dense fine-tuning (SPDF)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from compare import Difference, mean_and_spread, verdict
from jobs import Jobs
from outcome import Claim, Experiment, Outcome
from text import SETTINGS, fine_tune, pre_train

__all__ = ["table_19"]

SPARSITIES = ("0.5", "0.75")
TUNING_SEED = 1000
PAPER = {("", False): 15.9, ("0.5", False): 15.6, ("0.75", False): 16.0, ("0.5", True): 15.1, ("0.75", True): 14.6}


# Sparsity of the pre-training, and whether all weights are tuned.
WAYS = [("", False), *((s, dense) for s in SPARSITIES for dense in (False, True))]


def _way_name(way: tuple[str, bool]) -> str:
    return f"{way[0] or 'dense'} {'dense' if way[1] else 'sparse'}"


def table_19(setting: str, device: str, jobs: Jobs) -> Experiment:
    """Perplexities of all stages."""
    return Experiment(partial(_train, setting, device, jobs), partial(_tell, setting))


def _train(setting: str, device: str, jobs: Jobs) -> dict[str, Any]:
    chosen = SETTINGS[setting]
    kept = str(jobs.folder / "models")

    def pre_trained(pairs: Sequence[tuple[str, float]], seeds: Sequence[int]) -> list[dict[str, Any]]:
        arguments = [
            {"setting": setting, "sparsity": s, "rate": rate, "seed": seed, "device": device, "folder": kept}
            for s, rate in pairs
            for seed in seeds
        ]
        return jobs.run(pre_train, arguments, "Table 19, pre-training")

    def fine_tuned(runs: Sequence[tuple[str, bool, float, int]]) -> list[dict[str, float]]:
        arguments = [
            {"setting": setting, "file": file, "dense": dense, "rate": rate, "seed": seed, "device": device}
            for file, dense, rate, seed in runs
        ]
        return jobs.run(fine_tune, arguments, "Table 19, fine-tuning")

    models = ("", *SPARSITIES)
    pairs = [(s, rate) for s in models for rate in chosen.rates]
    tried = dict(zip(pairs, pre_trained(pairs, [TUNING_SEED]), strict=True))
    rates = {s: min(chosen.rates, key=lambda rate, s=s: tried[s, rate]["perplexity"]) for s in models}
    trials = [(way, rate) for way in WAYS for rate in chosen.fine_rates]
    tuned = fine_tuned([(tried[s, rates[s]]["file"], d, rate, TUNING_SEED) for (s, d), rate in trials])
    scores = {trial: result["validation"] for trial, result in zip(trials, tuned, strict=True)}
    fine_rates = {way: min(chosen.fine_rates, key=lambda rate, way=way: scores[way, rate]) for way in WAYS}

    seeds = range(chosen.seeds)
    first = pre_trained([(s, rates[s]) for s in models], seeds)
    files = {(s, seed): first[i * len(seeds) + seed]["file"] for i, s in enumerate(models) for seed in seeds}
    runs = [(files[s, seed], dense, fine_rates[s, dense], seed) for s, dense in WAYS for seed in seeds]
    results = iter(fine_tuned(runs))
    found = {way: [next(results)["test"] for _ in seeds] for way in WAYS}
    before = {s: [first[i * len(seeds) + seed]["perplexity"] for seed in seeds] for i, s in enumerate(models)}
    return {
        "pre_training": before,
        "test": {_way_name(way): own for way, own in found.items()},
        "rates": rates,
        "fine_tuning_rates": {_way_name(way): rate for way, rate in fine_rates.items()},
    }


def _tell(setting: str, values: dict[str, Any]) -> Outcome:
    chosen = SETTINGS[setting]
    before = values["pre_training"]
    found = {way: values["test"][_way_name(way)] for way in WAYS}

    def differences(pairs: dict[str, tuple[tuple[str, bool], tuple[str, bool]]]) -> tuple[list[bool | None], str]:
        all_of = {label: Difference.of(found[b], found[a]) for label, (a, b) in pairs.items()}
        return [d.is_above for d in all_of.values()], ", ".join(f"{d} at {label}" for label, d in all_of.items())

    def claim(text: str, pairs: dict[str, tuple[tuple[str, bool], tuple[str, bool]]], why: str = "") -> Claim:
        verdicts, evidence = differences(pairs)
        return Claim(text, verdict(verdicts), f"Perplexity lower by {evidence}.", why)

    small = (
        "The model has two layers and sees its text for minutes: neither stage is near its end."
        if setting == "small"
        else ""
    )
    claims = [
        claim(
            "Dense fine-tuning of a sparsely pre-trained model is better than sparse fine-tuning.",
            {f"{float(s):.0%}": ((s, True), (s, False)) for s in SPARSITIES},
            small,
        ),
        claim(
            "Sparse Wide with dense fine-tuning is better than the dense model.",
            {f"{float(s):.0%}": ((s, True), ("", False)) for s in SPARSITIES},
            small,
        ),
        claim("Sparse Wide at 50 % is better than the dense model with sparse fine-tuning too.",
              {"50%": (("0.5", False), ("", False))}, small),
    ]  # fmt: skip
    rows = [
        ["dense", mean_and_spread(before[""], 3), "", f"{mean_and_spread(found['', False], 3)} ({PAPER['', False]})"],
        *(
            [
                f"Sparse Wide {float(s):.0%}",
                mean_and_spread(before[s], 3),
                *(f"{mean_and_spread(found[s, dense], 3)} ({PAPER[s, dense]})" for dense in (False, True)),
            ]
            for s in SPARSITIES
        ),
    ]
    what = (
        f"{chosen.data[0].upper()}{chosen.data[1:]}. {chosen.pre_training} steps of {chosen.batch} examples, then "
        f"{chosen.fine_tuning}, both with AdamW and learning rates chosen for each model on validation text; masks "
        "stay during sparse training, and every layer keeps its multiply-accumulates. Perplexity of the next byte, "
        f"mean ± standard deviation over {chosen.seeds} seeds; in brackets the paper's, of tokens of WikiText-103, "
        "for GPT-3 Small."
    )
    header = ("model", "pre-training text", "sparse fine-tuning", "dense fine-tuning")

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        labels = ["dense", *(f"{float(s):.0%}, {'dense' if d else 'sparse'} fine-tuning" for s, d in WAYS[1:])]
        means = [statistics.mean(values) for values in found.values()]
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in found.values()]
        colors = ["0.5", *("C2" if dense else "C0" for _, dense in WAYS[1:])]
        for number, color in enumerate(colors):
            axis.errorbar(number, means[number], spreads[number], fmt="o", color=color, capsize=4)
        axis.set_xticks(range(len(means)), labels)
        axis.set_ylabel("test perplexity of the next byte")
        axis.grid(axis="y", alpha=0.3)

    title = "Table 19: sparse pre-training, dense fine-tuning"
    return Outcome("table19", title, what, header, rows, claims, draw)
