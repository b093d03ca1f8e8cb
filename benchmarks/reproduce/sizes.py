"""Tables 1, 14 and 15 of the paper, which are arithmetic: from graphs of GPT-3 as exported and transformed here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import onnx
from outcome import Claim, Experiment, Outcome

import sift_onnx
from sift_onnx.analysis.cost import product_macs
from sift_onnx.model import Model
from sift_onnx.models.export import export
from sift_onnx.passes import Doped, Factorized, Parallel, Pass, Wide
from sift_onnx.passes.wide import WidePlan

__all__ = ["TABLE_1", "TABLE_14", "TABLE_15"]

SPARSITIES = ("0.5", "0.75", "0.9")
LAYER = "h.0.mlp.c_fc.weight"
# Forward and backward are three times forward; two FLOPs are a multiply-accumulate.
FLOPS_PER_MAC = 6
SEQUENCES = 2.28e6


@contextmanager
def _exported(name: str, layers: int | None = None) -> Iterator[Model]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        export(name, path, layers=layers)
        yield Model.load(path)


# Member, its formula, the pass, and the formula as a function of k, Din and Dout.
_MEMBERS: tuple[tuple[str, str, Callable[[str], Pass], Callable[[Fraction, int, int], Fraction]], ...] = (
    ("Wide", "k² · Din · Dout", lambda s: Wide(s, budget="layer"), lambda k, i, o: k * i * o),
    ("Parallel", "k · Din · Dout", Parallel, lambda k, i, o: k * i * o),
    ("Factorized", "d · (Din + Dout)", Factorized, lambda k, i, o: k * i * o),
    ("Doped", "Din · Dout", Doped, lambda k, i, o: Fraction(i * o)),
)


def _count_masked() -> dict[str, Any]:
    values = {}
    with _exported("gpt3-small", layers=2) as model:
        inputs, outputs = next(layer.shape for layer in sift_onnx.inspect(model).layers if layer.name == LAYER)
        for member, _, pass_of, expected in _MEMBERS:
            for sparsity in SPARSITIES:
                result = pass_of(sparsity)(model)
                masks = sift_onnx.masks(result.model)
                entry = next(layer for layer in result.report["layers"] if layer["name"] == LAYER)
                names = [part["name"] for part in entry["parts"]] if "parts" in entry else [LAYER]
                found = sum(masks[name].size for name in names if name in masks)
                # Table 1's k of Wide is sqrt(1 / (1 - s)), squared; d of Factorized is k * Din * Dout / (Din + Dout).
                said = expected(1 / (1 - Fraction(sparsity)), inputs, outputs)
                values[f"{member} {sparsity}"] = {"formula": float(said), "found": found}
    return values


def _tell_table_1(values: dict[str, Any]) -> Outcome:
    rows, ratios = [], []
    for member, formula, _, _ in _MEMBERS:
        for sparsity in SPARSITIES:
            said, found = values[f"{member} {sparsity}"]["formula"], values[f"{member} {sparsity}"]["found"]
            ratios.append(found / said)
            figures = (f"{said:,.0f}", f"{found:,}", f"{ratios[-1]:.4f}")
            rows.append([member, f"{float(sparsity):.0%}", formula, *figures])
    claims = [
        Claim(
            "The search space of each member is that of the formula, up to the rounding of sizes to whole numbers.",
            all(abs(ratio - 1) <= 0.015 for ratio in ratios),
            f"Ratios from {min(ratios):.4f} to {max(ratios):.4f}.",
        )
    ]
    what = (
        f"`{LAYER}` of GPT-3 Small, 768 to 3072 features, transformed layer by layer; the weights under its masks are "
        "counted in the transformed graph."
    )
    header = ("member", "sparsity", "formula", "by the formula", "in the graph", "ratio")
    return Outcome("table1", "Table 1: cardinality of the search space", what, header, rows, claims, _bars(rows))


# How many weights are under masks.
TABLE_1 = Experiment(_count_masked, _tell_table_1)


def _bars(rows: Sequence[Sequence[str]]) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        axis = figure.subplots()
        members = list(dict.fromkeys(row[0] for row in rows))
        for number, sparsity in enumerate(dict.fromkeys(row[1] for row in rows)):
            heights = [int(row[4].replace(",", "")) / 1e6 for row in rows if row[1] == sparsity]
            axis.bar([i + 0.25 * (number - 1) for i in range(len(members))], heights, 0.24, label=sparsity)
        axis.set_xticks(range(len(members)), [f"Sparse {member}" for member in members])
        axis.set_ylabel("million weights under masks")
        axis.legend(title="sparsity")

    return draw


@dataclass(frozen=True)
class _Architecture:
    """Sizes of a decoder in a plan: width, feed-forward, heads, layers."""

    width: int
    feed_forward: int
    heads: int
    layers: int


def _architecture(plan: WidePlan, heads: int, *, after: bool) -> _Architecture:
    size = plan.solution.value if after else plan.analysis.system.original
    names = plan.analysis.layers
    shapes = {name: sorted({size(axis.size) for axis in layer.axes}) for name, layer in names.items()}
    (width,) = shapes["h.0.attn.c_proj.weight"]
    layers = sum(name.endswith("mlp.c_fc.weight") for name in names)
    return _Architecture(width, shapes[LAYER][-1], heads, layers)


def _heads(model: Model) -> int:
    """Of attention: the softmax takes [batch, heads, tokens, tokens]."""
    inferred = onnx.shape_inference.infer_shapes(model.to_proto())
    softmax = next(node for node in inferred.graph.node if node.op_type == "Softmax")
    info = next(info for info in inferred.graph.value_info if info.name == softmax.output[0])
    return int(info.type.tensor_type.shape.dim[1].dim_value)


# Layers, width, feed-forward width, heads and features of a head, by sparsity.
_PUBLISHED_SIZES = {
    "": (12, 768, 3072, 12, 64),
    "0.5": (12, 1092, 4344, 12, 64),
    "0.75": (12, 1536, 6144, 12, 64),
}


def _model_name(sparsity: str) -> str:
    return f"Sparse Wide {float(sparsity):.0%}" if sparsity else "dense"


def _solve_sizes() -> dict[str, Any]:
    values = {}
    # All layers are alike: two of them tell how many heads there are.
    with _exported("gpt3-small", layers=2) as model:
        heads_of = {s: _heads(Wide(s, budget="layer")(model).model if s else model) for s in _PUBLISHED_SIZES}
    with _exported("gpt3-small") as model:
        for sparsity, said in _PUBLISHED_SIZES.items():
            plan = Wide(sparsity or "0.5", budget="layer").plan(model)
            own = _architecture(plan, heads_of[sparsity], after=bool(sparsity))
            found = (own.layers, own.width, own.feed_forward, own.heads, own.width // own.heads)
            values[_model_name(sparsity)] = {"found": found, "paper": said}
    return values


def _tell_table_14(values: dict[str, Any]) -> Outcome:
    published = _PUBLISHED_SIZES
    found = {sparsity: tuple(values[_model_name(sparsity)]["found"]) for sparsity in published}
    rows = [
        [
            _model_name(sparsity),
            *(f"{ours} ({theirs})" for ours, theirs in zip(found[sparsity], said, strict=True)),
        ]
        for sparsity, said in published.items()
    ]
    same = all(found[s][:4] == published[s][:4] for s in published)
    heads = ", ".join(f"{found[s][4]} ({found[s][3]} of them are {found[s][1]} wide)" for s in published if s)
    claims = [
        Claim("Layers, widths, feed-forward widths and numbers of heads.", same, "Each number is the paper's."),
        Claim(
            "Heads have 64 features in the wide models too.",
            all(found[s][4] == published[s][4] for s in published),
            f"Here they have {heads}.",
            "Twelve heads of 64 features are 768 wide, not 1092 or 1536: the table repeats the dense model's number.",
        ),
    ]
    what = 'Widths that `Wide(S, budget="layer")` solves for in the exported GPT-3 Small; in brackets the paper\'s.'
    header = ("model", "layers", "width", "feed-forward", "heads", "features of a head")

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        for number, (label, index) in enumerate((("width", 1), ("feed-forward", 2))):
            at = [i + 0.2 * (2 * number - 1) for i in range(len(found))]
            axis.bar(at, [sizes[index] for sizes in found.values()], 0.36, label=f"{label}, here")
            axis.plot(at, [said[index] for said in published.values()], "k_", markersize=22, label=f"{label}, paper")
        axis.set_xticks(range(len(rows)), [row[0] for row in rows])
        axis.legend()

    return Outcome("table14", "Table 14: sizes of GPT-3 Small", what, header, rows, claims, draw)


# Sizes of GPT-3 Small.
TABLE_14 = Experiment(_solve_sizes, _tell_table_14)

# FLOPs of a sequence, and exaFLOPs of the training.
_PUBLISHED_FLOPS = {
    "GPT-3 Small, dense": (8.763e11, 2.00),
    "GPT-3 Small, Sparse Wide 50%": (1.029e12, 2.35),
    "GPT-3 Medium, dense": (2.4845e12, 5.67),
}


def _count_flops() -> dict[str, Any]:
    with _exported("gpt3-small") as model:
        plan = Wide("0.5", budget="layer").plan(model)
        small = (_flops(plan, after=False), _flops(plan, after=True))
    with _exported("gpt3-medium") as model:
        medium = _flops(Wide("0.5", budget="layer").plan(model), after=False)
    return {
        name: {"flops": flops, "paper": said, "exaflops": flops * SEQUENCES / 1e18}
        for (name, (said, _)), flops in zip(_PUBLISHED_FLOPS.items(), (*small, medium), strict=True)
    }


def _tell_table_15(values: dict[str, Any]) -> Outcome:
    found = {name: entry["flops"] for name, entry in values.items()}
    rows, ratios = [], []
    for name, (said, exa) in _PUBLISHED_FLOPS.items():
        ratios.append(found[name] / said)
        totals = (f"{values[name]['exaflops']:.2f}", f"{exa:.2f}")
        rows.append([name, f"{found[name]:.4g}", f"{said:.4g}", f"{ratios[-1]:.4f}", *totals])
    growth = found["GPT-3 Small, Sparse Wide 50%"] / found["GPT-3 Small, dense"]
    claims = [
        Claim(
            "FLOPs of a sequence, forward and backward, of all three models.",
            all(abs(ratio - 1) <= 0.005 for ratio in ratios),
            f"Ratios to the paper's from {min(ratios):.4f} to {max(ratios):.4f}.",
        ),
        Claim(
            "Sparse Wide at 50 % costs 1.17 times the dense model, by attention alone.",
            abs(growth - 1.17) < 0.01,
            f'{growth:.3f} times. The products with weights keep their cost exactly (`budget="layer"`).',
        ),
    ]
    what = (
        "Products with weights and of attention, six FLOPs for a multiply-accumulate, 2.28e6 sequences of 2048 tokens. "
        "The perplexities of the table are not repeated: they take training GPT-3 on WikiText-103."
    )
    header = ("model", "FLOPs of a sequence", "paper", "ratio", "exaFLOPs", "paper")

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        axis.bar(range(len(found)), [flops / 1e12 for flops in found.values()], 0.5, label="here")
        axis.plot(
            range(len(found)),
            [said / 1e12 for said, _ in _PUBLISHED_FLOPS.values()],
            "k_",
            markersize=40,
            label="paper",
        )
        axis.set_xticks(range(len(found)), list(found))
        axis.set_ylabel("teraFLOPs of a sequence")
        axis.legend()

    return Outcome("table15", "Table 15: FLOPs of training GPT-3", what, header, rows, claims, draw)


# FLOPs of training GPT-3.
TABLE_15 = Experiment(_count_flops, _tell_table_15)


def _flops(plan: WidePlan, *, after: bool) -> int:
    size = plan.solution.value if after else plan.analysis.system.original
    return FLOPS_PER_MAC * (sum((plan.after if after else plan.before).values()) + product_macs(plan.analysis, size))
