"""Small transformers are trained, grown, and trained on with RigL; the original is trained on for as many steps.

    python benchmarks/growth/continued.py --task gpt --results benchmarks/growth/gpt.json
    python benchmarks/growth/continued.py --task vit --data FOLDER --results benchmarks/growth/vit.json

Both go on from the same file with the same examples and the same schedule of learning rates. ``--data`` is a folder
with the IDX files of Fashion-MNIST. What the results have is not run again.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from tasks import TASKS, Task, make_task

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

import sift_onnx
from sift_onnx.training.trainer import TrainingSettings, train_file

__all__ = ["main"]


@click.command()
@click.option("--task", "name", type=click.Choice(TASKS), required=True)
@click.option("--data", type=click.Path(path_type=Path, exists=True), help="Folder of images, for vit.")
@click.option("--results", type=click.Path(path_type=Path), required=True)
@click.option("--seeds", default="0,1,2,3,4", show_default=True, help="Numbers with commas.")
@click.option("--sparsity", default="0.75", show_default=True)
@click.option("--first", default=1000, show_default=True, help="Steps of the original.")
@click.option("--steps", default=1000, show_default=True, help="Steps after that, of either.")
@click.option("--rate", default=0.004, show_default=True, help="Largest learning rate of the original.")
@click.option("--second-rate", default=0.004, show_default=True, help="The same afterwards, of either.")
@click.option("--update", default=30, show_default=True, help="Steps between two updates of masks.")
@click.option("--algorithm", "algorithms", multiple=True, default=("rigl",), show_default=True)
def main(
    name: str,
    data: Path | None,
    results: Path,
    seeds: str,
    sparsity: str,
    first: int,
    steps: int,
    rate: float,
    second_rate: float,
    update: int,
    algorithms: Sequence[str],
) -> None:
    """Train, grow, go on, and compare losses on examples that no training saw."""
    torch.set_num_threads(1)
    task = make_task(name, data)
    rows: list[dict[str, Any]] = pages.read(results)["rows"] if results.exists() else []
    for seed in (int(part) for part in seeds.split(",")):
        if any(row["seed"] == seed for row in rows):
            continue
        start = time.process_time()
        with tempfile.TemporaryDirectory() as scratch:
            original, grown, target = (Path(scratch) / f"{part}.onnx" for part in ("original", "grown", "target"))
            task.export(target, seed)
            train(task, target, original, first, rate, seed, None)
            sift_onnx.transform(str(original), wide=sparsity, init="embed", seed=seed).save(grown, force=True)
            row: dict[str, Any] = {"seed": seed, "original": task.evaluate(original), "grown": task.evaluate(grown)}
            train(task, original, target, steps, second_rate, seed + 1, None)
            row["dense"] = task.evaluate(target)
            for algorithm in algorithms:
                train(task, grown, target, steps, second_rate, seed + 1, masks(algorithm, steps, update))
                row[algorithm] = task.evaluate(target)
            row["macs"] = sift_onnx.inspect(str(original)).totals.macs
            row["grown macs"] = sift_onnx.inspect(str(target)).totals.effective_macs
        rows.append(row | {"seconds": round(time.process_time() - start)})
        pages.write(results, rows)
        click.echo(rows[-1])


def train(
    task: Task, source: Path, target: Path, steps: int, rate: float, seed: int, sparsity: dict[str, Any] | None
) -> None:
    """Train a file; with masks if there is an algorithm for them."""
    settings = TrainingSettings.of_recipe(
        {
            "loss": task.loss,
            "steps": steps,
            "optimizer": {"type": "adamw", "lr": rate, "weight_decay": 0.05},
            "schedule": {"type": "cosine", "warmup": steps // 10},
            "clip_norm": 1.0,
            "sparsity": sparsity,
            "seed": seed,
            "log_every": 10_000,
        }
    )
    train_file(source, target, {"train": task.examples}, settings, device="cpu", force=True)


def masks(algorithm: str, steps: int, update: int) -> dict[str, Any]:
    """The masks of the grown model, which evolve until three quarters of the training unless they are static."""
    stop = steps * 3 // 4
    evolving = {
        "update": {"freq": update, "stop": stop},
        "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": stop},
    }
    kept = {"algorithm": algorithm, "sparsity": "masks", "param_filter": "*"}
    return kept if algorithm == "static" else kept | evolving


if __name__ == "__main__":
    main()
