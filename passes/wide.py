"""Sparse Wide: more features in every layer, and fewer active weights in each (paper, section 2.4)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sift_onnx.analysis.cost import as_counted
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.errors import PreconditionError
from sift_onnx.graphs.constants import MaskedConstant
from sift_onnx.model import Model
from sift_onnx.passes.base import PassResult, already_applied, made_by_transforms, prepared, record
from sift_onnx.passes.batch_norm.folded_batch_norms import folding_warnings
from sift_onnx.passes.prepare.inference_mode import in_inference_mode
from sift_onnx.passes.prepare.inline_functions import InlineFunctions
from sift_onnx.passes.prepare.lift_constants import LiftConstants
from sift_onnx.passes.prepare.restore_views import RestoreViews
from sift_onnx.passes.prepare.store_computed_parameters import StoreComputedParameters
from sift_onnx.passes.prepare.unshare_initializers import UnshareInitializers
from sift_onnx.passes.shape_check import check_shapes
from sift_onnx.passes.widening.drawing import Drawing
from sift_onnx.passes.widening.fused_normalizations import spell_fused_normalizations
from sift_onnx.passes.widening.plan import WidePlan, plan_widening, unchanged
from sift_onnx.passes.widening.report import describe
from sift_onnx.passes.widening.resizing import apply_sizes
from sift_onnx.passes.widening.settings import Budget, WideSettings

__all__ = ["Budget", "Wide", "WidePlan"]


@dataclass(frozen=True)
class Wide(WideSettings):
    """Widen a network by ``k = sqrt(1 / (1 - s))`` and mask its weights so that the multiply-accumulates stay.

    1. Nodes in training mode are put into inference mode (:class:`InferenceMode`), local functions are inlined
       (:class:`InlineFunctions`), parameters that nodes make (:class:`LiftConstants`) or compute from stored ones
       (:class:`StoreComputedParameters`) become initializers, merged initializers are separated
       (:class:`UnshareInitializers`), look-ups of whole tensors become reshapes (:class:`RestoreViews`).
    2. The axis analysis finds which axes must grow together; each free width becomes ``round(k * width / L) * L``, with
       ``L`` the step that its divisions into heads and groups demand. A pattern makes ``L`` a multiple of its groups
       or blocks where these divisions allow, and N:M rounds up, so that the groups have room for the budget.
    3. The first and the last layers stay dense, and what they now cost more is saved in the others
       (``budget="model"``). ``budget="layer"`` gives each sparse layer as many non-zeros as the original had weights;
       ``budget="total"`` saves the growth of activation products too. Layers share what is left in proportion to
       their original MACs, or to the law of Erdős-Rényi kernels (``distribution="erk"``), in which case a layer that
       it would leave no zero stays dense.
    4. Every tensor of a new size is drawn again, which the report says of a tensor that had a mask
       (``masks_dropped``): masks random with exact counts, under the pattern, values so that each
       output feature keeps its variance. Blocks stay whole: the budget is missed by less than one block of a layer,
       or, with ``budget="layer"``, of each. With ``init="embed"``, points 3 and 4 do not apply: every tensor keeps what
       it held, at the indices of the original's features, and all weights that are added are pruned
       (:mod:`~sift_onnx.passes.widening.embedding`).
    5. Every predicted shape is compared with shape inference on the result.

    Requires: a model that has not been widened with other settings, unless with ``init="embed"``, which grows what has
    grown before (and, for the same growth once more, with another ``seed``). Ensures: the model's inputs and outputs
    keep names, types and shapes; applying it again changes nothing; ``sparsity=0`` changes nothing.
    """

    name: ClassVar[str] = "wide"

    @in_inference_mode
    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report is the JSON document of ``sift-onnx transform``."""
        start = time.perf_counter()
        embeds = self.init == "embed"
        # What is embedded keeps what it was, and may be embedded once more.
        done = bool(self.share) and already_applied(model, self.identity(), repeatable=embeds)
        if not done and self.share and not embeds and made_by_transforms(model):
            raise PreconditionError(
                "the model holds layers that another transform made, which widening would undo; "
                "widen the original first, and apply the others to the result"
            )
        if done or not self.share:
            analysis = analyze(as_counted(model), self.input_shapes)
            reason = "transformed before, with these settings" if done else "a sparsity of 0 changes nothing"
            plan = unchanged(analysis, reason)
            return PassResult(model, False, describe(self, plan, start).to_dict())
        copy = prepared(
            model,
            InlineFunctions(),
            LiftConstants(),
            StoreComputedParameters(),
            UnshareInitializers(),
            RestoreViews(),
        )
        if embeds:
            spell_fused_normalizations(copy.graph)
        warnings = folding_warnings(copy, self.init)
        plan = self.plan(copy)
        masked = {name: list(constant.shape) for name, constant in copy.masked().items()}
        biases, centred = list[str](), list[str]()
        if plan.found is not None:
            # Imported here, with the rules of feature maps, which no other start needs.
            from sift_onnx.passes.widening.embedding import Embedding

            embedding = Embedding(copy, plan.analysis, plan.found, self.seed)
            apply_sizes(copy, plan.analysis, plan.solution, embedding.redraw)
            biases, centred = embedding.finish(), embedding.centred_by_nodes
        else:
            drawing = Drawing(plan.analysis, plan.nnz, self.seed, self.masking.pattern)
            apply_sizes(copy, plan.analysis, plan.solution, drawing.redraw)
        check_shapes(copy, plan.analysis, plan.solution)
        record(copy, self.identity())
        dropped = [] if embeds else _replaced(masked, copy.masked())
        report = describe(self, plan, start, biases=biases, centred=centred, dropped=dropped, warnings=warnings)
        return PassResult(copy, True, report.to_dict())

    def plan(self, model: Model) -> WidePlan:
        """Decide sizes and budgets for ``model`` without changing it.

        Raises:
            UnsupportedError: nothing can be widened, or with ``strict`` an operator is unknown.
            BudgetError: the dense layers alone cost more than the original, or a mask has no room for its share.
            UsageError: a glob matches nothing, or an input shape is missing.
        """
        return plan_widening(self, model)


def _replaced(before: Mapping[str, Sequence[int]], after: Mapping[str, MaskedConstant]) -> list[str]:
    """The weights whose masks are gone, or others: what grows is drawn again. ``before`` has shapes by name."""
    return [name for name, shape in before.items() if name not in after or list(after[name].shape) != shape]
