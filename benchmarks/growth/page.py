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

`transform --wide S --init embed` makes a trained model wider with the original in it: the outputs stay, and so does the
number of multiply-accumulates, to the last one. The [tutorial](../../docs/tutorials/grow-a-transformer.md) shows how.

## A zoo of small models

{count} models of timm, torchvision and transformers with random weights, and parameters and statistics of
normalizations as training leaves them, in {exports}. "Grown" means that layers with at least half of the
multiply-accumulates of learned weights grew, and that active weights multiply exactly as often as the original's.
Outputs in onnxruntime are the original's to 1e-4 of the largest, and to 1e-4 of how far the same input, moved by one
element, changes them (or to 1e-9 in double precision, where single precision says little). What has not been measured
is not counted, and is an empty cell below.
{zoo_origin}

{families}
{family_notes}
What an exporter refuses is no export.

What keeps its width, or does not grow:

{reasons}
×2.00 under "s = 0.5" means that without masks the grown model would have twice the multiply-accumulates.

{models}
## Trained files that packages ship

Files as they lie in wheels, on pictures of text, photographs, sounds and bytes. {shipped_origin}

{shipped}
{shipped_reasons}
## Where rounding is seen

Differences above {notable:.0e} of the largest output are compared with what rounding does to the original. "Exact"
is the original in double precision. Where both models run in double precision, the difference is in the last column.

{conditioning}
## Trained on

A GPT of {gpt_macs} and a vision transformer of {vit_macs} multiply-accumulates an example, both of two layers, 24
features and four heads, learn for 1,000 and 800 steps, grow at 0.75, and go on for as many steps with RigL. A second
training goes on with the original, from the same file, with the same examples and the same schedule. Losses are in
nats, in onnxruntime, on text and pictures that no training saw; mean ± standard deviation over {seeds} seeds.
{trained_origin}

{continued}
![losses of each seed](chart.svg)

Every line is a seed; where it falls, the grown model ends lower than the original does.

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
