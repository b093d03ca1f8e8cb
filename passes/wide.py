"""Sparse Wide: more features in every layer, and as many weights left out (paper, section 2.4)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from sift_onnx.analysis.axis_system import AxisSystem, Solution
from sift_onnx.analysis.cost import positions_of, product_macs
from sift_onnx.analysis.findings import AttentionGrowth, AxisAnalysis, Cause, WeightLayer
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.errors import BudgetError, PreconditionError, UnsupportedError, UsageError
from sift_onnx.graphs.constants import MaskedConstant, nnz_of
from sift_onnx.model import Model
from sift_onnx.passes.base import Pass, PassResult, already_applied, made_by_transforms, record, register_pass
from sift_onnx.passes.batch_norm.folded_batch_norms import folding_warnings
from sift_onnx.passes.masking import Growth, Masking, active_weights, matrix_of, require_room
from sift_onnx.passes.prepare.inference_mode import in_inference_mode
from sift_onnx.passes.prepare.inline_functions import InlineFunctions
from sift_onnx.passes.prepare.lift_constants import LiftConstants
from sift_onnx.passes.prepare.restore_views import RestoreViews
from sift_onnx.passes.prepare.unshare_initializers import UnshareInitializers
from sift_onnx.passes.selection import Selection, no_layers
from sift_onnx.passes.settings import exact_sparsity, noted_number, noted_shapes
from sift_onnx.passes.shape_check import check_shapes
from sift_onnx.passes.widening.drawing import Drawing
from sift_onnx.passes.widening.embedding import Embedding
from sift_onnx.passes.widening.least_sparsity import least_sparsity
from sift_onnx.passes.widening.report import describe
from sift_onnx.passes.widening.resizing import apply_sizes
from sift_onnx.sparsity.budget import Distribution, allocate
from sift_onnx.sparsity.patterns.pattern import Pattern

__all__ = ["Budget", "Wide", "WidePlan"]

Budget = Literal["model", "layer", "total"]
# Why a layer does not grow whose sizes could.
_ROUNDED = "its sizes round to themselves"
# Beyond any width; the search for a width goes through as many.
_COARSEST = 1 << 16
BUDGETS = ("model", "layer", "total")
Init = Literal["random", "embed"]


@dataclass(frozen=True)
class WidePlan:
    """What is going to be done to a model.

    Attributes:
        analysis: of the model.
        solution: the new sizes.
        statuses: per weight layer ``sparse``, ``dense`` or ``unchanged``, and why.
        nnz: non-zeros of the sparse layers.
        before: MACs of each layer in the original.
        after: MACs of each layer after the transform.
    """

    analysis: AxisAnalysis
    solution: Solution
    statuses: Mapping[str, tuple[str, str]]
    nnz: Mapping[str, int]
    before: Mapping[str, int]
    after: Mapping[str, int]

    @property
    def changes(self) -> bool:
        """Whether any size or mask changes."""
        return bool(self.nnz) or any(status != "unchanged" for status, _ in self.statuses.values())


@register_pass
class Wide(Pass):
    """Widen a network by ``k = sqrt(1 / (1 - s))`` and mask its weights so that the multiply-accumulates stay.

    1. Nodes in training mode are put into inference mode (:class:`InferenceMode`), local functions are inlined
       (:class:`InlineFunctions`), parameters that nodes make become initializers (:class:`LiftConstants`), merged
       initializers are separated (:class:`UnshareInitializers`), look-ups of whole tensors become reshapes
       (:class:`RestoreViews`).
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
       it held, at the places of the original's features, and all weights that are added are pruned
       (:mod:`~sift_onnx.passes.widening.embedding`).
    5. Every predicted shape is compared with shape inference on the result.

    Requires: a model that has not been widened with other settings. Ensures: the model's inputs and outputs keep names,
    types and shapes; applying it again changes nothing; ``sparsity=0`` changes nothing.
    """

    name: ClassVar[str] = "wide"

    def __init__(
        self,
        sparsity: float | str | Fraction,
        *,
        budget: Budget = "model",
        seed: int = 0,
        round_to: int = 1,
        only: Sequence[str] = (),
        keep_dense: Sequence[str] = (),
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        attention: AttentionGrowth = "head-dim",
        resize_output: Sequence[str] = (),
        strict: bool = False,
        pattern: str | Pattern = "unstructured",
        distribution: Distribution = "uniform",
        init: Init = "random",
    ) -> None:
        """Settings of the pass.

        Args:
            sparsity: share ``s`` of weights to leave out, ``0 <= s < 1``; decimal, so that 0.9 is nine tenths.
            budget: what must cost the same as before: ``model``, each ``layer``, or ``total`` with activation products.
            seed: of masks and values.
            round_to: prefer widths that are multiples of this.
            only: globs over initializer names; only matching weights become sparse.
            keep_dense: globs over initializer names; matching weights stay dense.
            input_shapes: sizes of dynamic axes.
            attention: what grows in attention: ``head-dim``, the number of ``heads``, or neither (``keep``).
            resize_output: globs over graph outputs that may change their size (hidden states, say).
            strict: refuse models with an operator that no rule covers.
            pattern: which weights may be active together: ``unstructured``, ``2:4``, ``4:8-transposable``,
                ``block:4x4``; see :class:`~sift_onnx.patterns.Pattern`. A layer that blocks do not divide stays dense.
            distribution: how layers share the budget, see :func:`~sift_onnx.sparsity.budget.shares`.
            init: how the wide model starts: from ``random`` draws, or with the original in it (``embed``): it computes
                what the original computes, with exactly the original's non-zeros in every layer, the first and the
                last included, so that ``budget`` says nothing. See :mod:`sift_onnx.passes.widening.embedding`.

        Raises:
            UsageError: a setting is out of its range, or contradicts another one.
        """
        self.sparsity = exact_sparsity(sparsity)
        if budget not in BUDGETS:
            raise UsageError(f"budget {budget!r} is unknown; choose one of {', '.join(BUDGETS)}")
        if attention not in get_args(AttentionGrowth):
            raise UsageError(
                f"attention {attention!r} is unknown; choose one of {', '.join(get_args(AttentionGrowth))}"
            )
        if init not in get_args(Init):
            raise UsageError(f"init {init!r} is unknown; choose one of {', '.join(get_args(Init))}")
        if init == "embed" and keep_dense:
            raise UsageError(
                "--init embed prunes all that it adds, so nothing that grows stays dense; drop --keep-dense"
            )
        if init == "embed" and resize_output:
            raise UsageError("--init embed keeps what the outputs are, sizes included; drop --resize-output")
        if not isinstance(round_to, (int, np.integer)) or not 1 <= round_to <= _COARSEST:
            raise UsageError(f"widths cannot be rounded to multiples of {round_to}; use 1 to {_COARSEST}")
        self.masking = Masking.of(pattern, distribution)
        self.masking.check_sparsity(self.sparsity)
        if init == "embed" and self.masking != Masking():
            raise UsageError(
                "--init embed keeps the original's weights where they are; drop --pattern and --distribution"
            )
        if budget == "layer" and distribution != "uniform":
            raise UsageError(
                f"--budget layer gives each layer its own budget, --distribution {distribution} shares one among all; "
                "drop one of them"
            )
        self.budget = budget
        self.seed = seed
        self.round_to = round_to
        self.selection = Selection(tuple(only), tuple(keep_dense))
        self.input_shapes = {k: tuple(v) for k, v in (input_shapes or {}).items()}
        self.attention = attention
        self.resize_output = tuple(resize_output)
        self.strict = strict
        self.init = init

    @property
    def factor_squared(self) -> Fraction:
        """``k ** 2 = 1 / (1 - s)``, exactly."""
        return 1 / (1 - self.sparsity)

    def settings(self) -> dict[str, Any]:
        """What determines the result, as it is noted in the model."""
        return {
            "pass": self.name,
            "sparsity": noted_number(self.sparsity),
            "budget": self.budget,
            "seed": self.seed,
            "round_to": self.round_to,
            "attention": self.attention,
            "resize_output": list(self.resize_output),
            "only": list(self.selection.only),
            "keep_dense": list(self.selection.keep_dense),
            **self.masking.settings(),
            **({"init": self.init} if self.init != "random" else {}),
            **noted_shapes(self.input_shapes),
        }

    @in_inference_mode
    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report is the JSON document of ``sift-onnx transform``."""
        start = time.perf_counter()
        done = bool(self.sparsity) and already_applied(model, self.settings())
        if not done and self.sparsity and made_by_transforms(model):
            raise PreconditionError(
                "the model holds layers that another transform made, which widening would undo; "
                "widen the original first, and apply the others to the result"
            )
        if done or not self.sparsity:
            analysis = analyze(model, self.input_shapes)
            reason = "transformed before, with these settings" if done else "a sparsity of 0 changes nothing"
            plan = _unchanged(analysis, reason)
            return PassResult(model, False, describe(self, plan, model, time.perf_counter() - start))
        copy = model
        for prepare in (InlineFunctions(), LiftConstants(), UnshareInitializers(), RestoreViews()):
            copy = prepare(copy).model
        warnings = folding_warnings(copy, self.init)
        if copy is model:
            copy = model.copy()
        plan = self.plan(copy)
        masked = {name: list(constant.shape) for name, constant in copy.masked().items()}
        biases: list[str] = []
        if self.init == "embed":
            embedding = Embedding(copy, plan.analysis, plan.solution, self.seed)
            apply_sizes(copy, plan.analysis, plan.solution, embedding.redraw)
            biases = embedding.add_biases()
        else:
            drawing = Drawing(plan.analysis, dict(plan.nnz), self.seed, self.masking.pattern)
            apply_sizes(copy, plan.analysis, plan.solution, drawing.redraw)
        check_shapes(copy, plan.analysis, plan.solution)
        record(copy, self.settings())
        dropped = [] if self.init == "embed" else _replaced(masked, copy.masked())
        seconds = time.perf_counter() - start
        report = describe(self, plan, copy, seconds, biases=biases, dropped=dropped, warnings=warnings)
        return PassResult(copy, True, report)

    def plan(self, model: Model) -> WidePlan:
        """Decide sizes and budgets for ``model`` without changing it.

        Raises:
            UnsupportedError: nothing can be widened, or with ``strict`` an operator is unknown.
            BudgetError: the dense layers alone cost more than the original, or a mask has no room for its share.
            UsageError: a glob matches nothing, or an input shape is missing.
        """
        outputs = [output.name for output in model.graph.outputs]
        for glob in self.resize_output:
            if not any(fnmatchcase(name, glob) for name in outputs):
                raise UsageError(f"--resize-output {glob!r} matches no output; the outputs are {', '.join(outputs)}")
        analysis = analyze(model, self.input_shapes, attention=self.attention, resize_outputs=self.resize_output)
        if self.strict and analysis.unknown:
            node = analysis.unknown[0]
            op = f"{node.domain}::{node.op}" if node.domain else node.op
            raise UnsupportedError(
                f"no rule covers {op} (node {node.name!r}); register one with register_axis_rule, or drop --strict"
            )
        dense = self.selection.dense_layers(analysis)
        system = analysis.system
        candidates = [layer for name, layer in analysis.layers.items() if name not in dense]
        untried = system.copy()
        solution = self._solve(system, candidates, self.factor_squared)
        grown = {
            n for n, layer in analysis.layers.items() if _weights(layer, solution.value) > layer_weights(analysis, n)
        }
        statuses: dict[str, tuple[str, str]] = {}
        for name, layer in analysis.layers.items():
            if name in dense:
                statuses[name] = ("dense" if name in grown else "unchanged", dense[name])
            elif name in grown:
                misfit = self.masking.pattern.misfit(matrix_of(layer, solution.value))
                statuses[name] = ("sparse", "") if misfit is None else ("dense", misfit)
            else:
                statuses[name] = ("unchanged", _why(analysis, layer))
        self._require_something_to_widen(analysis, statuses, candidates, untried)
        if self.init == "embed":
            return _embedded(analysis, solution, statuses)
        before = {
            n: layer_weights(analysis, n) * positions_of(layer, system.original) for n, layer in analysis.layers.items()
        }
        nnz = self._budget(analysis, solution, statuses, before)
        if self.masking.distribution == "erk":
            for name in [n for n in nnz if nnz[n] == _weights(analysis.layers[n], solution.value)]:
                statuses[name] = ("dense", "saturated: --distribution erk leaves it no zero")
                del nnz[name]
        after = {
            name: nnz.get(name, _weights(layer, solution.value)) * positions_of(layer, solution.value)
            for name, layer in analysis.layers.items()
        }
        return WidePlan(analysis, solution, statuses, nnz, before, after)

    def _budget(
        self,
        analysis: AxisAnalysis,
        solution: Solution,
        statuses: Mapping[str, tuple[str, str]],
        before: Mapping[str, int],
    ) -> dict[str, int]:
        sparse = [
            self.masking.budget_layer(layer, before[name], solution.value)
            for name, layer in analysis.layers.items()
            if statuses[name][0] == "sparse"
        ]
        growth = {layer.name: _growth(analysis, layer.name, solution) for layer in sparse}
        if self.budget == "layer":
            for layer in sparse:
                require_room([layer], layer.macs, self.masking, self.sparsity, growth)
            return {layer.name: allocate([layer], layer.macs)[layer.name] for layer in sparse}
        dense = {
            name: _weights(layer, solution.value) * positions_of(layer, solution.value)
            for name, layer in analysis.layers.items()
            if statuses[name][0] != "sparse"
        }
        target = sum(before.values()) - sum(dense.values())
        if self.budget == "total":
            system = analysis.system
            target -= product_macs(analysis, solution.value) - product_macs(analysis, system.original)
        require_room(sparse, target, self.masking, self.sparsity, growth)
        try:
            return allocate(sparse, target, self.masking.distribution)
        except BudgetError as error:
            grown = [name for name in dense if dense[name] > before[name]]
            costly = sorted(grown, key=lambda name: before[name] - dense[name])[:3]
            named = ", ".join(f"{name!r} ({statuses[name][1]}) {dense[name] - before[name]:+,} MACs" for name in costly)
            raise BudgetError(
                f"{error}: what stays dense costs too much after widening: {named}; of {sum(before.values()):,} MACs "
                f"{max(target, 0):,} are left for the sparse layers. Use --budget layer, which does not repay them, "
                "or a lower sparsity"
            ) from error

    def _solve(
        self, system: AxisSystem[Cause], candidates: Sequence[WeightLayer], factor_squared: Fraction
    ) -> Solution:
        """The sizes at a factor; ``candidates`` are the layers whose axes may grow."""
        return system.solve(
            factor_squared,
            [axis.size for layer in candidates for axis in layer.axes],
            round_to=math.lcm(self.round_to, self.masking.pattern.width_multiple),
            round_up=self.masking.pattern.density < 1,
            shrink_cause=Cause("", "", "widening would make an axis smaller"),
        )

    def _require_something_to_widen(
        self,
        analysis: AxisAnalysis,
        statuses: Mapping[str, tuple[str, str]],
        candidates: Sequence[WeightLayer],
        untried: AxisSystem[Cause],
    ) -> None:
        if any(status == "sparse" for status, _ in statuses.values()):
            return
        if not analysis.layers:
            raise UnsupportedError(f"nothing to widen: {no_layers(analysis)}")
        named = "; ".join(f"{name!r}: {reason}" for name, (_, reason) in list(statuses.items())[:4])
        more = f" and {len(statuses) - 4} more" if len(statuses) > 4 else ""
        if any(reason == _ROUNDED for _, reason in statuses.values()):

            def widens(sparsity: Fraction) -> bool:
                value = self._solve(untried.copy(), candidates, 1 / (1 - sparsity)).value
                grown = [x for x in candidates if _weights(x, value) > _weights(x, analysis.system.original)]
                return any(self.masking.pattern.misfit(matrix_of(layer, value)) is None for layer in grown)

            least = least_sparsity(self.sparsity, widens)
            raise UnsupportedError(
                f"nothing to widen: all widths that are free round to themselves at a sparsity of "
                f"{float(self.sparsity):g}"
                + (f"; from {float(least):g} on a layer grows" if least is not None else f" ({named}{more})")
            )
        raise UnsupportedError(f"nothing to widen: every weight layer is fixed ({named}{more})")


