"""Small nets with mostly zero weights, and their comparison with onnxruntime."""

import numpy as np
from nets import Net

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.graphs.constants import is_masked
from sift_onnx.model import Model
from sift_onnx.passes import Prune
from sift_onnx.shapes.random_inputs import random_feeds
from sift_onnx.weights.sparse import SparseWeight

# Deterministic: what a test runs in kernels must not go to onnxruntime because that was faster.
ONE_THREAD = CompileOptions(threads=1, deterministic=True)


class SparseNet(Net):
    """A net whose weights are mostly zeros."""

    density = 0.3

    def weight(self, *shape, name="", fan_in=0):
        values = self._rng.standard_normal(shape) * (self._rng.random(shape) < self.density)
        fan = self.density * (fan_in or shape[0])
        return self.constant((values / max(fan, 1) ** 0.5).astype(np.float32), name)


def assert_same_as_onnxruntime(model, feeds, program=None, tolerance=2e-5, least=0.0):
    """Compare all outputs, relative to the largest value of each, or to ``least`` if that is larger.

    Returns:
        The program that ran.
    """
    program = program or CpuProgram(model, ONE_THREAD)
    outputs = program.run(feeds)
    wanted = OnnxRuntimeProgram(model, ONE_THREAD).run(feeds)
    assert list(outputs) == list(wanted)
    for name, array in wanted.items():
        assert outputs[name].shape == array.shape
        assert outputs[name].dtype == array.dtype
        scale = max(float(np.abs(array).max(initial=0)), least) or 1.0
        np.testing.assert_allclose(outputs[name] / scale, array / scale, rtol=0, atol=tolerance, err_msg=name)
    return program


def assert_same_at_batches(model, batches, shapes=None, **options):
    """Compare at several batches; ``shapes`` has the sizes of inputs that are dynamic behind the batch."""
    program = CpuProgram(model, ONE_THREAD)
    for batch in batches:
        own = {name: (batch, *shape[1:]) for name, shape in (shapes or {}).items()}
        assert_same_as_onnxruntime(model, random_feeds(program.inputs, batch, own), program, **options)
    return program


def emptied(net, zeros, sparsity=0.8):
    """The pruned model, whose active weights are zero where ``zeros`` says so, given a name and a SparseWeight."""
    model = Prune(sparsity)(Model.load(net.model())).model
    for name, constant in model.initializers().items():
        if is_masked(constant):
            weight = constant.weight
            values = np.where(zeros(name, weight), 0, weight.values).astype(np.float32)
            constant.values = SparseWeight(weight.shape, weight.indices, values)
    return model


def some_rows(name, weight):
    """Every third row, and all of the layer ``grouped``."""
    rows = np.unravel_index(weight.indices, weight.shape)[0]
    return (rows % 3 == 0) | (name == "grouped.weight")


def everything(_name, weight):
    return np.ones(weight.nnz, bool)


def places(program):
    """Where the nodes went, by name."""
    return {placement.name: placement.placement for placement in program.placements}


def reasons(program):
    return {placement.name: placement.reason for placement in program.placements}


def left_to_onnxruntime(program):
    """Why each node is not in the kernels."""
    return {node: why for node, why in reasons(program).items() if places(program)[node] == "onnxruntime"}
