"""Tables 2, 3, 4 and 9 of the paper in miniature: which way to sparse accuracy, at equal multiply-accumulates."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compare import mean_and_spread, verdict
from image_study import DENSE, Configuration, Found, ImageStudy, differences, wide
from outcome import Claim, Experiment, Outcome

__all__ = ["table_2", "table_3", "table_4", "table_9"]

SPARSITIES = ("0.5", "0.75", "0.9")
# What N:M groups have each sparsity; the paper does not say which it used.
PATTERNS = {"0.5": "2:4", "0.75": "1:4", "0.9": "1:10"}
MEMBERS = ("wide", "factorized", "parallel", "doped")
LOCAL = MEMBERS[1:]

Cells = Mapping[tuple[str, str], Configuration]
Results = Mapping[Configuration, Found]


def table_2(study: ImageStudy) -> Experiment:
    """Sparse Wide with masks that stay, SET and RigL."""
    cells = {(a, s): wide(s, a) for a in ("static", "set", "rigl") for s in SPARSITIES}

    def claims(found: Results) -> list[Claim]:
        return [
            _above_dense("Sparse Wide is above dense with every way of training and at every sparsity.", cells, found),
            _above("SET is above masks that stay.", cells, found, "set", "static"),
            _above("RigL is above masks that stay.", cells, found, "rigl", "static"),
            _above("RigL is above SET.", cells, found, "rigl", "set"),
            _grows("With RigL, accuracy grows with sparsity.", cells, found, "rigl"),
            _grows("With SET, accuracy grows with sparsity.", cells, found, "set"),
            _does_not_grow("With masks that stay, it does not grow with sparsity.", cells, found, "static"),
        ]

    names = {"static": "masks stay", "set": "SET", "rigl": "RigL"}
    paper = {
        "dense": 77.0, "static": (78.5, 78.3, 78.2), "set": (78.8, 79.2, 79.8), "rigl": (79.1, 79.5, 80.1),
    }  # fmt: skip
    about = _About("table2", "Table 2: Sparse Wide by training method", names, paper, study.setting.seeds)
    return _experiment(study, about, cells, claims)


def table_3(study: ImageStudy) -> Experiment:
    """The four members with RigL."""
    cells = {(m, s): Configuration(((m, s),), "rigl") for m in MEMBERS for s in SPARSITIES}

    def claims(found: Results) -> list[Claim]:
        return [
            *(_above_dense(f"Sparse {m.title()} is above dense at some sparsity.", cells, found, m) for m in MEMBERS),
            *(_above(f"Wide is above {m.title()}.", cells, found, "wide", m) for m in LOCAL),
            _does_not_grow("Doped does not gain from more sparsity.", cells, found, "doped"),
        ]

    names = {m: f"Sparse {m.title()}" for m in MEMBERS}
    paper = {
        "dense": 77.0, "wide": (79.1, 79.5, 80.1), "factorized": (77.8, 78.4, 78.9), "parallel": (77.9, 79.1, 78.2),
        "doped": (78.2, 77.8, 76.9),
    }  # fmt: skip
    about = _About("table3", "Table 3: members of the family", names, paper, study.setting.table_seeds)
    return _experiment(study, about, cells, claims)


def table_4(study: ImageStudy) -> Experiment:
    """Unstructured masks against N:M."""
    cells = {("unstructured", s): wide(s) for s in SPARSITIES}
    cells |= {("N:M", s): wide(s, pattern=PATTERNS[s]) for s in SPARSITIES}

    def claims(found: Results) -> list[Claim]:
        return [
            _above_dense("N:M masks are above dense at some sparsity.", cells, found, "N:M"),
            _above("Unstructured masks are above N:M.", cells, found, "unstructured", "N:M"),
        ]

    names = {"unstructured": "unstructured", "N:M": "N:M (" + ", ".join(PATTERNS.values()) + ")"}
    paper = {"dense": 77.0, "unstructured": (79.1, 79.5, 80.1), "N:M": (77.1, 78.4, 78.1)}
    about = _About("table4", "Table 4: unstructured against N:M masks", names, paper, study.setting.table_seeds)
    return _experiment(study, about, cells, claims)


def table_9(study: ImageStudy) -> Experiment:
    """Members with and without a non-linearity inside."""
    cells = {(m, s): Configuration(((m, s),), "rigl") for m in LOCAL for s in SPARSITIES}
    linear = {
        (f"{m}, linear", s): Configuration(((m, s), ("activation", "none")), "rigl") for m in LOCAL for s in SPARSITIES
    }
    cells |= linear

    def claims(found: Results) -> list[Claim]:
        text = "{} is better with a non-linearity than without."
        return [_above(text.format(m.title()), cells, found, m, f"{m}, linear") for m in LOCAL]

    names = {m: f"Sparse {m.title()}" for m in LOCAL} | {f"{m}, linear": f"Sparse {m.title()}, linear" for m in LOCAL}
    paper = {
        "dense": 77.0,
        "factorized": (77.8, 78.4, 78.9), "factorized, linear": (75.9, 76.6, 76.5),
        "parallel": (77.9, 79.1, 78.2), "parallel, linear": (77.1, 77.2, 77.6),
        "doped": (78.2, 77.8, 76.9), "doped, linear": (77.3, 77.1, 76.5),
    }  # fmt: skip
    about = _About("table9", "Table 9: with and without non-linearity", names, paper, study.setting.table_seeds)
    return _experiment(study, about, cells, claims)


@dataclass(frozen=True)
class _About:
    """What a table says besides its figures.

    Attributes:
        name: of its folder.
        title: of its page.
        names: of its rows, by series.
        paper: accuracies of the dense network and of each series.
        seeds: runs of each configuration.
    """

    name: str
    title: str
    names: Mapping[str, str]
    paper: Mapping[str, Any]
    seeds: int


def _experiment(study: ImageStudy, about: _About, cells: Cells, claims: Callable[[Results], list[Claim]]) -> Experiment:
    def measure() -> dict[str, Any]:
        found = study.find([DENSE, *cells.values()], about.title.split(":")[0], about.seeds)
        values: dict[str, Any] = {"dense": asdict(found[DENSE])}
        for (series, s), cell in cells.items():
            values.setdefault(series, {})[s] = asdict(found[cell]) if cell in found else None
        return values | {"paper": dict(about.paper)}

    def tell(values: dict[str, Any]) -> Outcome:
        found = {cell: Found.of(values[series][s]) for (series, s), cell in cells.items() if values[series][s]}
        found[DENSE] = Found.of(values["dense"])
        return _outcome(about, study, cells, found, claims(found))

    return Experiment(measure, tell)


def _above(text: str, cells: Cells, found: Results, first: str, second: str) -> Claim:
    both = [s for s in SPARSITIES if cells[first, s] in found and cells[second, s] in found]
    pairs = {f"{float(s):.0%}": (cells[first, s], cells[second, s]) for s in both}
    verdicts, evidence = differences(found, pairs)
    return Claim(text, verdict(verdicts), f"{evidence}.", _spread_note(verdicts))


def _above_dense(text: str, cells: Cells, found: Results, series: str | None = None) -> Claim:
    """Of one series: at some sparsity; of all: at each one."""
    chosen = {key: cell for key, cell in cells.items() if series in (None, key[0]) and cell in found}
    pairs = {
        f"{float(s):.0%}" + ("" if series else f" with {name}"): (cell, DENSE) for (name, s), cell in chosen.items()
    }
    verdicts, evidence = differences(found, pairs)
    agrees = verdict(verdicts)
    if series and True in verdicts:
        agrees = True
    elif series and None in verdicts:
        agrees = None
    fixed = {f"{float(s):.0%}": f"{found[cell].dense:.0%}" for (_, s), cell in chosen.items()}
    shares = ", ".join(f"{share} at {sparsity}" for sparsity, share in fixed.items())
    why = (
        f"Layers without a mask take {shares} of the multiply-accumulates here, which the masked ones have to repay; "
        "in the paper's ResNet-18 the first and the last layer take a few percent."
    )
    return Claim(text, agrees, f"{evidence}.", why)


def _grows(text: str, cells: Cells, found: Results, series: str) -> Claim:
    verdicts, evidence = differences(found, _steps(cells, found, series))
    return Claim(text, verdict(verdicts), f"{evidence}.", _spread_note(verdicts))


def _does_not_grow(text: str, cells: Cells, found: Results, series: str) -> Claim:
    steps = _steps(cells, found, series)
    verdicts, evidence = differences(found, steps)
    # Not to grow means that nothing is above with certainty; that it falls is no contradiction.
    return Claim(text, not any(verdicts), f"{evidence}.")


def _steps(cells: Cells, found: Results, series: str) -> dict[str, tuple[Configuration, Configuration]]:
    there = [s for s in SPARSITIES if cells[series, s] in found]
    steps = zip(there[1:], there, strict=False)
    return {
        f"{float(high):.0%} over {float(low):.0%}": (cells[series, high], cells[series, low]) for high, low in steps
    }


def _spread_note(verdicts: Sequence[bool | None]) -> str:
    within = verdicts.count(None)
    return f"{within} of {len(verdicts)} differences are within two standard errors." if within else ""


def _outcome(about: _About, study: ImageStudy, cells: Cells, found: Results, claims: Sequence[Claim]) -> Outcome:
    paper, names = about.paper, about.names
    chosen = study.setting
    dense = found[DENSE]
    tuned = "a seed of its own" if chosen.tuning_seeds == 1 else f"{chosen.tuning_seeds} seeds of their own"
    what = (
        f"{chosen.data}. {chosen.epochs:g} epochs of SGD with Nesterov momentum, cosine decay, masks updated every "
        f"{chosen.update} steps until three quarters of the training. All have the learning rate of "
        f"{', '.join(f'{rate:g}' for rate in chosen.rates)} that is best for the dense network on validation images, "
        f"{dense.rate:g}, by {tuned}. Test accuracy in %, mean ± standard deviation "
        f"over {len(dense.accuracies)} seeds; in brackets "
        "the paper's, for ResNet-18 on CIFAR-100. Every network has the dense one's multiply-accumulates "
        f"({min(f.macs for f in found.values()):,} to {max(f.macs for f in found.values()):,} for an image). "
        "Differences below are means over seeds, paired, ± their standard error; less than two of these cannot tell."
    )
    rows = [["dense", *[f"{mean_and_spread(dense.accuracies)} ({paper['dense']:g})"] * len(SPARSITIES)]]
    for series, label in names.items():
        published = paper[series]
        rows.append(
            [
                label,
                *(f"{_cell(found.get(cells[series, s]))} ({published[i]:g})" for i, s in enumerate(SPARSITIES)),
            ]
        )
    header = ("", *(f"{float(s):.0%}" for s in SPARSITIES))
    return Outcome(about.name, about.title, what, header, rows, claims, _drawing(cells, found, names, paper))


def _cell(found: Found | None) -> str:
    return mean_and_spread(found.accuracies) if found else "does not apply"


def _drawing(cells: Cells, found: Results, names: Mapping[str, str], paper: Mapping[str, Any]) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        ours, theirs = figure.subplots(1, 2)
        x = range(len(SPARSITIES))
        dense = found[DENSE].accuracies
        mean, spread = statistics.mean(dense), statistics.stdev(dense) if len(dense) > 1 else 0.0
        ours.axhline(mean, color="black", linewidth=1, label="dense")
        ours.axhspan(mean - spread, mean + spread, color="black", alpha=0.08, linewidth=0)
        theirs.axhline(paper["dense"], color="black", linewidth=1)
        for number, (series, label) in enumerate(names.items()):
            # A member has its color with and without a non-linearity.
            color = list(dict.fromkeys(name.split(",")[0] for name in names)).index(series.split(",")[0])
            style = {"marker": "o", "markersize": 3, "linewidth": 1, "color": f"C{color}"}
            style["linestyle"] = "--" if "linear" in series else "-"
            there = [at for at in x if cells[series, SPARSITIES[at]] in found]
            runs = [found[cells[series, SPARSITIES[at]]].accuracies for at in there]
            means = [statistics.mean(values) for values in runs]
            spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in runs]
            shifted = [at + 0.04 * (number - (len(names) - 1) / 2) for at in there]
            ours.errorbar(shifted, means, spreads, capsize=2, label=label, **style)
            theirs.plot(x, paper[series], **style)
        for axis, title in ((ours, "here"), (theirs, "paper: ResNet-18, CIFAR-100")):
            axis.set_xticks(list(x), [f"{float(s):.0%}" for s in SPARSITIES])
            axis.set_xlabel("sparsity")
            axis.set_title(title)
            axis.grid(alpha=0.3)
        ours.set_ylabel("test accuracy, %")
        figure.legend(loc="outside right upper")

    return draw
