"""What Figure 1 says: its rows, the sentences of the paper, comparisons at equal seconds, and the plots."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare import Difference, mean_and_spread, verdict
from image_study import Configuration, Found, ImageStudy
from outcome import Claim, Detail, Outcome

__all__ = ["NAMES", "ROUNDS", "SLACK", "Figure", "Point", "best_dense_within", "label", "tell"]

NAMES = {"static": "masks stay", "set": "SET", "rigl": "RigL"}
ROUNDS = 5
PLAIN = "four convolutions with BatchNormalization, the first of half the channels of the others, and a classifier"
# Times are not known better than to this share of them.
SLACK = 1.02


@dataclass(frozen=True)
class Figure:
    """What is compared.

    Attributes:
        name: of its folder.
        title: of its page.
        widths: of dense networks.
        wide: of these, those that are widened.
        sparsities: of the wide ones.
        network: a name of `networks.py`; empty for the setting's own.
        paper: whether the paper's sentences are held against it.
    """

    name: str
    title: str
    widths: Sequence[float]
    wide: Sequence[float]
    sparsities: Sequence[str]
    network: str = ""
    paper: bool = True


@dataclass(frozen=True)
class Point:
    """A configuration in both plots.

    Attributes:
        configuration: what is trained.
        found: its accuracies.
        ms: of a step.
        seconds: of a training.
        flops: of a training.
    """

    configuration: Configuration
    found: Found
    ms: float
    seconds: float
    flops: float

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Point:
        """Of what JSON keeps of it."""
        configuration, found = Configuration.of(kept["configuration"]), Found.of(kept["found"])
        return cls(configuration, found, kept["ms"], kept["seconds"], kept["flops"])

    @property
    def accuracy(self) -> float:
        """Mean over seeds."""
        return statistics.mean(self.found.accuracies)


def best_dense_within(dense: Sequence[Point], seconds: float) -> Point | None:
    """The dense training of best mean accuracy among those that take ``seconds`` or less.

    It is chosen by the accuracies that it is then compared by, which favours it.
    """
    within = [point for point in dense if point.seconds <= SLACK * seconds]
    return max(within, key=lambda point: point.accuracy, default=None)


def tell(study: ImageStudy, figure: Figure, values: dict[str, Any]) -> Outcome:
    """Both plots, and the paper's sentences beside the figures."""
    setting = study.setting
    points = {point.configuration: point for point in map(Point.of, values["points"])}
    all_dense = [point for c, point in points.items() if not c.transform]
    dense = {study.width_of(point.configuration): point for point in all_dense if point.configuration.length == 1}
    sparse = {(study.width_of(c), c.algorithm, c.transform[0][1]): point for c, point in points.items() if c.transform}
    header = ("", "TFLOPs of training", "ms of a step", "seconds of training", "accuracy, %")
    rows = [
        [
            label(study, configuration),
            f"{point.flops / 1e12:.3g}",
            f"{point.ms:.1f}",
            f"{point.seconds:.1f}",
            mean_and_spread(point.found.accuracies, 2),
        ]
        for configuration, point in points.items()
    ]
    rigl = {(width, s): point for (width, algorithm, s), point in sparse.items() if algorithm == "rigl"}
    claims = [_at_equal_flops(dense, rigl, s) for s in figure.sparsities]
    if figure.paper:
        claims += [_grows(rigl, width, figure.sparsities) for width in figure.wide]
        claims += _doubled(dense, rigl, figure.sparsities[-1])
    for same_width in (True, False):
        claims += [_at_equal_seconds(study, rigl, all_dense, s, same_width) for s in figure.sparsities]
    data = f"{setting.data.split(';')[0]}; {PLAIN}" if figure.network else setting.data
    what = (
        f"{data}. Networks of several widths (channels of the first stage), dense and Sparse Wide; "
        f"{setting.epochs:g} epochs of batches of {setting.batch}, SGD with Nesterov momentum, cosine decay, masks "
        f"updated every {setting.update} steps until three quarters of the training. All have the learning rate that "
        f"is best for the dense network of width {setting.width:g} on validation images, "
        f"{all_dense[0].found.rate:g}. Test accuracy, mean ± standard deviation over {setting.seeds} seeds. Seconds "
        f"are steps times the time of a step on one core, measured apart from the trainings: all networks take "
        f"turns in one process, {setting.update} steps at a time with an update of masks among them, median of "
        f"{ROUNDS} rounds; a dense network has the faster of torch's two memory formats. Dense networks marked with a "
        "factor are trained for that many times the usual steps, so that they take as long as a Sparse Wide one. "
        "Differences below are means over seeds, paired, ± their standard error; less than two of these cannot tell."
    )
    return Outcome(
        figure.name,
        figure.title,
        what,
        header,
        rows,
        claims,
        _drawing(all_dense, sparse, figure.sparsities),
        (_where_time_goes(values["times"]),),
    )


def label(study: ImageStudy, configuration: Configuration) -> str:
    """What rows call it."""
    width = f"width {study.width_of(configuration):g}"
    if not configuration.transform:
        return f"dense, {width}" + (f", x{configuration.length:g}" if configuration.length != 1 else "")
    return f"Sparse Wide {float(configuration.transform[0][1]):.0%}, {NAMES[configuration.algorithm]}, {width}"