def _replaced(before: Mapping[str, Sequence[int]], after: Mapping[str, MaskedConstant]) -> list[str]:
    """The weights whose masks are gone, or others: what grows is drawn again. ``before`` has shapes by name."""
    return [name for name, shape in before.items() if name not in after or list(after[name].shape) != shape]


def layer_weights(analysis: AxisAnalysis, name: str) -> int:
    """Number of weights of a layer in the original."""
    return _weights(analysis.layers[name], analysis.system.original)


def _weights(layer: WeightLayer, evaluate: Any) -> int:
    return math.prod(evaluate(axis.size) for axis in layer.axes)


def _growth(analysis: AxisAnalysis, name: str, solution: Solution) -> Growth:
    sizes = [axis.size for axis in analysis.layers[name].axes]
    axes = sum(solution.value(size) > analysis.system.original(size) for size in sizes)
    return Growth(layer_weights(analysis, name), axes)


def _why(analysis: AxisAnalysis, layer: WeightLayer) -> str:
    causes = [analysis.system.why_pinned(axis.size) for axis in layer.axes]
    if None in causes:
        return _ROUNDED
    for cause in causes:
        if cause is not None and cause.reason != "kernel":
            return f"{cause.reason} (node {cause.node!r}, {cause.op})"
    return "its sizes are fixed"


