"""Random graphs of convolutional networks and transformers: the kernels take what they can, and it is right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_graphs import HALVES, RandomGraph, graphs
from sparse_nets import ONE_THREAD

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram

# Below it, an output is what sums of larger values leave.
LEAST_SCALE = 1e-2


@HALVES
@pytest.mark.usefixtures("every_region_pays")
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(graph=graphs())
def test_random_graphs_compute_the_same(half: str, graph: RandomGraph) -> None:
    proto = graph.model()
    program = CpuProgram(proto, ONE_THREAD)
    assert any(isinstance(part, RegionProgram) for part in program.parts)
    found, expected = program.run(graph.feeds), OnnxRuntimeProgram(proto, ONE_THREAD).run(graph.feeds)
    for name, array in expected.items():
        scale = max(float(np.abs(array).max(initial=0)), LEAST_SCALE)
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-4 * scale, err_msg=name)
