"""Table 8 of the paper in miniature: a GPT, dense and Sparse Wide with masks that stay, and a larger dense one."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from compare import Difference, mean_and_spread
from jobs import Jobs
from outcome import Claim, Experiment, Outcome
from text import SETTINGS, pre_train

__all__ = ["table_8"]

TUNING_SEED = 1000
# GPT-3 Medium has 2.4 times the training FLOPs of GPT-3 Small; the weights of layers grow with the square of this.
LARGER = 1.5
# Sparsity and factor on the width of what is trained, and the paper's perplexity.
MODELS = {
    "dense": ("", 1.0, "20.8"),
    "Sparse Wide 50%": ("0.5", 1.0, "20.4"),
    "Sparse Wide 75%": ("0.75", 1.0, "22.1"),
    "larger dense": ("", LARGER, "20.5"),
}


def table_8(setting: str, device: str, jobs: Jobs) -> Experiment:
    """Perplexities after pre-training, all with the learning rate that suits the dense model."""
    return Experiment(partial(_train, setting, device, jobs), partial(_tell, setting))


def _train(setting: str, device: str, jobs: Jobs) -> dict[str, Any]:
    chosen = SETTINGS[setting]
    kept = str(jobs.folder / "models")

    def job(name: str, rate: float, seed: int) -> dict[str, Any]:
        sparsity, scale, _ = MODELS[name]
        how = {"setting": setting, "device": device, "folder": kept}
        return {"sparsity": sparsity, "rate": rate, "seed": seed, "scale": scale, **how}

    tuning = jobs.run(pre_train, [job("dense", rate, TUNING_SEED) for rate in chosen.rates], "Table 8, learning rates")
    rate = min(zip(chosen.rates, tuning, strict=True), key=lambda tried: tried[1]["perplexity"])[0]
    # Table 19 reports seeds from 0 on.
    seeds = range(100, 100 + chosen.seeds)
    runs = iter(jobs.run(pre_train, [job(name, rate, seed) for name in MODELS for seed in seeds], "Table 8"))
    found = {name: [next(runs) for _ in seeds] for name in MODELS}
    macs = {name: own[0]["macs"] for name, own in found.items()}
    return {"rate": rate, "macs": macs, "test": {name: [run["test"] for run in own] for name, own in found.items()}}


def _tell(setting: str, values: dict[str, Any]) -> Outcome:
    chosen = SETTINGS[setting]
    rate, macs, perplexities = values["rate"], values["macs"], values["test"]

    def claim(text: str, better: str, worse: str) -> Claim:
        difference = Difference.of(perplexities[worse], perplexities[better])
        return Claim(text, difference.is_above, f"Perplexity lower by {difference}.")

    factor = macs["larger dense"] / macs["dense"]
    claims = [
        claim("Sparse Wide at 50 % is better than the dense model.", "Sparse Wide 50%", "dense"),
        claim("Sparse Wide at 75 % is worse than the dense model.", "dense", "Sparse Wide 75%"),
        claim(
            f"Sparse Wide at 50 % is better than a dense model of {factor:.1f} times the multiply-accumulates (in the "
            "paper 20.4 against 20.5).",
            "Sparse Wide 50%",
            "larger dense",
        ),
    ]
    rows = [
        [name, f"{macs[name]:,}", f"{mean_and_spread(own, 3)} ({MODELS[name][2]})"]
        for name, own in perplexities.items()
    ]
    what = (
        f"{chosen.data[0].upper()}{chosen.data[1:]}. {chosen.pre_training} steps of {chosen.batch} examples of the "
        "text for pre-training, AdamW, masks stay, every layer keeps its multiply-accumulates. All have the learning "
        f"rate that is best for the dense model on validation text, {rate:g}. Perplexity of the next byte of test "
        f"text, mean ± standard deviation over {chosen.seeds} seeds; in brackets the paper's, of WikiText-103's tokens."
    )

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        for number, (name, own) in enumerate(perplexities.items()):
            spread = statistics.stdev(own) if len(own) > 1 else 0.0
            color = "C0" if MODELS[name][0] else "0.3"
            axis.errorbar(macs[name] / 1e6, statistics.mean(own), spread, fmt="o", capsize=4, color=color)
            axis.annotate(
                name, (macs[name] / 1e6, statistics.mean(own)), (6, 8 * number - 8), textcoords="offset points"
            )
        axis.set_xlabel("millions of multiply-accumulates of weights, an example")
        axis.set_ylabel("test perplexity of the next byte")
        axis.margins(x=0.2)
        axis.grid(alpha=0.3)

    header = ("model", "multiply-accumulates", "test perplexity")
    return Outcome("table8", "Table 8: a GPT, pre-trained", what, header, rows, claims, draw)
