"""Dense against Sparse Wide at equal FLOPs on real data, through the tool's own transform and train.

    python benchmarks/training/digits.py --out benchmarks/training/digits.json       # goes on where it was stopped
    python benchmarks/training/page.py        # README.md and digits.svg from digits.json and growth.json

Data and network are those of `digits_data.py`; needs `pip install scikit-learn`. A network of base width w is compared
with its Sparse Wide models at several sparsities, whose masks stay (static) or evolve (SET, RigL). Widening keeps the
multiply-accumulates: the first and the last layer stay dense, and the others repay what they cost more.

First every configuration is trained with each learning rate at two widths, and keeps the one that is best on validation
images. Then it is trained with that rate at every width, with other seeds, and onnxruntime finds the digits of the test
set with the file that `train` wrote. Everything else is the same for all, the dense network included.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages
from digits_data import Shifted, accuracy, network, split, test_set
from tables import digits_table

import sift_onnx
from sift_onnx.training.trainer import TrainingSettings, train_file

ALGORITHMS = ("static", "set", "rigl")
FREQUENCY = 20
TUNING_WIDTHS, FIRST_TUNING_SEED = (2, 4), 1000


def numbers(kind: type) -> Any:
    """A callback that reads a list with commas."""

    def read(context: click.Context, option: click.Parameter, value: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part) for part in value.split(","))
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}") from error

    return read


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Results; what is there is not run again.")
@click.option("--widths", default="2,4", show_default=True, callback=numbers(int), help="First channels.")
@click.option("--sparsities", default="0.5,0.75,0.9", show_default=True, callback=numbers(str))
@click.option("--rates", default="0.2,0.4,0.8,1.6", show_default=True, callback=numbers(float), help="To choose from.")
@click.option("--seeds", type=int, default=6, show_default=True)
@click.option("--tuning-seeds", type=int, default=3, show_default=True)
@click.option("--epochs", type=int, default=100, show_default=True)
def main(
    out: Path,
    widths: tuple[int, ...],
    sparsities: tuple[str, ...],
    rates: tuple[float, ...],
    seeds: int,
    tuning_seeds: int,
    epochs: int,
) -> None:
    """Choose rates, train, and print the table."""
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else pages.origin() | {"epochs": epochs}
    if found["epochs"] != epochs:
        raise click.UsageError(f"{out} is of {found['epochs']} epochs")
    configurations = [("dense", ""), *((f"{float(s):.0%} {a}", s) for s in sparsities for a in ALGORITHMS)]

    def runs(kind: str, keys: list[str], count: int, run: Any) -> list[float]:
        """The values of a list of runs in ``found``; those that it lacks are run."""
        place = found.setdefault(kind, {})
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        values: list[float] = place.setdefault(keys[-1], [])
        while len(values) < count:
            values.append(run(len(values)))
            out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(kind, *keys, f"{values[-1]:.1f}", flush=True)
        return values[:count]

    chosen: dict[str, float] = {}
    for name, sparsity in configurations:
        scores: dict[float, float] = {}
        for rate in rates:
            trained = [
                value
                for width in TUNING_WIDTHS
                for value in runs(
                    "validation",
                    [name, f"{rate:g}", str(width)],
                    tuning_seeds,
                    lambda i, width=width, name=name, s=sparsity, rate=rate: trained_accuracy(
                        width, name, s, rate, epochs, FIRST_TUNING_SEED + i, validation=True
                    ),
                )
            ]
            scores[rate] = statistics.mean(trained)
        chosen[name] = max(scores, key=lambda rate: scores[rate])
    found["rates"] = chosen
    for width in widths:
        found.setdefault("sizes", {})[str(width)] = sizes(width, sparsities)
        for name, sparsity in configurations:
            runs(
                "test",
                [str(width), name],
                seeds,
                lambda i, width=width, name=name, s=sparsity: trained_accuracy(
                    width, name, s, chosen[name], epochs, i, validation=False
                ),
            )
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(digits_table(found))


def trained_accuracy(
    width: int, name: str, sparsity: str, rate: float, epochs: int, seed: int, *, validation: bool
) -> float:
    """Accuracy in percent of a network that is made, widened and trained with a seed."""
    examples, others = split(seed)
    data = Shifted(examples)
    settings = TrainingSettings.of_recipe(
        {
            "epochs": epochs,
            "optimizer": {"type": "sgd", "lr": rate, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0005},
            "schedule": {"type": "cosine"},
            "sparsity": recipe(name.split()[-1], epochs * len(data)) if sparsity else None,
            "seed": seed,
            "log_every": 1000,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        model, out = Path(folder) / "model.onnx", Path(folder) / "trained.onnx"
        network(model, width, seed)
        if sparsity:
            sift_onnx.transform(str(model), wide=sparsity, seed=seed).save(model, force=True)
        train_file(model, out, {"train": data}, settings, device="cpu")
        return accuracy(out, others if validation else test_set())


def recipe(algorithm: str, steps: int) -> dict[str, Any]:
    """The masks of the transformed model, evolving until three quarters of the training."""
    if algorithm == "static":
        return {"algorithm": "static", "sparsity": "masks", "param_filter": "*"}
    stop = steps * 3 // 4
    drop = {"type": "cosine", "init": 0.3, "half_period": stop}
    update = {"freq": FREQUENCY, "stop": stop}
    return {"algorithm": algorithm, "sparsity": "masks", "update": update, "drop_fraction": drop, "param_filter": "*"}


def sizes(width: int, sparsities: tuple[str, ...]) -> dict[str, Any]:
    """Multiply-accumulates that an image takes, the share of the layers that stay dense, and non-zeros."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        network(path, width, 0)
        for sparsity in ("0", *sparsities):
            layers = sift_onnx.inspect(sift_onnx.transform(str(path), wide=sparsity)).to_dict()["layers"]
            found[sparsity] = {
                "macs": sum(layer["effective_macs"] for layer in layers),
                "stem and head": sum(layer["effective_macs"] for layer in (layers[0], layers[-1])),
                "nnz": sum(layer["nnz"] for layer in layers),
            }
    return found


if __name__ == "__main__":
    main()
