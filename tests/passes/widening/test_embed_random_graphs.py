"""What ``init="embed"`` promises, on random graphs: the outputs stay the same, or it is refused by name of a node."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from nets import run
from random_graphs import HALVES, RandomGraph, graphs

from sift_onnx.errors import UnsupportedError
from sift_onnx.passes import Wide

SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
GROWTHS = st.sampled_from(["head-dim", "heads", "keep"])


@HALVES
@given(graphs(blocks=6), st.sampled_from(["0.3", "0.5", "0.75", "0.9"]), st.integers(0, 3), GROWTHS)
@settings(SETTINGS, max_examples=50)
def test_what_is_not_refused_computes_what_the_original_did(
    half: str, graph: RandomGraph, sparsity: str, seed: int, attention: Any
) -> None:
    proto = graph.model()
    try:
        result = Wide(sparsity, init="embed", seed=seed, attention=attention)(proto)
    except UnsupportedError as error:
        event("refused")
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "nothing to widen" in refusal or "cannot keep what the model computes: node '" in refusal
        return
    event("embedded")
    before, after = run(proto, graph.feeds), run(result.model.to_proto(), graph.feeds)
    for output in proto.graph.output:
        expected = before[output.name]
        scale = float(np.abs(expected).max(initial=0)) or 1.0
        np.testing.assert_allclose(after[output.name], expected, rtol=1e-4, atol=1e-4 * scale)
    totals = result.report["totals"]
    assert totals["weight_macs_after"] == totals["weight_macs_before"]
    assert totals["nnz_after"] == totals["nnz_before"]
