"""What the Wide pass promises, on random graphs: whatever it accepts runs as predicted, at the same cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, event, given, note, settings
from hypothesis import strategies as st
from nets import run
from random_graphs import HALVES, RandomGraph, graphs

from sift_onnx.analysis.cost import positions_of, product_macs
from sift_onnx.errors import BudgetError, UnsupportedError
from sift_onnx.model import Model
from sift_onnx.passes import InlineFunctions, LiftConstants, UnshareInitializers, Wide
from sift_onnx.passes.wide import WidePlan

SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
SPARSITIES = st.sampled_from(["0.5", "0.75", "0.9", "0.3"])
BUDGETS = st.sampled_from(["model", "layer", "layer", "total"])
GROWTHS = st.sampled_from(["head-dim", "head-dim", "heads", "keep"])


def prepared(proto: Any) -> Model:
    """The model as the pass analyses it."""
    model = Model.load(proto)
    for prepare in (InlineFunctions(), LiftConstants(), UnshareInitializers()):
        model = prepare(model).model
    return model


def accepted(proto: Any, sparsity: str, budget: Any, **options: Any) -> tuple[Wide, WidePlan] | None:
    """The pass and its plan; None where it has a reason not to accept the graph."""
    model = prepared(proto)
    for chosen in (budget, "layer"):
        wide = Wide(sparsity, budget=chosen, **options)
        try:
            return wide, wide.plan(model)
        except BudgetError:
            event(f"refused: budget {chosen}")
        except UnsupportedError as error:
            if "nothing to widen" not in str(error):
                raise
            event("refused: nothing to widen")
            return None
    return None


def check_shapes(plan: WidePlan, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Every tensor has the predicted shape, and none is smaller than it was."""
    analysis, solution = plan.analysis, plan.solution
    unknown = {name for name, axes in analysis.axes.items() if axes is None}
    assert not unknown & set(after), f"shapes of {sorted(unknown & set(after))} were not found"
    for name, axes in analysis.axes.items():
        if axes is None or name not in after:
            continue
        assert before[name].shape == tuple(analysis.system.original(axis.size) for axis in axes), name
        assert after[name].shape == tuple(solution.value(axis.size) for axis in axes), name
        assert all(new >= old for new, old in zip(after[name].shape, before[name].shape, strict=True)), name


def check_costs(plan: WidePlan, wide: Wide) -> None:
    """Multiply-accumulates are those of the original, within one non-zero of a layer."""
    analysis, solution = plan.analysis, plan.solution
    positions = {name: positions_of(analysis.layers[name], solution.value) for name in plan.nnz}
    if wide.budget == "layer":
        for name in plan.nnz:
            assert 0 <= plan.before[name] - plan.after[name] < positions[name], name
        return
    grown = 0
    if wide.budget == "total":
        grown = product_macs(analysis, solution.value) - product_macs(analysis, analysis.system.original)
    left = sum(plan.before.values()) - sum(plan.after.values()) - grown
    assert 0 <= left < max(positions.values())


def check_weights(plan: WidePlan, model: Model) -> None:
    """Masks have the planned number of non-zeros; widths grow by about the factor."""
    masked = model.masked()
    assert set(masked) == set(plan.nnz)
    for name, nnz in plan.nnz.items():
        weight = masked[name].weight
        shape = tuple(plan.solution.value(axis.size) for axis in plan.analysis.layers[name].axes)
        assert (weight.shape, weight.nnz) == (shape, nnz)
        assert nnz <= math.prod(shape)


@HALVES
@given(graphs(), SPARSITIES, BUDGETS, GROWTHS, st.sampled_from([1, 1, 4]))
@settings(SETTINGS, max_examples=30)
def test_what_is_accepted_runs_as_predicted_at_the_same_cost(
    half: str, graph: RandomGraph, sparsity: str, budget: Any, growth: Any, round_to: int
) -> None:
    proto = graph.model()
    note("\n".join(graph.trace))
    before = run(proto, graph.feeds)
    found = accepted(proto, sparsity, budget, attention=growth, round_to=round_to)
    if found is None:
        return
    wide, plan = found
    event(f"accepted: budget {wide.budget}")
    result = wide(proto)
    after = run(result.model.to_proto(), graph.feeds)
    check_shapes(plan, before, after)
    check_costs(plan, wide)
    check_weights(plan, result.model)
    for output in proto.graph.output:
        assert after[output.name].shape == before[output.name].shape
        assert np.isfinite(after[output.name]).all()
    if graph.dynamic:
        several = {name: np.repeat(values, 3, axis=0) for name, values in graph.feeds.items()}
        batch = run(result.model.to_proto(), several)
        for output in proto.graph.output:
            assert batch[output.name].shape == (3 * before[output.name].shape[0], *before[output.name].shape[1:])
    again = wide(result.model)
    assert not again.changed
    assert again.model.to_proto() == result.model.to_proto()


@given(graphs(blocks=5), st.integers(0, 2**31))
@settings(SETTINGS, max_examples=10)
def test_a_second_transform_of_the_original_gives_the_same_bytes(graph: RandomGraph, seed: int) -> None:
    proto = graph.model()
    assume(accepted(proto, "0.75", "layer") is not None)
    first, second = (Wide("0.75", budget="layer", seed=seed)(proto).model.to_proto() for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()


@given(graphs(blocks=5))
@settings(SETTINGS, max_examples=10)
def test_a_sparsity_of_zero_changes_nothing(graph: RandomGraph) -> None:
    proto = graph.model()
    result = Wide(0)(proto)
    assert not result.changed
    before, after = run(proto, graph.feeds), run(result.model.to_proto(), graph.feeds)
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)