def _embedded(analysis: AxisAnalysis, solution: Solution, statuses: Mapping[str, tuple[str, str]]) -> WidePlan:
    """Every layer that was learned keeps the active weights of the original and has no others."""
    active = {name: active_weights(layer) for name, layer in analysis.layers.items()}
    original = analysis.system.original
    macs = {name: active[name] * positions_of(layer, original) for name, layer in analysis.layers.items()}
    grown = [name for name, (status, _) in statuses.items() if status != "unchanged"]
    # A fixed kernel that all channels share is applied to the added ones, too.
    sparse = [name for name in grown if name not in analysis.fixed]
    full = {
        name: _weights(analysis.layers[name], solution.value) * positions_of(analysis.layers[name], original)
        for name in grown
        if name in analysis.fixed
    }
    all_sparse = {**statuses, **{name: ("sparse", "") for name in sparse}}
    return WidePlan(analysis, solution, all_sparse, {name: active[name] for name in sparse}, macs, macs | full)


def _unchanged(analysis: AxisAnalysis, reason: str) -> WidePlan:
    original = analysis.system.original
    macs = {n: nnz_of(layer.constant) * positions_of(layer, original) for n, layer in analysis.layers.items()}
    solution = analysis.system.solve(Fraction(1), [], shrink_cause=Cause("", "", ""))
    return WidePlan(analysis, solution, {n: ("unchanged", reason) for n in macs}, {}, macs, macs)