def _at_equal_flops(dense: Mapping[float, Point], rigl: Mapping[tuple[float, str], Point], sparsity: str) -> Claim:
    verdicts, parts = [], []
    for (width, s), point in rigl.items():
        if s == sparsity:
            difference = Difference.of(point.found.accuracies, dense[width].found.accuracies)
            verdicts.append(difference.is_above)
            parts.append(f"{difference} at width {width:g}")
    text = f"At {float(sparsity):.0%}, Sparse Wide with RigL is above the dense network of the same FLOPs."
    return Claim(text, verdict(verdicts), f"{', '.join(parts)}.")


def _grows(rigl: Mapping[tuple[float, str], Point], width: float, sparsities: Sequence[str]) -> Claim:
    verdicts, parts = [], []
    for low, high in itertools.pairwise(sparsities):
        difference = Difference.of(rigl[width, high].found.accuracies, rigl[width, low].found.accuracies)
        verdicts.append(difference.is_above)
        parts.append(f"{difference} at {float(high):.0%} over {float(low):.0%}")
    text = f"Accuracy grows with sparsity, width {width:g}."
    return Claim(text, verdict(verdicts), f"{', '.join(parts)}.")


def _doubled(dense: Mapping[float, Point], rigl: Mapping[tuple[float, str], Point], sparsity: str) -> list[Claim]:
    """As Sparse Wide ResNet-18 at 90 % and dense ResNet-34."""
    claims = []
    for (width, s), point in rigl.items():
        larger = [w for w, other in dense.items() if other.flops >= 2 * dense[width].flops]
        if s != sparsity or not larger:
            continue
        other = dense[min(larger)]
        difference = Difference.of(point.found.accuracies, other.found.accuracies)
        factor = other.flops / dense[width].flops
        text = (
            f"Sparse Wide at {100 * float(sparsity):g} % of width {width:g} is above a dense network of {factor:.1f} "
            "times the FLOPs (ResNet-18 and ResNet-34 in the paper)."
        )
        claims.append(Claim(text, difference.is_above, f"{difference} against width {min(larger):g}."))
    return claims


def _at_equal_seconds(
    study: ImageStudy, rigl: Mapping[tuple[float, str], Point], dense: Sequence[Point], sparsity: str, same_width: bool
) -> Claim:
    """Against dense training of the same network, which costs as much to run, or of a network of any width."""
    verdicts, parts = [], []
    for (width, s), point in rigl.items():
        rivals = [other for other in dense if not same_width or study.width_of(other.configuration) == width]
        best = best_dense_within(rivals, point.seconds)
        if s != sparsity or best is None:
            continue
        difference = Difference.of(point.found.accuracies, best.found.accuracies)
        verdicts.append(difference.is_above)
        spreads = f"{_spread(point.found.accuracies):.2f} and {_spread(best.found.accuracies):.2f}"
        parts.append(
            f"{difference} at width {width:g} ({point.seconds:.1f} s; {label(study, best.configuration)}: "
            f"{best.seconds:.1f} s; spreads over seeds {spreads})"
        )
    rival = "dense training of as many multiply-accumulates" if same_width else "dense training of any width"
    text = (
        f"Not in the paper: at {float(sparsity):.0%}, Sparse Wide with RigL is above the best {rival} that takes no "
        "more seconds on this CPU."
    )
    why = "Where the time of a step goes is in the table below."
    return Claim(text, verdict(verdicts), f"{', '.join(parts) or 'No dense training was as short'}.", why)


def _where_time_goes(times: Sequence[Mapping[str, Any]]) -> Detail:
    rows = []
    for found in times:
        operations = ", ".join(f"{name} {share:.0%}" for name, share in found["operations"])
        low, high = found["spread"]
        rows.append(
            [
                found["label"],
                f"{found['ms']:.1f} ({low:.1f} to {high:.1f})",
                *(f"{ms:.1f}" for ms in found["phases"].values()),
                operations,
            ]
        )
    header = ("", "ms of a step (rounds)", "forward", "backward", "optimizer and masks", "of it, by torch's profiler")
    return Detail("Where the time of a step goes", header, rows)


def _drawing(
    dense: Sequence[Point], sparse: Mapping[tuple[float, str, str], Point], sparsities: Sequence[str]
) -> Callable[[Any], None]:
    usual = [point for point in dense if point.configuration.length == 1]
    as_long = [point for point in dense if point.configuration.length != 1]

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        labels = ("TFLOPs of training", "seconds of training, one core")
        for axis, label in zip(axes, labels, strict=True):

            def place(point: Point, in_flops: bool = axis is axes[0]) -> float:
                return point.flops / 1e12 if in_flops else point.seconds

            def put(chosen: Sequence[Point], at: Callable[[Point], float] = place, **style: Any) -> None:
                there = sorted(chosen, key=at)
                spreads = [_spread(point.found.accuracies) for point in there]
                axis.errorbar([at(p) for p in there], [p.accuracy for p in there], spreads, capsize=2, **style)  # noqa: B023

            put(usual, color="black", marker="o", markersize=3, linewidth=1, label="dense")
            if as_long:
                style = {"color": "black", "marker": "o", "markersize": 4, "markerfacecolor": "white"}
                put(as_long, linestyle="none", label="dense, trained as long as a sparse one", **style)
            for number, s in enumerate(sparsities):
                for algorithm, marker in (("static", "s"), ("set", "^"), ("rigl", "D")):
                    chosen = [point for (_, a, own), point in sparse.items() if (a, own) == (algorithm, s)]
                    style = {"color": f"C{number}", "marker": marker, "markersize": 4, "linestyle": "none"}
                    put(chosen, label=f"{float(s):.0%}, {NAMES[algorithm]}", **style)
            axis.set_xscale("log")
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("test accuracy, %")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper")

    return draw


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
