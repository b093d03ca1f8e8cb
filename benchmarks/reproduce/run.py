"""Tables and figures of the paper (Saxena et al., Sparse-IFT, 2023) again, as far as a workstation can.

    python benchmarks/reproduce/run.py                          # all of them, what `make reproduce` runs
    python benchmarks/reproduce/run.py table2 figure3-training
    python benchmarks/reproduce/run.py --setting large --device cuda     # see README.md for the data it needs

Each writes a page with its table and what agrees with the paper, its figures as JSON, and a plot. Trainings that have
finished are kept in build/reproduce and not repeated; --fresh forgets them. Needs matplotlib and, for the small
setting, scikit-learn's digits: pip install matplotlib scikit-learn
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from figure3 import inference, training
from image_study import ImageStudy
from image_tables import table_2, table_3, table_4, table_9
from jobs import Jobs
from outcome import Outcome, write
from sizes import table_1, table_14, table_15
from table19 import table_19

from sift_onnx.backends.processors import usable_processors

HERE = Path(__file__).parent
WORK = HERE.parents[1] / "build" / "reproduce"
NAMES = (
    "table1", "table14", "table15", "figure3-training", "figure3-inference",
    "table2", "table3", "table4", "table9", "table19",
)  # fmt: skip


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar="[NAME]...")
@click.option("--setting", type=click.Choice(["small", "large"]), default="small", show_default=True)
@click.option("--device", default="cpu", show_default=True, help="Of trainings: cpu, cuda or cuda:N.")
@click.option(
    "--jobs", "workers", type=click.IntRange(min=1), help="Trainings at a time [default: one per core; 1 on cuda]."
)
@click.option("--out", type=click.Path(path_type=Path), help="[default: benchmarks/reproduce/results/SETTING]")
@click.option("--fresh", is_flag=True, help="Repeat trainings that have finished.")
def main(names: tuple[str, ...], setting: str, device: str, workers: int | None, out: Path | None, fresh: bool) -> None:
    """Run experiments and write what they found."""
    if fresh:
        shutil.rmtree(WORK / setting, ignore_errors=True)
    count = workers or (usable_processors() if device == "cpu" else 1)
    jobs = Jobs(WORK / setting, count)
    study = ImageStudy(setting, device, jobs)
    experiments: dict[str, Callable[[], Outcome]] = {
        "table1": table_1,
        "table14": table_14,
        "table15": table_15,
        "figure3-training": training,
        "figure3-inference": partial(inference, 16 if setting == "small" else 64),
        "table2": partial(table_2, study),
        "table3": partial(table_3, study),
        "table4": partial(table_4, study),
        "table9": partial(table_9, study),
        "table19": partial(table_19, setting, device, jobs),
    }
    trained = ("table2", "table3", "table4", "table9", "table19")
    folder = out or HERE / "results" / setting
    begin = time.monotonic()
    for name in names or NAMES:
        start = time.monotonic()
        outcome = experiments[name]()
        options = "" if setting == "small" else f" --setting {setting} --device {device}"
        where = device if name in trained else "cpu"
        write(
            outcome,
            folder,
            f"python benchmarks/reproduce/run.py {name}{options}",
            setting,
            where,
            time.monotonic() - start,
        )
        verdicts = [claim.agrees for claim in outcome.claims]
        click.echo(
            f"{outcome.title}: agrees in {verdicts.count(True)}, not in {verdicts.count(False)}, cannot tell in "
            f"{verdicts.count(None)}; {time.monotonic() - start:.0f} s"
        )
    click.echo(f"{folder}: {time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
