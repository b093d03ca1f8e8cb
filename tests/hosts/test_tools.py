"""Every pass before and after tools that rewrite files: outputs stay, masks are found or reported as lost."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from hosts import tools
from hosts.cases import FIRST, KEEPS_OUTPUTS, PASSES, TOOLS, changed_by, copy_of, network, outputs, passes_of

import sift_onnx
from sift_onnx.errors import MaskWarning

CELLS = [(tool, name, order) for tool, orders in TOOLS.items() for name in PASSES for order in orders]


@pytest.mark.parametrize(("tool", "name", "order"), CELLS)
def test_a_tool_and_a_pass_in_this_order(tool: str, name: str, order: str) -> None:
    rewrite = tools.BEFORE.get(tool, tools.RUN[tool]) if order == "before" else tools.RUN[tool]
    if order == "before":
        original = network()
        simplified = rewrite(copy_of(original))
        result = simplified
        for pass_ in passes_of(name):
            result = pass_(result).model.to_proto()
        if name in KEEPS_OUTPUTS and name not in FIRST:
            np.testing.assert_allclose(outputs(result)[0], outputs(original)[0], rtol=1e-4, atol=1e-5)
    else:
        made = changed_by(passes_of(name), network())
        result = rewrite(copy_of(made))
        expected, got = outputs(made)[0], outputs(result)[0]
        if tool.startswith("quantize"):
            # Eight bits for weights and activations through five layers.
            assert np.abs(got - expected).max() < 0.15 * np.abs(expected).max()
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        assert_masks_found_or_lost(made, result)
    assert outputs(result)[0].shape == (1, 4, 8, 8)


def assert_masks_found_or_lost(made: onnx.ModelProto, result: onnx.ModelProto) -> None:
    before = sift_onnx.masks(made)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        after = sift_onnx.masks(result)
    lost = [str(w.message) for w in said if issubclass(w.category, MaskWarning) and "is lost" in str(w.message)]
    assert len(after) + len(lost) == len(before), lost
    # A tool renames weights, and may turn matrices around.
    known = {bits for mask in before.values() for bits in (mask.tobytes(), mask.T.tobytes())}
    assert all(mask.tobytes() in known for mask in after.values())
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    for weight, mask in after.items():
        assert not weights[weight][~mask].any(), weight
