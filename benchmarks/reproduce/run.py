"""Tables and figures of the paper (Saxena et al., Sparse-IFT, 2023) again, as far as a workstation can.

    python benchmarks/reproduce/run.py                          # all of the standard setting: `make reproduce`
    python benchmarks/reproduce/run.py table2 figure3-training
    python benchmarks/reproduce/run.py --setting medium --device cuda --jobs 14
    python benchmarks/reproduce/run.py --setting large --device cuda     # see README.md for the data it needs
    python benchmarks/reproduce/run.py --pages                  # pages and plots again, of the figures that are there

Each writes its figures as JSON, and of these a page with its table and what agrees with the paper, and a plot;
README.md of the setting's folder is a table of all sentences. Trainings that have finished are kept in build/reproduce
and not repeated; --fresh forgets them. Needs matplotlib and, for the small setting, scikit-learn's digits:
pip install matplotlib scikit-learn
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from figure1 import figure_1, plain_seconds
from figure3 import TRAINING, inference
from image_sets import FASHION_MNIST, IMAGES, check_images
from image_study import ImageStudy
from image_tables import table_2, table_3, table_4, table_9
from images import SETTINGS
from jobs import Jobs
from network_tables import table_5, table_6
from outcome import Experiment, document_of, front_page, read_results, write
from sizes import TABLE_1, TABLE_14, TABLE_15
from table8 import table_8
from table19 import table_19
from text_seconds import text_seconds

from sift_onnx.backends.processors import usable_processors

HERE = Path(__file__).parent
WORK = HERE.parents[1] / "build" / "reproduce"
ON_IMAGES = ("figure1", "plain-seconds", "table2", "table4", "table3", "table6", "table5", "table9")
ON_TEXT = ("text-seconds", "table8", "table19")
OTHERS = ("table1", "table14", "table15", "figure3-training", "figure3-inference")
NAMES = {
    # One network: no line of Figure 1, and no other networks.
    "small": (*OTHERS, "plain-seconds", "table2", "table4", "table3", "table9", *ON_TEXT[1:]),
    # What takes no images is the same in the small setting, whose pages have it; Tables 5 and 9 would take too long.
    "standard": ("text-seconds", *ON_IMAGES[:-2]),
    # To see that everything runs.
    "pilot": (*ON_IMAGES, *ON_TEXT[:2]),
    # Within minutes of a GPU.
    "medium": ("table2",),
    # Four convolutions are too few for images of 64x64.
    "large": (*OTHERS, *(name for name in ON_IMAGES if name != "plain-seconds"), *ON_TEXT),
}


def make(name: str, setting: str, device: str, workers: int) -> tuple[Experiment, Jobs]:
    """An experiment, and the jobs that it asks for."""
    jobs = Jobs(WORK / setting, workers)
    study = ImageStudy(setting, device, jobs)
    experiments: dict[str, Callable[[], Experiment]] = {
        "table1": lambda: TABLE_1,
        "table14": lambda: TABLE_14,
        "table15": lambda: TABLE_15,
        "figure3-training": lambda: TRAINING,
        "figure3-inference": partial(inference, 16 if setting == "small" else 64),
        "figure1": partial(figure_1, study),
        "plain-seconds": partial(plain_seconds, study),
        "table2": partial(table_2, study),
        "table3": partial(table_3, study),
        "table4": partial(table_4, study),
        "table5": partial(table_5, study),
        "table6": partial(table_6, study),
        "table9": partial(table_9, study),
        "text-seconds": partial(text_seconds, setting, device, jobs),
        "table8": partial(table_8, setting, device, jobs),
        "table19": partial(table_19, setting, device, jobs),
    }
    return experiments[name](), jobs


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.argument("names", nargs=-1, type=click.Choice(sorted({*itertools.chain(*NAMES.values())})), metavar="[NAME]...")
@click.option("--setting", type=click.Choice(list(NAMES)), default="standard", show_default=True)
@click.option("--data", help=f"Images: a folder of IDX files [default: {FASHION_MNIST}], or an .npz file if large.")
@click.option("--device", default="cpu", show_default=True, help="Of trainings: cpu, cuda or cuda:N.")
@click.option(
    "--jobs", "workers", type=click.IntRange(min=1), help="Trainings at a time [default: one per core; 1 on cuda]."
)
@click.option("--out", type=click.Path(path_type=Path), help="[default: benchmarks/reproduce/results/SETTING]")
@click.option("--fresh", is_flag=True, help="Repeat trainings that have finished.")
@click.option("--pages", is_flag=True, help="Make pages and plots of the figures that are there; measure nothing.")
def main(
    names: tuple[str, ...],
    setting: str,
    data: str | None,
    device: str,
    workers: int | None,
    out: Path | None,
    fresh: bool,
    pages: bool,
) -> None:
    """Run experiments and write what they found."""
    names = names or NAMES[setting]
    if unknown := set(names) - set(NAMES[setting]):
        raise click.UsageError(f"the setting {setting} has no {', '.join(sorted(unknown))}")
    folder = out or HERE / "results" / setting
    if pages:
        for document in read_results(folder):
            experiment, _ = make(document["name"], document["setting"], "cpu", 1)
            write(document, experiment.tell(document["values"]), folder)
    else:
        if data is not None:
            # Workers inherit it.
            os.environ[IMAGES] = data
        if set(names) & set(ON_IMAGES):
            check_images(SETTINGS[setting].images)
        if fresh:
            shutil.rmtree(WORK / setting, ignore_errors=True)
        count = workers or (usable_processors() if device == "cpu" else 1)
        begin = time.monotonic()
        for name in names:
            measure(name, setting, device, count, folder)
        click.echo(f"{folder}: {time.monotonic() - begin:.0f} s in all")
    (folder / "README.md").write_text(front_page(read_results(folder), setting), encoding="utf-8")


def measure(name: str, setting: str, device: str, workers: int, folder: Path) -> None:
    """Run an experiment and write what it found."""
    start = time.monotonic()
    experiment, jobs = make(name, setting, device, workers)
    values = experiment.measure()
    command = f"python benchmarks/reproduce/run.py {name}"
    command += "" if setting == "standard" else f" --setting {setting}"
    command += "" if device == "cpu" else f" --device {device}"
    document = document_of(
        name,
        values,
        setting=setting,
        command=command,
        device=device if name in (*ON_IMAGES, *ON_TEXT) else "cpu",
        seconds=time.monotonic() - start,
        processor_seconds=jobs.processor_seconds,
    )
    outcome = experiment.tell(document["values"])
    write(document, outcome, folder)
    verdicts = [claim.agrees for claim in outcome.claims]
    click.echo(
        f"{outcome.title}: agrees in {verdicts.count(True)}, not in {verdicts.count(False)}, cannot tell in "
        f"{verdicts.count(None)}; {time.monotonic() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
