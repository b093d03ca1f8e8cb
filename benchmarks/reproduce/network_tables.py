"""Tables 5 and 6 of the paper: Sparse Wide of other networks, and Sparse Parallel of a residual one."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from compare import mean_and_spread, verdict
from image_study import Configuration, Found, ImageStudy, differences
from outcome import Claim, Experiment, Outcome

__all__ = ["table_5", "table_6"]

MEMBERS = {"wide": "Sparse Wide", "parallel": "Sparse Parallel"}
# Of each set of images: name and title of the network that is made sparse, and of the next larger one.
RESIDUAL = {
    "fashion-mnist": (("", "ResNet-10"), ("resnet18", "ResNet-18")),
    "own": (("", "ResNet-18"), ("resnet34", "ResNet-34")),
}
Results = Mapping[Configuration, Found]


@dataclass(frozen=True)
class _Row:
    """A network and what it is made to.

    Attributes:
        network: its name.
        title: its title.
        member: of the family.
        paper: accuracies, the dense one's and then at each sparsity.
        as_in: the paper's network.
    """

    network: str
    title: str
    member: str
    paper: tuple[float, ...]
    as_in: str

    @property
    def label(self) -> str:
        """What the table calls it."""
        return f"{self.title}, {MEMBERS[self.member]}"

    @property
    def dense(self) -> Configuration:
        """The network as it is."""
        return Configuration(network=self.network)

    def at(self, sparsity: str) -> Configuration:
        """Trained with RigL."""
        return Configuration(((self.member, sparsity),), "rigl", network=self.network)


def table_5(study: ImageStudy) -> Experiment:
    """Networks that are made for little computation; Table 10 has the same figures of Sparse Wide."""
    sparsities = ("0.5", "0.75")
    rows = (
        _Row("mobilenet", "MobileNetV2", "wide", (72.4, 73.4, 73.7), "MobileNetV2"),
        _Row("mobilevit", "MobileViT", "wide", (73.5, 74.6, 74.8), "MobileViT-S"),
        _Row("botnet", "BoTNet", "wide", (79.8, 80.3, 80.6), "BoTNet-50"),
    )

    def claims(found: Results) -> list[Claim]:
        return [
            *(_above_dense(f"{row.label} is above dense at both sparsities.", row, sparsities, found) for row in rows),
            *(_grows(row, sparsities, found) for row in rows),
        ]

    name = "Table 5: networks for little computation"
    return _experiment(study, "table5", name, rows, sparsities, claims, "on CIFAR-100", study.setting.table_seeds)


def table_6(study: ImageStudy) -> Experiment:
    """Residual networks of two depths, and whether the sparse smaller one reaches the dense larger one."""
    (small, title), (large, large_title) = RESIDUAL.get(study.setting.images, RESIDUAL["own"])
    sparsities = ("0.5", "0.75", "0.9")
    rows = (
        _Row(small, title, "wide", (70.9, 72.7, 73.8, 74.4), "ResNet-18"),
        _Row(small, title, "parallel", (70.9, 72.7, 73.2, 74.0), "ResNet-18"),
        _Row(large, large_title, "wide", (74.2, 75.6, 76.4, 76.8), "ResNet-34"),
    )

    def claims(found: Results) -> list[Claim]:
        told = [_above_dense(f"{row.label} is above dense at every sparsity.", row, sparsities, found) for row in rows]
        told += [_grows(row, sparsities, found) for row in rows if row.member == "wide"]
        return [*told, _reaches(rows[0], rows[2], sparsities, found)]

    name = "Table 6: residual networks of two depths"
    return _experiment(study, "table6", name, rows, sparsities, claims, "on ImageNet", study.setting.seeds)


def _experiment(
    study: ImageStudy,
    name: str,
    title: str,
    rows: Sequence[_Row],
    sparsities: Sequence[str],
    claims: Callable[[Results], list[Claim]],
    where: str,
    seeds: int,
) -> Experiment:
    def measure() -> dict[str, Any]:
        cells = dict.fromkeys(c for row in rows for c in (row.dense, *map(row.at, sparsities)))
        found = study.find(list(cells), title.split(":")[0], seeds)
        values: dict[str, Any] = {}
        for row in rows:
            own = values.setdefault(row.title, {"dense": asdict(found[row.dense])})
            there = {s: found.get(row.at(s)) for s in sparsities}
            own[row.member] = {s: asdict(cell) if cell else None for s, cell in there.items()}
        return values

    def tell(values: dict[str, Any]) -> Outcome:
        found: dict[Configuration, Found] = {}
        for row in rows:
            own = values[row.title]
            found[row.dense] = Found.of(own["dense"])
            found |= {row.at(s): Found.of(own[row.member][s]) for s in sparsities if own[row.member][s]}
        return Outcome(
            name,
            title,
            _what(study, rows, found, where),
            ("", "multiply-accumulates", "dense", *(f"{float(s):.0%}" for s in sparsities)),
            [_cells(row, sparsities, found) for row in rows],
            claims(found),
            partial(_draw, rows, sparsities, found, where),
        )

    return Experiment(measure, tell)


def _what(study: ImageStudy, rows: Sequence[_Row], found: Results, where: str) -> str:
    chosen = study.setting
    data = chosen.data.split(";")[0]
    rates = ", ".join(f"{found[row.dense].rate:g} for {row.title}" for row in {row.title: row for row in rows}.values())
    networks = ", ".join(dict.fromkeys(f"{row.as_in} for {row.title}" for row in rows if row.as_in != row.title))
    return (
        f"{data}. {chosen.epochs:g} epochs of batches of {chosen.batch}, SGD with Nesterov momentum, cosine decay, "
        f"masks updated every {chosen.update} steps with RigL until three quarters of the training. What is made of a "
        f"network has the learning rate that is best for the dense one on validation images: {rates}. Test accuracy "
        f"in %, mean ± standard deviation over {len(found[rows[0].dense].accuracies)} seeds; in brackets the paper's, "
        f"{where}{', of ' + networks if networks else ''}. Sparse networks have the dense one's multiply-accumulates. "
        "Differences below are means over seeds, paired, ± their standard error; less than two of these cannot tell."
    )


def _cells(row: _Row, sparsities: Sequence[str], found: Results) -> list[str]:
    there = [found.get(c) for c in (row.dense, *map(row.at, sparsities))]
    texts = [mean_and_spread(cell.accuracies, 2) if cell else "does not apply" for cell in there]
    cells = [f"{text} ({paper:g})" for text, paper in zip(texts, row.paper, strict=True)]
    return [row.label, f"{found[row.dense].macs:,}", *cells]


def _above_dense(text: str, row: _Row, sparsities: Sequence[str], found: Results) -> Claim:
    there = [s for s in sparsities if row.at(s) in found]
    verdicts, evidence = differences(found, {f"{float(s):.0%}": (row.at(s), row.dense) for s in there})
    shares = ", ".join(f"{found[row.at(s)].dense:.0%}" for s in there)
    why = f"Layers without a mask take {shares} of the multiply-accumulates, which those with masks have to repay."
    return Claim(text, verdict(verdicts), f"{evidence}.", why)


def _grows(row: _Row, sparsities: Sequence[str], found: Results) -> Claim:
    steps = [pair for pair in itertools.pairwise(sparsities) if row.at(pair[0]) in found and row.at(pair[1]) in found]
    pairs = {f"{float(high):.0%} over {float(low):.0%}": (row.at(high), row.at(low)) for low, high in steps}
    verdicts, evidence = differences(found, pairs)
    return Claim(f"Accuracy of {row.label} grows with sparsity.", verdict(verdicts), f"{evidence}.")


def _reaches(small: _Row, large: _Row, sparsities: Sequence[str], found: Results) -> Claim:
    """As Sparse Wide ResNet-18 at 90 % and dense ResNet-34."""
    factor = found[large.dense].macs / found[small.dense].macs
    pairs = {f"{float(s):.0%}": (small.at(s), large.dense) for s in sparsities}
    verdicts, evidence = differences(found, pairs)
    text = (
        f"{small.label} at {float(sparsities[-1]):.0%} is above dense {large.title}, which has {factor:.1f} times the "
        f"multiply-accumulates (in the paper {small.paper[-1]} and {large.paper[0]})."
    )
    return Claim(text, verdicts[-1], f"{evidence}.")


def _draw(rows: Sequence[_Row], sparsities: Sequence[str], found: Results, where: str, figure: Any) -> None:
    ours, theirs = figure.subplots(1, 2)
    places = [0.0, *map(float, sparsities)]
    for number, row in enumerate(rows):
        color = list(dict.fromkeys(other.title for other in rows)).index(row.title)
        style = {"marker": "o", "markersize": 3, "linewidth": 1, "color": f"C{color}"}
        style["linestyle"] = "-" if row.member == "wide" else "--"
        there = [(x, found.get(c)) for x, c in zip(places, (row.dense, *map(row.at, sparsities)), strict=True)]
        points = [(x + 0.004 * number, cell.accuracies) for x, cell in there if cell]
        spreads = [statistics.stdev(own) if len(own) > 1 else 0.0 for _, own in points]
        means = [statistics.mean(own) for _, own in points]
        ours.errorbar([x for x, _ in points], means, spreads, capsize=2, label=row.label, **style)
        theirs.plot(places, row.paper, **style)
    for axis, title in ((ours, "here"), (theirs, f"paper, {where}")):
        axis.set_xticks(places, ["dense", *(f"{float(s):.0%}" for s in sparsities)])
        axis.set_title(title)
        axis.grid(alpha=0.3)
    ours.set_ylabel("test accuracy, %")
    figure.legend(loc="outside right upper")
