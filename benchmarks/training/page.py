"""README.md and chart.svg of this folder, from digits.json, growth.json and sparse_step.json.

python benchmarks/training/page.py        # needs `pip install matplotlib`
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tables import ALGORITHMS, digits_table, growth_table, mean_and_spread, pages, sizes_table, steps_table

__all__ = ["FOLDER", "chart_key", "draw", "page"]

FOLDER = Path(__file__).parent
_PAGE = """\
# Benchmarks of training

Dense against Sparse Wide at equal FLOPs on scikit-learn's digits, trained with torch on CPU and tested in onnxruntime.
{digits_origin}

![accuracy over multiply-accumulates](chart.svg)

Test accuracy of the written file in %, mean ± standard deviation over {runs} seeds. In brackets: the number of
seeds above dense with the same seed:

{digits}
The [notes](notes.md) discuss these figures. [digits.json](digits.json) has every run, including those that chose the
rates.

There are 600 training images, shifted by up to one pixel, 300 for validation (both drawn by seed from 900), and 897 for
the test. The network has four convolutions with BatchNormalization, of w, 2w, 2w and 2w channels, and a classifier.
`transform --wide S` keeps the first convolution and the classifier dense and reduces the budget of the others, so that
all models of a width have the multiply-accumulates of the dense one to within one weight. `train`: SGD with Nesterov
momentum 0.9, weight decay 0.0005, cosine decay, {epochs} epochs of 10 steps; SET and RigL change masks every 20 steps
until three quarters of the training, with a drop fraction of 0.3 that decays by a cosine. Each configuration, dense
included, has the learning rate of 0.2, 0.4, 0.8 and 1.6 that is best on validation images (mean of widths 2 and 4,
three seeds other than those of the test).

{sizes}
## Growth of a trained model

The same network at w = 4, trained on digits (400 steps at 0.2), transformed with `--wide 0.75 --init embed`, and
trained for 400 more steps at 0.2 with RigL. For comparison, the original is trained for as many steps, and so is the
embedded model with fixed masks. Test accuracy in %, over {seeds} seeds. {growth_origin}

{growth}
A channel is in use if it has active weights on both sides.

## Training steps on sparse kernels

A step is forward, backward and SGD with momentum and weight decay, with all changes of layout. A ratio is our time
divided by the other time, the median of interleaved rounds, with 2 threads. "Masked" is the same model in torch, which
multiplies by its zeros. "Original" is the dense model with as many multiply-accumulates in torch, in the faster of its
two memory formats. "Same width" is the wide model without masks. {steps_origin}

{steps}
## Repeat it

Requirements beyond the extra `[train]`: `pip install scikit-learn matplotlib`.

    {digits_command}
    {growth_command}
    {steps_command}
    python benchmarks/training/page.py

The first three commands measure, the fourth writes this page and its chart. Figures of `round_trip.py`,
`mask_updates.py` and `kernel_choices.py` are in the [notes](notes.md).
"""


def page(digits: dict[str, Any], growth: dict[str, Any], steps: dict[str, Any]) -> str:
    """The text of README.md."""
    return _PAGE.format(
        digits_origin=pages.measured_on(digits),
        runs=len(next(iter(digits["test"].values()))["dense"]),
        digits=digits_table(digits),
        epochs=digits["epochs"],
        sizes=sizes_table(digits),
        growth_origin=pages.measured_on(growth),
        seeds=len(growth["rows"]),
        growth=growth_table(growth["rows"]),
        steps_origin=pages.measured_on(steps),
        steps=steps_table(steps["rows"]),
        digits_command=digits["command"],
        steps_command=steps["command"],
        growth_command=growth["command"],
    )


def chart_key(digits: dict[str, Any]) -> str:
    """A digest of all that the chart shows."""
    return pages.digest([digits["test"], digits["sizes"]])


def draw(digits: dict[str, Any], path: Path) -> None:
    """The chart: a panel per algorithm, a line per sparsity beside the dense network's."""
    widths = sorted(digits["test"], key=int)
    sparsities = list(dict.fromkeys(name.split()[0] for name in digits["rates"] if name != "dense"))
    x = [digits["sizes"][width]["0"]["macs"] / 1e3 for width in widths]
    with pages.chart(path, chart_key(digits), figsize=(9.6, 3.4)) as figure:
        axes = figure.subplots(1, len(ALGORITHMS), sharey=True)
        for axis, (algorithm, label) in zip(axes, ALGORITHMS.items(), strict=True):
            for i, name in enumerate(["dense", *(f"{sparsity} {algorithm}" for sparsity in sparsities)]):
                color = "black" if name == "dense" else f"C{i - 1}"
                means, spreads = zip(*(mean_and_spread(digits["test"][width][name]) for width in widths), strict=True)
                text = name if name == "dense" else f"Sparse Wide {name.split()[0]}"
                axis.errorbar(
                    x, means, spreads, label=text, color=color, marker="o", markersize=3, capsize=2, linewidth=1
                )
            axis.set_title(label)
            axis.set_xscale("log")
            axis.set_xticks(x, [f"{value:.0f}" for value in x])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            axis.set_xlabel("thousand multiply-accumulates per image")
        axes[0].set_ylabel("test accuracy, %")
        axes[-1].legend(loc="lower right")


def main() -> None:
    """Write both files."""
    digits, growth, steps = (pages.read(FOLDER / name) for name in ("digits.json", "growth.json", "sparse_step.json"))
    (FOLDER / "README.md").write_text(page(digits, growth, steps), encoding="utf-8")
    draw(digits, FOLDER / "chart.svg")


if __name__ == "__main__":
    main()
