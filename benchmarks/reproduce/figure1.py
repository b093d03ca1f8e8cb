"""Figure 1 of the paper: accuracy over training FLOPs, and beside it over seconds of training, which it does not show.

Dense residual networks of several widths make a line. A Sparse Wide network has the FLOPs of the dense one that it is
made from. Its steps take another time on sparse kernels, so the second plot compares by seconds: a Sparse Wide training
with the best dense one that takes no longer, whatever its width or number of steps.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compare import Difference, mean_and_spread, verdict
from image_study import Configuration, Found, ImageStudy
from images import batches, steps
from outcome import Claim, Detail, Outcome
from step_times import step_times

__all__ = ["Point", "best_dense_within", "figure_1", "training_flops"]

SPARSITIES = ("0.5", "0.75", "0.9")
NAMES = {"static": "masks stay", "set": "SET", "rigl": "RigL"}
ROUNDS = 5
# Times are not known better than to this share of them.
SLACK = 1.02


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

    @property
    def accuracy(self) -> float:
        """Mean over seeds."""
        return statistics.mean(self.found.accuracies)


def figure_1(study: ImageStudy) -> Outcome:
    """Train what both plots show, time steps, and hold the paper's sentences against them."""
    setting = study.setting
    dense = {width: Configuration(width=study.own_width(width)) for width in setting.widths}
    sparse = {
        (width, algorithm, s): Configuration((("wide", s),), algorithm, study.own_width(width))
        for width in setting.wide
        for algorithm in (NAMES if width == setting.width else ("rigl",))
        for s in SPARSITIES
    }
    timed = [*dense.values(), *sparse.values()]
    networks = [{"transform": dict(c.transform), "algorithm": c.algorithm, "width": study.width_of(c)} for c in timed]
    (measured,) = study.jobs.run(
        step_times, [{"setting": study.name, "networks": networks, "rounds": ROUNDS}], "Figure 1, step times"
    )
    times = dict(zip(timed, measured, strict=True))
    as_long = _as_long(dense, sparse, {c: found["ms"] for c, found in times.items()})
    trained = [*timed, *as_long.values()]
    found = study.find(trained, "Figure 1")
    sizes = study.sizes(trained)
    data = batches(study.name, 0)
    points = {}
    for configuration in trained:
        ms = times[Configuration(configuration.transform, configuration.algorithm, configuration.width)]["ms"]
        count = steps(study.name, data, configuration.length)
        own = sizes[configuration]
        flops = training_flops(own.macs, own.dense_macs, configuration.algorithm, setting.update) * count
        points[configuration] = Point(configuration, found[configuration], ms, ms * count / 1e3, flops * setting.batch)
    return _outcome(study, dense, sparse, as_long, points, times)


def training_flops(macs: int, dense_macs: int, algorithm: str, update: int) -> float:
    """FLOPs of a training step for one image: forward once, backward twice, and what RigL adds.

    RigL needs the gradients of all weights once in ``update`` steps (Evci et al., 2020, appendix H).

    Args:
        macs: multiply-accumulates of a forward pass with active weights.
        dense_macs: the same with all weights.
        algorithm: ``static``, ``set`` or ``rigl``.
        update: steps between updates of masks.
    """
    extra = (dense_macs - macs) / update if algorithm == "rigl" else 0.0
    return 2 * (3 * macs + extra)


def best_dense_within(dense: Sequence[Point], seconds: float) -> Point | None:
    """The dense training of best mean accuracy among those that take ``seconds`` or less.

    It is chosen by the accuracies that it is then compared by, which favours it.
    """
    within = [point for point in dense if point.seconds <= SLACK * seconds]
    return max(within, key=lambda point: point.accuracy, default=None)


