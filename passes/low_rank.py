"""Low rank: the structured counterpart of Sparse Wide (paper, appendix B.3.2)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

import onnx_graphsurgeon as gs
from msgspec import convert
from msgspec.structs import replace

from sift_onnx.analysis.cost import positions_of
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.errors import UsageError
from sift_onnx.graphs.constants import is_masked
from sift_onnx.model import Model
from sift_onnx.passes.base import HISTORY_KEY, Pass, PassResult, already_applied, record
from sift_onnx.passes.layerwise.activations import Activation
from sift_onnx.passes.layerwise.base import LayerwisePass
from sift_onnx.passes.layerwise.factorization import grouped_product, low_rank_factors, relative_error
from sift_onnx.passes.layerwise.linear_layers import LinearLayer, Occurrence
from sift_onnx.passes.layerwise.replacement import Part, Replacement
from sift_onnx.passes.layerwise.replacement_builder import ReplacementBuilder
from sift_onnx.passes.masking import active_weights
from sift_onnx.passes.prepare.inference_mode import in_inference_mode
from sift_onnx.passes.settings import (
    OF_FAMILY,
    Count,
    Form,
    Globs,
    InputShapes,
    Number,
    exact_number,
    noted_number,
)
from sift_onnx.passes.wide import Wide
from sift_onnx.records.transform import LayerChange, TransformReport, sum_up
from sift_onnx.sparsity.budget import BudgetLayer, allocate

__all__ = ["LowRank"]

FactorStart = Literal["random", "svd"]


def _held_width(value: float | str | Fraction) -> Fraction:
    width = exact_number(value, "width")
    if width < 1:
        raise UsageError(f"width {value} is out of range: it must be at least 1")
    return width


@dataclass(frozen=True)
class LowRank(Pass):
    """Widen a network by ``k_lr`` and replace each layer by two dense factors: ``y = V f(U x)``.

    The paper states the rank as ``D_in D_out k_lr / (D_in + D_out)``, which has ``k_lr ** 2`` times the FLOPs of the
    original. What keeps the FLOPs, and what is used here, is ``D_in D_out / (k_lr (D_in + D_out))``.

    1. :class:`Wide` finds the widths, and the MACs that each layer has once the first and the last are repaid.
    2. Ranks are whole numbers (of features per group, in a grouped convolution); layers get the ranks that their MACs
       pay for, rounded down, and what that leaves goes to expensive layers first. The total is met to within one rank
       of the cheapest layer that is below its share.
    3. Depthwise layers stay as ``Wide`` makes them.

    Requires: a model that has not been transformed. Ensures: the model's inputs and outputs keep names, types and
    shapes; a second run with the same settings changes nothing.

    Attributes:
        width: ``k_lr``, 1 or more.
        activation: between the factors, see :func:`~sift_onnx.passes.layerwise.activations.choose`.
        init: ``random``, or ``svd`` for the truncated singular value decomposition, at a width of 1 only.
        seed: of all values.
        only: globs over initializer names; only matching weights are factorized.
        keep_dense: globs over initializer names; matching weights are not factorized.
        input_shapes: sizes of dynamic axes.
    """

    name: ClassVar[str] = "low-rank"

    is_noted = True

    width: Annotated[Number, Form(_held_width, noted_number), "factor of the features, 1 or more"] = 1
    _: KW_ONLY
    activation: Annotated[Activation, "non-linearity between the factors"] = "auto"
    init: Annotated[FactorStart, OF_FAMILY, "how new weights start"] = "random"
    seed: Annotated[Count, "seed of every random draw"] = 0
    only: Annotated[Globs, "only these weights are factorized, by initializer name"] = ()
    keep_dense: Annotated[Globs, "weights that are not factorized, by initializer name"] = ()
    input_shapes: Annotated[InputShapes, "shape of an input with dynamic axes"] = field(default=None, hash=False)

    def check_settings(self) -> None:
        """Refuse an ``svd`` of weights that are not trained."""
        if self.init == "svd" and self.exact_width != 1:
            raise UsageError("`init='svd'` approximates the trained weights, which are not wider; use a width of 1")

    @property
    def exact_width(self) -> Fraction:
        """``k_lr``."""
        return _held_width(self.width)

    def _factors(self, *, widened: bool) -> _Pairs:
        return _Pairs(0, widened=widened, activation=self.activation, init=self.init, **self._shared())

    def _shared(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("seed", "only", "keep_dense", "input_shapes")}

    @in_inference_mode
    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report is the JSON document of ``sift-onnx transform``."""
        start = time.perf_counter()
        if already_applied(model, self.identity()):
            return self._factors(widened=False).unchanged(model, "transformed before, with these settings", start)
        pairs = self._factors(widened=self.exact_width > 1)
        if self.exact_width == 1:
            result = pairs(model)
            report = convert(result.report, TransformReport)
        else:
            sparsity = 1 - 1 / self.exact_width**2
            wide = Wide(sparsity, **self._shared())(model)
            result = pairs(wide.model)
            report = _merged(convert(wide.report, TransformReport), convert(result.report, TransformReport))
        transformed = result.model
        transformed.metadata.pop(HISTORY_KEY, None)
        if HISTORY_KEY in model.metadata:
            transformed.metadata[HISTORY_KEY] = model.metadata[HISTORY_KEY]
        record(transformed, self.identity(), pairs.made)
        report = replace(report, pass_=self.name, sparsity=0.0, seconds=time.perf_counter() - start)
        return PassResult(transformed, True, report.to_dict())


