"""Figure 1 of the paper: accuracy over training FLOPs, and beside it over seconds of training, which it does not show.

Dense residual networks of several widths make a line. A Sparse Wide network has the FLOPs of the dense one that it is
made from. Its steps take another time on sparse kernels, so the second plot compares by seconds: a Sparse Wide training
with the best dense one that takes no longer, whatever its number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from figure1_page import NAMES, ROUNDS, SLACK, Figure, Point, label, tell
from image_study import Configuration, ImageStudy
from images import batches, steps
from outcome import Experiment
from step_times import step_times

__all__ = ["figure_1", "plain_seconds", "training_flops"]

SPARSITIES = ("0.5", "0.75", "0.9")


def figure_1(study: ImageStudy) -> Experiment:
    """Train what both plots show, time steps, and hold the paper's sentences against them."""
    widths = study.setting.widths
    title = "Figure 1: accuracy over training FLOPs, and over seconds"
    return _experiment(study, Figure("figure1", title, widths, study.setting.wide, SPARSITIES))


def plain_seconds(study: ImageStudy) -> Experiment:
    """The same of a network so small that its size limits it."""
    title = "A small network at equal seconds: beyond the paper"
    width = study.setting.width
    # The network for digits is one.
    network = "" if study.setting.images == "digits" else "plain"
    widths = (width, width + 1, 2 * width)
    return _experiment(study, Figure("plain-seconds", title, widths, (width,), ("0.75", "0.9"), network, paper=False))


def _experiment(study: ImageStudy, figure: Figure) -> Experiment:
    return Experiment(partial(_measure, study, figure), partial(tell, study, figure))


def _measure(study: ImageStudy, figure: Figure) -> dict[str, Any]:
    setting, network = study.setting, figure.network
    dense = {width: Configuration(width=study.own_width(width), network=network) for width in figure.widths}
    sparse = {
        (width, algorithm, s): Configuration((("wide", s),), algorithm, study.own_width(width), network=network)
        for width in figure.wide
        for algorithm in (NAMES if width == setting.width else ("rigl",))
        for s in figure.sparsities
    }
    timed = [*dense.values(), *sparse.values()]
    # Runs that were kept of the setting's own network have no entry for a name.
    named = {"network": network} if network else {}
    networks = [
        {"transform": dict(c.transform), "algorithm": c.algorithm, "width": study.width_of(c), **named} for c in timed
    ]
    what = figure.title.split(":")[0]
    (measured,) = study.jobs.run(
        step_times, [{"setting": study.name, "networks": networks, "rounds": ROUNDS}], f"{what}, step times"
    )
    times = dict(zip(timed, measured, strict=True))
    ms = {c: own["ms"] for c, own in times.items()}
    trained = [*timed, *_as_long(dense, sparse, ms, every_width=not figure.paper)]
    found = study.find(trained, what)
    sizes = study.sizes(trained)
    data = batches(study.name, 0)
    points = []
    for configuration in trained:
        step = ms[replace(configuration, length=1.0)]
        count = steps(study.name, data, configuration.length)
        own = sizes[configuration]
        flops = training_flops(own.macs, own.dense_macs, configuration.algorithm, setting.update) * count
        point = Point(configuration, found[configuration], step, step * count / 1e3, flops * setting.batch)
        points.append({"label": label(study, configuration), **asdict(point)})
    return {"points": points, "times": [{"label": label(study, c), **own} for c, own in times.items()]}


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


def _as_long(
    dense: Mapping[float, Configuration],
    sparse: Mapping[tuple[float, str, str], Configuration],
    ms: Mapping[Configuration, float],
    *,
    every_width: bool,
) -> list[Configuration]:
    """Dense networks trained for as many seconds as each RigL training, longer than usual or shorter.

    They have the width of the network that was widened, or ``every_width`` of ``dense``.
    """
    found = []
    for (width, algorithm, _), configuration in sparse.items():
        for rival in dense if every_width else (width,):
            ratio = round(ms[configuration] / ms[dense[rival]], 2)
            if algorithm == "rigl" and not 1 <= ratio <= SLACK:
                found.append(replace(dense[rival], length=ratio))
    return list(dict.fromkeys(found))
