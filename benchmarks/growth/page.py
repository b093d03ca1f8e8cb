"""README.md and chart.svg of this folder, from its results.

python benchmarks/growth/page.py        # needs `pip install matplotlib`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tables import (
    conditioning_table,
    continued_table,
    families_table,
    models_table,
    pages,
    reasons_table,
    shipped_table,
)
from verdicts import FAMILIES, NOTABLE, verdict

__all__ = ["FOLDER", "RESULTS", "chart_key", "draw", "page"]

FOLDER = Path(__file__).parent
RESULTS = ("zoo", "shipped", "gpt", "vit")
_TASKS = {
    "gpt": "GPT, bytes of Python's source code",
    "vit": "ViT, Fashion-MNIST",
}

_PAGE = """\
# Growing trained models

`transform --wide S --init embed` embeds a trained model in a wider one. The outputs stay the same, and so does the
exact number of multiply-accumulates. The [tutorial](../../docs/tutorials/grow-a-transformer.md) shows how.

## A zoo of small models

{count} models of timm, torchvision and transformers, in {exports}.
Weights are random; parameters and statistics of normalizations are like those after a training. Models that an exporter
refuses are not counted, nor are cases that were not measured (empty cells). "Grown" means all of the following:

- The layers that grew have at least half of the multiply-accumulates of learned weights.
- The number of multiply-accumulates with active weights is exactly the original's.
- Outputs in onnxruntime equal the original's to 1e-4 of the largest output, and to 1e-4 of the change that shifting the
  input by one element causes. Where single precision cannot tell, they agree to 1e-9 in double precision.

{zoo_origin}

{families}
{family_notes}
Models of which a part keeps its width, or that do not grow:

{reasons}
In the next table, ×2.00 under "s = 0.5" means that without masks the grown model would have twice the
multiply-accumulates.

{models}
## Trained files that packages ship

Model files from wheels, unchanged, run on pictures of text, photographs, sounds and bytes. {shipped_origin}

{shipped}
{shipped_reasons}
## Where rounding shows

Differences above {notable:.0e} of the largest output are compared with the rounding errors of the original. "Exact"
is the original in double precision. If both models run in double precision, the last column has their difference.

{conditioning}
## Trained further

A GPT of {gpt_macs} and a vision transformer of {vit_macs} multiply-accumulates per example have two layers, 24
features and four heads. They are trained for 1,000 and 800 steps, grown at 0.75, and trained for as many more steps
with RigL. For comparison, the original is trained further from the same file, on the same examples and schedule. Losses
are in nats, measured in onnxruntime on held-out text and pictures: mean ± standard deviation over {seeds} seeds.
{trained_origin}

{continued}
![losses of each seed](chart.svg)

Each line is a seed. It falls if the grown model ends with a lower loss than the original.

## Repeat it

Requirements beyond the extra `[train]`: `pip install timm torchvision transformers scikit-learn pillow matplotlib`.

    python benchmarks/growth/export.py --folder build/growth
    {zoo_command}
    {shipped_command}
    {gpt_command}
    {vit_command}
    python benchmarks/growth/page.py

`shipped.py` says which wheels it reads, and `continued.py` where pictures come from.
"""


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of README.md, from the results by their names."""
    zoo, shipped = results["zoo"], results["shipped"]
    tasks = {_TASKS[name].split(",")[0]: results[name]["rows"] for name in _TASKS}
    text = _PAGE.format(
        count=len({row["model"] for row in zoo["rows"]}),
        exports=_exports(zoo["rows"]),
        families=families_table(zoo["rows"]),
        family_notes="".join(f"- {family}: {meaning}.\n" for family, meaning in FAMILIES.items()),
        reasons=reasons_table([row for row in zoo["rows"] if row.get("kept") or verdict(row) != "grown"]),
        models=models_table(zoo["rows"]),
        shipped=shipped_table(shipped["rows"]),
        shipped_reasons=reasons_table([row for row in shipped["rows"] if row.get("kept") or verdict(row) != "grown"]),
        notable=NOTABLE,
        conditioning=conditioning_table([*zoo["rows"], *shipped["rows"]]),
        seeds=" and ".join(dict.fromkeys(str(len(rows)) for rows in tasks.values())),
        gpt_macs=f"{results['gpt']['rows'][0]['macs']:,}",
        vit_macs=f"{results['vit']['rows'][0]['macs']:,}",
        continued=continued_table(tasks),
        zoo_origin=pages.measured_on(zoo),
        shipped_origin=pages.measured_on(shipped),
        trained_origin=pages.measured_on(results["gpt"]),
        **{f"{name}_command": results[name]["command"] for name in RESULTS},
    )
    return text.rstrip("\n") + "\n"


def _exports(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many exports there are of each exporter."""
    files = Counter(exporter for _, exporter in {(row["model"], row["exporter"]) for row in rows})
    return " and ".join(f"{count} exports by `{exporter}`" for exporter, count in files.most_common())


def chart_key(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A digest of all that the chart shows."""
    return pages.digest([results[name]["rows"] for name in _TASKS])


def draw(results: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """A panel per model: a line per seed from the loss of the original, trained on, to that of the grown model."""
    with pages.chart(path, chart_key(results), figsize=(8.4, 3.2)) as figure:
        for axis, (name, title) in zip(figure.subplots(1, len(_TASKS)), _TASKS.items(), strict=True):
            for row in results[name]["rows"]:
                losses = row["dense"]["loss"], row["rigl"]["loss"]
                better = losses[1] < losses[0]
                axis.plot((0, 1), losses, color="C0" if better else "C3", marker="o", markersize=4, linewidth=1)
            axis.set_xticks((0, 1), ("original, trained on", "grown, trained on\nwith RigL"))
            axis.set_xlim(-0.4, 1.4)
            axis.set_title(title)
            axis.grid(axis="y", alpha=0.3)
        figure.axes[0].set_ylabel("loss, nats")


def main() -> None:
    """Write both files."""
    results = {name: pages.read(FOLDER / f"{name}.json") for name in RESULTS}
    (FOLDER / "README.md").write_text(page(results), encoding="utf-8")
    draw(results, FOLDER / "chart.svg")


if __name__ == "__main__":
    main()