def _as_long(
    dense: Mapping[float, Configuration],
    sparse: Mapping[tuple[float, str, str], Configuration],
    ms: Mapping[Configuration, float],
) -> dict[tuple[float, str], Configuration]:
    """The dense network trained for as many seconds as each RigL training, longer than usual or shorter."""
    found = {}
    for (width, algorithm, s), configuration in sparse.items():
        ratio = round(ms[configuration] / ms[dense[width]], 2)
        if algorithm == "rigl" and not 1 <= ratio <= SLACK:
            found[width, s] = Configuration(width=dense[width].width, length=ratio)
    return found


def _outcome(
    study: ImageStudy,
    dense: Mapping[float, Configuration],
    sparse: Mapping[tuple[float, str, str], Configuration],
    as_long: Mapping[tuple[float, str], Configuration],
    points: Mapping[Configuration, Point],
    times: Mapping[Configuration, Mapping[str, Any]],
) -> Outcome:
    setting = study.setting
    all_dense = [points[c] for c in (*dense.values(), *as_long.values())]
    header = ("", "TFLOPs of training", "ms of a step", "seconds of training", "accuracy, %")
    rows, entries = [], []
    for configuration, point in points.items():
        label = _label(study, configuration)
        rows.append(
            [
                label,
                f"{point.flops / 1e12:.2f}",
                f"{point.ms:.1f}",
                f"{point.seconds:.1f}",
                mean_and_spread(point.found.accuracies, 2),
            ]
        )
        entries.append({"label": label, **asdict(point)})
    rigl = {(width, s): points[c] for (width, algorithm, s), c in sparse.items() if algorithm == "rigl"}
    claims = [_at_equal_flops(dense, rigl, points, s) for s in SPARSITIES]
    claims += [_grows(rigl, width) for width in setting.wide]
    claims += _doubled(setting.widths, dense, rigl, points)
    claims += [_at_equal_seconds(study, rigl, all_dense, s) for s in SPARSITIES]
    what = (
        f"{setting.data}. Networks of several widths (channels of the first stage), dense and Sparse Wide; "
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
        "figure1",
        "Figure 1: accuracy over training FLOPs, and over seconds",
        what,
        header,
        rows,
        claims,
        {"points": entries, "times": [{"label": _label(study, c), **found} for c, found in times.items()]},
        _drawing(dense, sparse, as_long, points),
        (_where_time_goes(study, times),),
    )


def _label(study: ImageStudy, configuration: Configuration) -> str:
    width = f"width {study.width_of(configuration):g}"
    if not configuration.transform:
        return f"dense, {width}" + (f", x{configuration.length:g}" if configuration.length != 1 else "")
    return f"Sparse Wide {float(configuration.transform[0][1]):.0%}, {NAMES[configuration.algorithm]}, {width}"


def _at_equal_flops(
    dense: Mapping[float, Configuration],
    rigl: Mapping[tuple[float, str], Point],
    points: Mapping[Configuration, Point],
    sparsity: str,
) -> Claim:
    verdicts, parts = [], []
    for (width, s), point in rigl.items():
        if s == sparsity:
            difference = Difference.of(point.found.accuracies, points[dense[width]].found.accuracies)
            verdicts.append(difference.is_above)
            parts.append(f"{difference} at width {width:g}")
    text = f"At {float(sparsity):.0%}, Sparse Wide with RigL is above the dense network of the same FLOPs."
    return Claim(text, verdict(verdicts), f"{', '.join(parts)}.")


def _grows(rigl: Mapping[tuple[float, str], Point], width: float) -> Claim:
    verdicts, parts = [], []
    for low, high in itertools.pairwise(SPARSITIES):
        difference = Difference.of(rigl[width, high].found.accuracies, rigl[width, low].found.accuracies)
        verdicts.append(difference.is_above)
        parts.append(f"{difference} at {float(high):.0%} over {float(low):.0%}")
    text = f"Accuracy grows with sparsity, width {width:g}."
    return Claim(text, verdict(verdicts), f"{', '.join(parts)}.")


