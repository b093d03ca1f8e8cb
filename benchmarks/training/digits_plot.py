"""Plot of what `digits.py` found: accuracy over multiply-accumulates, as SVG.

python benchmarks/training/digits_plot.py digits.json digits.svg       # needs `pip install matplotlib`
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import click

LABELS = {"static": "masks stay", "set": "SET", "rigl": "RigL"}


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.argument("target", type=click.Path(path_type=Path))
def main(source: Path, target: Path) -> None:
    """Draw SOURCE into TARGET: a panel per algorithm, a line per sparsity beside the dense network's."""
    try:
        import matplotlib as mpl
    except ImportError:
        sys.exit("this plot needs matplotlib, which is no dependency: pip install matplotlib")
    mpl.use("svg")
    # The same bytes each time, and text that stays text.
    mpl.rcParams.update({"svg.hashsalt": "digits", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    found = json.loads(source.read_text(encoding="utf-8"))
    widths = sorted(found["test"], key=int)
    sparsities = list(dict.fromkeys(name.split()[0] for name in found["rates"] if name != "dense"))
    figure, axes = plt.subplots(1, len(LABELS), figsize=(9.6, 3.4), sharey=True, layout="constrained")
    for axis, (algorithm, label) in zip(axes, LABELS.items(), strict=True):
        for i, name in enumerate(["dense", *(f"{sparsity} {algorithm}" for sparsity in sparsities)]):
            color = "black" if name == "dense" else f"C{i - 1}"
            x = [found["sizes"][width]["0"]["macs"] / 1e3 for width in widths]
            means, spreads = zip(*(mean_and_spread(found["test"][width][name]) for width in widths), strict=True)
            text = name if name == "dense" else f"Sparse Wide {name.split()[0]}"
            axis.errorbar(x, means, spreads, label=text, color=color, marker="o", markersize=3, capsize=2, linewidth=1)
        axis.set_title(label)
        axis.set_xscale("log")
        axis.set_xticks(x, [f"{value:.0f}" for value in x])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.set_xlabel("thousand multiply-accumulates per image")
    axes[0].set_ylabel("test accuracy, %")
    axes[-1].legend(loc="lower right")
    figure.savefig(target, metadata={"Date": None})


def mean_and_spread(values: list[float]) -> tuple[Any, float]:
    """Mean and standard deviation over seeds."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
