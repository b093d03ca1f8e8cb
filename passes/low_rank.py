"""Low rank: the structured counterpart of Sparse Wide (paper, appendix B.3.2)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import onnx_graphsurgeon as gs

from sift_onnx.analysis.cost import positions_of
from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.errors import UsageError
from sift_onnx.graphs.constants import is_masked
from sift_onnx.model import Model
from sift_onnx.passes.base import HISTORY_KEY, Pass, PassResult, already_applied, record, register_pass
from sift_onnx.passes.layerwise.activations import Activation
from sift_onnx.passes.layerwise.base import LayerwisePass
from sift_onnx.passes.layerwise.factorization import grouped_product, low_rank_factors, relative_error
from sift_onnx.passes.layerwise.linear_layers import LinearLayer, Occurrence
from sift_onnx.passes.layerwise.replacement import Part, Replacement
from sift_onnx.passes.layerwise.replacement_builder import ReplacementBuilder
from sift_onnx.passes.masking import active_weights
from sift_onnx.passes.prepare.inference_mode import in_inference_mode
from sift_onnx.passes.settings import exact_number, noted_number
from sift_onnx.passes.wide import Wide
from sift_onnx.sparsity.budget import BudgetLayer, allocate

__all__ = ["LowRank"]


@register_pass
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
    """

    name: ClassVar[str] = "low-rank"

    def __init__(
        self,
        width: float | str | Fraction = 1,
        *,
        activation: Activation = "auto",
        init: str = "random",
        seed: int = 0,
        only: Sequence[str] = (),
        keep_dense: Sequence[str] = (),
        input_shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Settings of the pass.

        Args:
            width: ``k_lr``, 1 or more.
            activation: between the factors, see :func:`~sift_onnx.passes.layerwise.activations.choose`.
            init: ``random``, or ``svd`` for the truncated singular value decomposition, at a width of 1 only.
            seed: of all values.
            only: globs over initializer names; only matching weights are factorized.
            keep_dense: globs over initializer names; matching weights are not factorized.
            input_shapes: sizes of dynamic axes.

        Raises:
            UsageError: a setting is out of its range.
        """
        self.width = exact_number(width, "width")
        if self.width < 1:
            raise UsageError(f"width {width} is out of range: it must be at least 1")
        if init == "svd" and self.width != 1:
            raise UsageError("--init svd approximates the trained weights, which are not wider; use a width of 1")
        self._options: dict[str, Any] = {"seed": seed, "only": only, "keep_dense": keep_dense}
        self.input_shapes = {k: tuple(v) for k, v in (input_shapes or {}).items()}
        self.activation = activation
        self.init = init
        self._factors(widened=False)

    def _factors(self, *, widened: bool) -> _Pairs:
        return _Pairs(
            widened, activation=self.activation, init=self.init, input_shapes=self.input_shapes, **self._options
        )

    def settings(self) -> dict[str, Any]:
        """What determines the result, as it is noted in the model."""
        shared = {key: value for key, value in self._factors(widened=False).settings().items() if key != "sparsity"}
        return shared | {"pass": self.name, "width": noted_number(self.width)}

    @in_inference_mode
    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report is the JSON document of ``sift-onnx transform``."""
        start = time.perf_counter()
        if already_applied(model, self.settings()):
            return self._factors(widened=False).unchanged(model, "transformed before, with these settings", start)
        pairs = self._factors(widened=self.width > 1)
        if self.width == 1:
            result = pairs(model)
            report = {**result.report, "width_factor": 1.0}
        else:
            sparsity = 1 - 1 / self.width**2
            wide = Wide(sparsity, **self._options, input_shapes=self.input_shapes)(model)
            result = pairs(wide.model)
            report = _merged(wide.report, result.report)
        transformed = result.model
        transformed.metadata.pop(HISTORY_KEY, None)
        if HISTORY_KEY in model.metadata:
            transformed.metadata[HISTORY_KEY] = model.metadata[HISTORY_KEY]
        record(transformed, self.settings(), pairs.made)
        seconds = time.perf_counter() - start
        return PassResult(transformed, True, {**report, "pass": self.name, "sparsity": 0.0, "seconds": seconds})


class _Pairs(LayerwisePass):
    """Dense factors in place of layers, at the MACs of what they replace."""

    name: ClassVar[str] = "low-rank"
    inits: ClassVar[tuple[str, ...]] = ("random", "svd")

    def __init__(self, widened: bool, **options: Any) -> None:
        """Of the layers that Wide has masked, if the model is ``widened``; else of all that are chosen."""
        super().__init__(0, **options)
        self.widened = widened
        self.made: list[str] = []
        self._ranks: dict[str, int] = {}

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
        self._ranks = {name: nnz[name] // _rank_cost(layer) * layer.groups for name, layer in layers.items()}

    def replace(self, builder: ReplacementBuilder) -> Replacement:
        layer = builder.layer
        rank = self._ranks[layer.name]
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
        self.made += [u.name, v.name]
        return Replacement((Part("U", u), Part("V", v)), 0, error)

    def connect(self, builder: ReplacementBuilder, occurrence: Occurrence, parts: Sequence[Part]) -> gs.Variable:
        u, v = (part.constant for part in parts)
        hidden = builder.product(occurrence, u, "U")
        if builder.non_linearity is not None:
            hidden = builder.activate(occurrence, hidden, self._ranks[builder.layer.name], "U", like="nothing")
        return builder.finish(occurrence, builder.projection(occurrence, hidden, v, "V"))


def _rank_cost(layer: LinearLayer) -> int:
    """Weights of one rank in each group."""
    return layer.groups * (layer.features_in + layer.features_out)


def _merged(wide: Mapping[str, Any], pairs: Mapping[str, Any]) -> dict[str, Any]:
    """The report of widening, with what the layers became afterwards."""
    became = {layer["name"]: layer for layer in pairs["layers"]}
    layers = []
    for before in wide["layers"]:
        after = became.get(before["name"])
        if after is not None and "parts" in after:
            changed = ("macs_after", "nnz", "parts", "search_space")
            before = {**before, **{key: after[key] for key in changed}, "sparsity": 0.0, "status": "dense"}
        layers.append(before)
    macs = sum(layer["macs_after"] for layer in layers)
    totals = {
        **wide["totals"],
        "weight_macs_after": macs,
        "weight_macs_ratio": macs / wide["totals"]["weight_macs_before"],
        "nnz_after": sum(layer["nnz"] for layer in layers),
        "search_space": sum(layer.get("search_space", 0) for layer in layers if "parts" in layer),
    }
    return {**wide, "layers": layers, "totals": totals}