def _doubled(
    widths: Sequence[float],
    dense: Mapping[float, Configuration],
    rigl: Mapping[tuple[float, str], Point],
    points: Mapping[Configuration, Point],
) -> list[Claim]:
    """As Sparse Wide ResNet-18 at 90 % and dense ResNet-34."""
    claims = []
    for (width, s), point in rigl.items():
        larger = [w for w in widths if points[dense[w]].flops >= 2 * points[dense[width]].flops]
        if s != SPARSITIES[-1] or not larger:
            continue
        other = points[dense[min(larger)]]
        difference = Difference.of(point.found.accuracies, other.found.accuracies)
        factor = other.flops / points[dense[width]].flops
        text = (
            f"Sparse Wide at 90 % of width {width:g} is above a dense network of {factor:.1f} times the FLOPs "
            "(ResNet-18 and ResNet-34 in the paper)."
        )
        claims.append(Claim(text, difference.is_above, f"{difference} against width {min(larger):g}."))
    return claims


def _at_equal_seconds(
    study: ImageStudy, rigl: Mapping[tuple[float, str], Point], dense: Sequence[Point], sparsity: str
) -> Claim:
    verdicts, parts = [], []
    for (width, s), point in rigl.items():
        best = best_dense_within(dense, point.seconds)
        if s != sparsity or best is None:
            continue
        difference = Difference.of(point.found.accuracies, best.found.accuracies)
        verdicts.append(difference.is_above)
        parts.append(
            f"{difference} at width {width:g} ({point.seconds:.1f} s; {_label(study, best.configuration)}: "
            f"{best.seconds:.1f} s)"
        )
    text = (
        f"Not in the paper: at {float(sparsity):.0%}, Sparse Wide with RigL is above the best dense training that "
        "takes no more seconds on this CPU."
    )
    why = "Where the time of a step goes is in the table below."
    return Claim(text, verdict(verdicts), f"{', '.join(parts)}.", why)


def _where_time_goes(study: ImageStudy, times: Mapping[Configuration, Mapping[str, Any]]) -> Detail:
    rows = []
    for configuration, found in times.items():
        operations = ", ".join(f"{name} {share:.0%}" for name, share in found["operations"])
        low, high = found["spread"]
        rows.append(
            [
                _label(study, configuration),
                f"{found['ms']:.1f} ({low:.1f} to {high:.1f})",
                *(f"{ms:.1f}" for ms in found["phases"].values()),
                operations,
            ]
        )
    header = ("", "ms of a step (rounds)", "forward", "backward", "optimizer and masks", "of it, by torch's profiler")
    return Detail("Where the time of a step goes", header, rows)


def _drawing(
    dense: Mapping[float, Configuration],
    sparse: Mapping[tuple[float, str, str], Configuration],
    as_long: Mapping[tuple[float, str], Configuration],
    points: Mapping[Configuration, Point],
) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        labels = ("TFLOPs of training", "seconds of training, one core")
        for axis, label in zip(axes, labels, strict=True):

            def place(point: Point, in_flops: bool = axis is axes[0]) -> float:
                return point.flops / 1e12 if in_flops else point.seconds

            def put(chosen: Sequence[Configuration], at: Callable[[Point], float] = place, **style: Any) -> None:
                there = sorted((points[c] for c in chosen), key=at)
                spreads = [_spread(point.found.accuracies) for point in there]
                axis.errorbar([at(p) for p in there], [p.accuracy for p in there], spreads, capsize=2, **style)  # noqa: B023

            put(list(dense.values()), color="black", marker="o", markersize=3, linewidth=1, label="dense")
            if as_long:
                style = {"color": "black", "marker": "o", "markersize": 4, "markerfacecolor": "white"}
                put(list(as_long.values()), linestyle="none", label="dense, trained as long as a sparse one", **style)
            for number, s in enumerate(SPARSITIES):
                for algorithm, marker in (("static", "s"), ("set", "^"), ("rigl", "D")):
                    chosen = [c for (_, a, own), c in sparse.items() if (a, own) == (algorithm, s)]
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
