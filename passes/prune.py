"""Prune: masks on a model as it is, by magnitude or at random."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from sift_onnx.analysis.cost import positions_of
from sift_onnx.analysis.findings import AxisAnalysis, WeightLayer
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.errors import BudgetError, UnsupportedError
from sift_onnx.graphs.constants import array_of, replace_values, sparse_weight_of
from sift_onnx.model import Model
from sift_onnx.passes.base import PassResult, prepared, record
from sift_onnx.passes.layer_report import quantized_changes
from sift_onnx.passes.mask_report import describe_masks
from sift_onnx.passes.masking import Masking, active_weights, matrix_of
from sift_onnx.passes.prepare.inference_mode import in_inference_mode
from sift_onnx.passes.prepare.inline_functions import InlineFunctions
from sift_onnx.passes.prepare.lift_constants import LiftConstants
from sift_onnx.passes.prepare.store_computed_parameters import StoreComputedParameters
from sift_onnx.passes.selection import left_out_too, no_layers
from sift_onnx.passes.settings import UNLESS_DEFAULT
from sift_onnx.passes.sparsifying import SparsifyingPass
from sift_onnx.sparsity.budget import BudgetLayer, Distribution, allocate
from sift_onnx.weights.sparse import SparseWeight, generator

__all__ = ["Method", "Prune"]

Method = Literal["magnitude", "random"]


# Layers of no more weights stay dense where they would lose all; of others, that is an error of the sparsity.
_FEW_WEIGHTS = 64


@dataclass(frozen=True)
class Prune(SparsifyingPass):
    """Mask a share ``s`` of the weights of each layer; shapes, and the weights that stay, are as they were.

    1. Local functions are inlined, parameters that nodes make or compute from stored ones become initializers.
    2. First and last layers, embeddings, what the globs say, and layers of a few weights that would lose all of them
       stay dense; ``s`` is the sparsity of the others.
       ``distribution="uniform"`` gives it to each of them, to within one weight or block; with ``"erk"`` they have it
       on average, weighted by their multiply-accumulates.
    3. ``method="magnitude"`` keeps the largest weights of each layer, of equal ones those that come first;
       ``"random"`` draws them.

    A model that has masks gets sparser ones, nested in the old: an active weight may become inactive, never the other
    way round. A layer that is as sparse as asked for, under the pattern, stays as it is, and one whose old mask leaves
    less room under the pattern than there should be non-zeros gets what there is room for; its reason says so.

    Ensures: exact non-zero counts; applying it again changes nothing; ``sparsity=0`` changes nothing.

    Attributes:
        method: which weights stay: those of the largest ``magnitude``, or ``random`` ones.
        distribution: how layers share the non-zeros, see :func:`~sift_onnx.sparsity.budget.shares`.
    """

    name: ClassVar[str] = "prune"

    _: KW_ONLY
    method: Annotated[Method, "which weights stay: the largest of each layer, or random ones"] = "magnitude"
    distribution: Annotated[Distribution, UNLESS_DEFAULT, "how layers share the non-zeros"] = "uniform"

    @property
    def masking(self) -> Masking:
        """What masks look like, and how layers share the non-zeros."""
        return Masking.of(self.pattern, self.distribution)

    @in_inference_mode
    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report is the JSON document of ``sift-onnx prune``.

        Raises:
            UnsupportedError: the model has no layer to prune.
            BudgetError: a layer would be left without a non-zero.
            UsageError: a glob matches nothing, or an input shape is missing.
        """
        start = time.perf_counter()
        copy = prepared(model, InlineFunctions(), LiftConstants(), StoreComputedParameters())
        analysis = analyze(copy, self.input_shapes)
        before = {name: active_weights(layer) for name, layer in analysis.layers.items()}
        statuses, nnz = self._plan(analysis, before)
        for name, count in nnz.items():
            self._mask(analysis, analysis.layers[name], count)
        if nnz:
            record(copy, self.identity())
        report = replace(
            describe_masks(analysis, before, before | nnz, statuses, start, quantized_changes(analysis)),
            pass_=self.name,
            sparsity=float(self.share),
            method=self.method,
            pattern=str(self.masking.pattern),
            distribution=self.masking.distribution,
        )
        return PassResult(copy if nnz else model, bool(nnz), report.to_dict())

    def _plan(
        self, analysis: AxisAnalysis, before: Mapping[str, int]
    ) -> tuple[dict[str, tuple[str, str]], dict[str, int]]:
        """What becomes of each layer and why, and the non-zeros of those that change."""
        dense = self.selection.dense_layers(analysis)
        statuses: dict[str, tuple[str, str]] = {}
        layers: list[BudgetLayer] = []
        for name, layer in analysis.layers.items():
            misfit = self.masking.pattern.misfit(matrix_of(layer, analysis.system.original))
            reason = dense.get(name, misfit)
            if not self.share:
                reason = "a sparsity of 0 changes nothing"
            if reason is None:
                budgeted = self._budget_layer(analysis, layer)
                reason = self._too_small(budgeted)
                if reason is None:
                    layers.append(budgeted)
            statuses[name] = ("unchanged", reason or "")
        if not layers and self.share:
            named = "; ".join(f"{name!r}: {reason}" for name, (_, reason) in list(statuses.items())[:4])
            found = f"{named}{left_out_too(analysis)}" if named else no_layers(analysis)
            raise UnsupportedError(f"nothing to prune: {found}")
        nnz: dict[str, int] = {}
        for name, (count, reason) in self._allocate(layers).items():
            if count == before[name]:
                statuses[name] = ("unchanged", "it is as sparse already")
            else:
                statuses[name], nnz[name] = ("sparse", reason), count
        return statuses, nnz

    def _too_small(self, layer: BudgetLayer) -> str | None:
        """Why a layer of a few weights stays dense, such as one that makes a table of positions; None for others."""
        if layer.weights > _FEW_WEIGHTS or (1 - self.share) * layer.weights >= layer.unit:
            return None
        return f"too small: a sparsity of {float(self.share):g} leaves none of its {layer.weights} weights"

    def _budget_layer(self, analysis: AxisAnalysis, layer: WeightLayer) -> BudgetLayer:
        evaluate, known = analysis.system.original, sparse_weight_of(layer.constant)
        matrix = matrix_of(layer, evaluate)
        room = None if known is None else self.masking.pattern.capacity(matrix, known.indices)
        return self.masking.budget_layer(layer, matrix.size * positions_of(layer, evaluate), evaluate, room)

    def _allocate(self, layers: Sequence[BudgetLayer]) -> dict[str, tuple[int, str]]:
        """Non-zeros of each layer; and why there are fewer than it should have."""
        kept = 1 - self.share
        if self.masking.distribution == "uniform":
            # Less than a unit above the share is where this pass leaves a layer; there it has nothing more to do.
            full = [layer for layer in layers if layer.limit - kept * layer.weights < layer.unit]
            rest = [layer for layer in layers if layer not in full]
        else:
            room = sum(layer.limit * layer.positions for layer in layers)
            is_full = room <= kept * sum(layer.macs for layer in layers)
            full, rest = (list(layers), []) if is_full else ([], list(layers))
        found: dict[str, tuple[int, str]] = {}
        for layer in full:
            short = layer.limit <= kept * layer.weights - layer.unit
            found[layer.name] = layer.limit, "its old mask leaves room for no more" if short else ""
        try:
            nnz = allocate(rest, int(kept * sum(layer.macs for layer in rest)), self.masking.distribution)
        except BudgetError as error:
            raise BudgetError(
                f"at a sparsity of {float(self.share):g}, {error}; use a lower one, or keep it dense (`keep_dense`)"
            ) from error
        found.update({name: (count, "") for name, count in nnz.items()})
        return found

    def _mask(self, analysis: AxisAnalysis, layer: WeightLayer, count: int) -> None:
        """Put a mask of ``count`` non-zeros on a layer, within the one that it has."""
        matrix, known = matrix_of(layer, analysis.system.original), sparse_weight_of(layer.constant)
        dense = array_of(layer.constant)
        allowed = None if known is None else known.indices
        pattern = self.masking.pattern
        if self.method == "magnitude":
            positions = pattern.choose(matrix, count, np.abs(dense), allowed)
        else:
            rng = generator(self.seed, layer.name, "prune")
            if allowed is None:
                positions = pattern.draw(matrix, count, rng)
            else:
                positions = pattern.choose(matrix, count, rng.random(matrix.shape, dtype=np.float32), allowed)
        values: npt.NDArray[Any] = np.ascontiguousarray(dense).reshape(-1)[positions]
        replace_values(layer.constant, SparseWeight(matrix.shape, positions, values))
