"""A trained model grows: widened with its weights in it, then trained on with masks that reach the new channels.

    python benchmarks/training/growth.py [--seeds 5] [--width 4] [--sparsity 0.75] [--steps 400] [--results FILE]

Trains the network of `digits_data.py` on digits, transforms it with `--init embed`, which adds channels without a
weight, and goes on with RigL. A second training goes on as long with the original, and a third with masks that stay.
Needs `pip install scikit-learn`.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages
from digits_data import Shifted, accuracy, network, split, test_set
from tables import growth_table

import sift_onnx
from sift_onnx.training.trainer import TrainingSettings, train_file

LAYERS = ("conv0", "conv1", "conv2", "conv3", "head")
FREQUENCY = 20


@click.command()
@click.option("--seeds", type=int, default=5, show_default=True)
@click.option("--width", type=int, default=4, show_default=True, help="Channels of the first convolution.")
@click.option("--sparsity", default="0.75", show_default=True)
@click.option("--first-steps", type=int, default=400, show_default=True, help="Of the original.")
@click.option("--steps", type=int, default=400, show_default=True, help="After the growth.")
@click.option("--rate", type=float, default=0.2, show_default=True, help="Learning rate of both trainings.")
@click.option("--results", type=click.Path(path_type=Path), help="Write the figures of every seed as JSON.")
def main(
    seeds: int, width: int, sparsity: str, first_steps: int, steps: int, rate: float, results: Path | None
) -> None:
    """Grow a model at every seed, and print what became of it."""
    torch.set_num_threads(1)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(seeds):
            examples, _ = split(seed)
            fresh, original, wide = folder / "fresh.onnx", folder / "original.onnx", folder / "wide.onnx"
            network(fresh, width, seed)
            train(fresh, original, examples, None, first_steps, rate, seed)
            sift_onnx.transform(str(original), wide=sparsity, init="embed", seed=seed).save(wide, force=True)
            row = {"original": accuracy(original, test_set()), "embedded": accuracy(wide, test_set())}
            for label, source, sparse in (
                ("original, trained on", original, None),
                ("embedded, masks stay", wide, "static"),
                ("embedded, RigL", wide, "rigl"),
            ):
                grown = folder / "grown.onnx"
                train(source, grown, examples, sparse, steps, rate, seed)
                row[label] = accuracy(grown, test_set())
            row["change by RigL"] = row["embedded, RigL"] - row["embedded"]
            rows.append(row | reach(sift_onnx.masks(wide), sift_onnx.masks(grown)))
            print(f"seed {seed}: " + ", ".join(f"{key} {value:.10g}" for key, value in rows[-1].items()), flush=True)
    print("\n" + growth_table(rows))
    if results:
        pages.write(results, rows)


def train(source: Path, target: Path, examples: Any, algorithm: str | None, steps: int, rate: float, seed: int) -> None:
    """Train a file, with the masks that it has if there is an algorithm for them."""
    stop = steps * 3 // 4
    evolving = {
        "update": {"freq": FREQUENCY, "stop": stop},
        "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": stop},
    }
    sparsity = {"algorithm": algorithm, "sparsity": "masks", "param_filter": "*"}
    settings = TrainingSettings.of_recipe(
        {
            "steps": steps,
            "optimizer": {"type": "sgd", "lr": rate, "weight_decay": 5e-4},
            "schedule": {"type": "cosine", "warmup": steps // 10},
            "sparsity": None if algorithm is None else sparsity | (evolving if algorithm != "static" else {}),
            "seed": seed,
            "log_every": 1000,
        }
    )
    train_file(source, target, {"train": Shifted(examples)}, settings, device="cpu", force=True)


def reach(before: dict[str, np.ndarray[Any, Any]], after: dict[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    """How many channels were added, how many of them are in use, and the weights on either side of them.

    A channel is in use that an active weight leads into, and another one out of. Before, none leads into an added one.
    """
    found = {"added channels": 0, "of these in use": 0, "weights into added channels": 0, "weights out of them": 0}
    for layer, following in itertools.pairwise(LAYERS):
        incoming, outgoing = after[f"{layer}.weight"], after[f"{following}.weight"]
        incoming, outgoing = incoming.reshape(len(incoming), -1), outgoing.swapaxes(0, 1).reshape(len(incoming), -1)
        added = ~before[f"{layer}.weight"].reshape(len(incoming), -1).any(1)
        found["added channels"] += int(added.sum())
        found["of these in use"] += int((added & incoming.any(1) & outgoing.any(1)).sum())
        found["weights into added channels"] += int(incoming[added].sum())
        found["weights out of them"] += int(outgoing[added].sum())
    found["non-zeros before"] = sum(int(mask.sum()) for mask in before.values())
    found["non-zeros after"] = sum(int(mask.sum()) for mask in after.values())
    if any(before[key].sum() != after[key].sum() for key in before):
        raise AssertionError("a layer has other non-zeros than before")
    return dict(found)


if __name__ == "__main__":
    main()
