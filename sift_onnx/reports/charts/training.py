"""How trainings went: loss, accuracy, and how the masks moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sift_onnx.records.train import History, StepEntry, ValidationEntry
from sift_onnx.reports.charts.canvas import Canvas, Chart
from sift_onnx.reports.charts.theme import SERIES
from sift_onnx.reports.page.table import Table

__all__ = ["Run", "course_chart", "masks_chart"]

_MOST_RUNS = len(SERIES)
# field of a log line -> what it is called, its axis, whether it is a share
_MASKS = {
    "churn": ("Churn", "of active weights"),
    "itop": ("Explored (ITOP)", "of weights"),
    "doc": ("Never dropped (DOC)", "of weights"),
}


@dataclass(frozen=True)
class Run:
    """One training: its name, and the course of its figures."""

    name: str
    history: History

    def series(self, key: str, *, validation: bool = False) -> list[tuple[int, float]]:
        """Steps and values of a figure."""
        entries: Sequence[StepEntry | ValidationEntry] = self.history.validations if validation else self.history.steps
        return [(entry.step, value) for entry in entries if (value := getattr(entry, key)) is not None]


def course_chart(runs: Sequence[Run]) -> Chart | None:
    """Loss and accuracy over steps; None where no run has any."""
    panels = [
        ("Loss on training data", "loss", lambda run: run.series("loss"), "{:.4g}"),
        ("Loss on validation data", "loss", lambda run: run.series("loss", validation=True), "{:.4g}"),
        ("Accuracy on validation data", "accuracy", lambda run: run.series("accuracy", validation=True), "{:.2%}"),
    ]
    return _over_steps(runs, panels, "Training curves", "Each point is the mean since the previous log line.")


def masks_chart(runs: Sequence[Run]) -> Chart | None:
    """Churn and exploration of the masks over steps; None where no run followed its masks."""
    panels = [(title, axis, (lambda run, key=key: run.series(key)), "{:.2%}") for key, (title, axis) in _MASKS.items()]
    caption = (
        "Churn: the share of active weights that were not active before the last update. ITOP: the share of weights "
        "that have been active at some time. DOC: the share that has been active all the time."
    )
    return _over_steps(runs, panels, "Masks over training", caption)


_Panel = tuple[str, str, Callable[[Run], list[tuple[int, float]]], str]


def _over_steps(runs: Sequence[Run], panels: Sequence[_Panel], title: str, caption: str) -> Chart | None:
    drawn = [run for run in runs if any(get(run) for _, _, get, _ in panels)]
    if not drawn:
        return None
    panels = [panel for panel in panels if any(panel[2](run) for run in drawn)]
    shown = drawn[:_MOST_RUNS]
    # A run has the same colour in all charts, as far as there are enough.
    colours = {run.name: SERIES[i % len(SERIES)] for i, run in enumerate(runs if len(runs) <= len(SERIES) else shown)}
    if len(drawn) > len(shown):
        caption += f" The first {len(shown)} of {len(drawn)} runs; the table has the others."

    def draw(canvas: Canvas) -> None:
        grid = canvas.panels(len(panels))
        canvas.height((190 * len(panels) if canvas.narrow else 270) + 10 * len(shown))
        for axes, (heading, unit, get, form) in zip(grid, panels, strict=True):
            for run in shown:
                points = get(run)
                if not points:
                    continue
                xs, ys = zip(*points, strict=True)
                mark = "o" if len(points) < 25 else ""
                (line,) = axes.plot(xs, ys, mark + "-", color=colours[run.name], label=run.name, markersize=3.5)
                canvas.tip(line, f"{run.name}: {form.format(ys[-1])} at step {xs[-1]:,}")
            axes.set_title(heading)
            axes.set_xlabel("optimizer step")
            axes.set_ylabel(unit)
            axes.grid(axis="y")
            axes.locator_params(axis="x", nbins=4)
            axes.locator_params(axis="y", nbins=5)
            if "%" in form:
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}" if value < 0 else f"{100 * value:.4g} %")
        if len(runs) > 1:
            canvas.legend(*grid, columns=(1, 3))

    rows, found = [], []
    for run in drawn:
        for heading, _, get, form in panels:
            points = get(run)
            if points:
                values = [value for _, value in points]
                first, *extremes, last = map(form.format, (values[0], min(values), max(values), values[-1]))
                rows.append((run.name, heading, str(len(points)), first, *extremes, last))
                found.append(f"{run.name}, {heading.lower()}: from {first} to {last}")
    return Chart(
        title,
        caption,
        "; ".join(found[:12]),
        draw,
        Table.of(f"{title}: ends and extremes", "<run|<figure|points|first|lowest|highest|last", rows),
    )