@dataclass(frozen=True)
class _Pairs(LayerwisePass):
    """Dense factors in place of layers, at the MACs of what they replace.

    Attributes:
        widened: whether Wide has masked the layers that are meant; else all that are chosen are.
        made: names of the weights that took the place of others.
        ranks: by layer.
    """

    name: ClassVar[str] = "low-rank"

    _: KW_ONLY
    init: Annotated[FactorStart, OF_FAMILY, "how new weights start"] = "random"
    widened: bool = False
    made: list[str] = field(default_factory=list, init=False, compare=False)
    ranks: dict[str, int] = field(default_factory=dict, init=False, compare=False)

    def is_identity(self) -> bool:
        return False

    def excluded(self, model: Model, analysis: AxisAnalysis) -> dict[str, str]:
        if not self.widened:
            return super().excluded(model, analysis)
        masked = (name for name, layer in analysis.layers.items() if is_masked(layer.constant))
        return dict.fromkeys(analysis.layers.keys() - set(masked), "not widened, or dense")

    def fits(self, layer: LinearLayer) -> str:
        rank_cost = _rank_cost(layer)
        weights = active_weights(layer.weight_layer)
        return "" if weights >= rank_cost else f"its {weights:,} weights do not pay for a rank of {layer.groups}"

    def begin(self, analysis: AxisAnalysis, layers: Mapping[str, LinearLayer]) -> None:
        budgets: list[BudgetLayer] = []
        for name, layer in layers.items():
            positions = positions_of(layer.weight_layer, analysis.system.original)
            cost = _rank_cost(layer)
            most = cost * (1 + layer.size // cost)
            macs = active_weights(layer.weight_layer) * positions
            budgets.append(BudgetLayer(name, macs, positions, most, most, cost, sum(layer.shape)))
        nnz = allocate(budgets, sum(budget.macs for budget in budgets))
        self.ranks.update({name: nnz[name] // _rank_cost(layer) * layer.groups for name, layer in layers.items()})

    def replace(self, builder: ReplacementBuilder) -> Replacement:
        layer = builder.layer
        rank = self.ranks[layer.name]
        error: float | None = None
        if self.init == "svd":
            matrix = layer.matrix()
            factors = low_rank_factors(matrix, rank, layer.groups)
            error = relative_error(grouped_product(factors[1], factors[0], layer.groups), matrix)
            u = builder.given("U", layer.from_matrix(factors[0], layer.shape_for(rank)))
            v = builder.given("V", layer.from_matrix(factors[1], layer.projection_shape(rank)))
        else:
            # A ReLU halves the second moment of what it is given.
            u = builder.dense("U", layer.shape_for(rank), 1.0 if builder.non_linearity is None else 2.0)
            v = builder.dense("V", layer.projection_shape(rank), builder.energy(rectified=False))
        self.made.extend([u.name, v.name])
        return Replacement((Part("U", u), Part("V", v)), 0, error)

    def connect(self, builder: ReplacementBuilder, occurrence: Occurrence, parts: Sequence[Part]) -> gs.Variable:
        u, v = (part.constant for part in parts)
        return builder.factors(occurrence, u, v)


def _rank_cost(layer: LinearLayer) -> int:
    """Weights of one rank in each group."""
    return layer.groups * (layer.features_in + layer.features_out)


def _merged(wide: TransformReport, pairs: TransformReport) -> TransformReport:
    """The report of widening, with what the layers became afterwards."""
    factorized = {layer.name: layer for layer in pairs.layers if layer.parts is not None}
    layers: list[LayerChange] = []
    for layer in wide.layers:
        after = factorized.get(layer.name, layer)
        layers.append(
            replace(
                layer,
                macs_after=after.macs_after,
                nnz=after.nnz,
                parts=after.parts,
                search_space=after.search_space,
                sparsity=after.sparsity,
                status=after.status,
            )
        )
    totals = wide.totals
    attention = (totals.attention_macs_before or 0, totals.attention_macs_after or 0)
    return replace(wide, layers=tuple(layers), totals=sum_up(layers, attention))
