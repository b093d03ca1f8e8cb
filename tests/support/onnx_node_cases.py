"""ONNX's own test cases of single operators, run through the importer.

A case is claimed if the importer takes its model; then its outputs, data types and shapes have to be those of the
case. What it refuses has to be refused as unsupported, before anything is computed.
"""

import warnings
from functools import lru_cache

import numpy as np
import onnx
import torch
from onnx.backend.test.loader import load_model_tests

from sift_onnx.errors import UnsupportedError
from sift_onnx.training import to_torch
from sift_onnx.training.tensors import array_from_tensor, tensor_from_array

__all__ = ["check", "node_cases"]

# The expected outputs are those of one random generator, numpy's.
_RANDOM = ("test_bernoulli", "test_training_dropout")


@lru_cache
def node_cases():
    """Cases by name. ONNX writes them with numpy, which warns of what they provoke."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


def check(case):
    """Run a case; None if it passes, and the reason if it is not claimed.

    Raises:
        AssertionError: it is claimed, and its outputs are not the expected ones.
    """
    if case.name.startswith(_RANDOM) and "zero_ratio" not in case.name:
        return "random outputs"
    try:
        module = to_torch(case.model, biased_statistics=True)
        feeds = [[_torch(value) for value in inputs] for inputs, _ in case.data_sets]
    except UnsupportedError as error:
        return str(error)
    if any(node.op_type == "BatchNormalization" and _training(node) for node in case.model.graph.node):
        module.train()
    for inputs, (_, expected) in zip(feeds, case.data_sets, strict=True):
        with torch.no_grad():
            found = module(*inputs)
        found = found if len(case.model.graph.output) > 1 else (found,)
        for one, other in zip(found, expected, strict=True):
            _compare(one, other, case.rtol, case.atol)
    return None


def _training(node):
    return any(attribute.name == "training_mode" and attribute.i for attribute in node.attribute)


def _torch(value):
    if isinstance(value, list):
        return [_torch(item) for item in value]
    if isinstance(value, onnx.TensorProto):
        return tensor_from_array(onnx.numpy_helper.to_array(value))
    return None if value is None else tensor_from_array(np.asarray(value))


def _compare(found, expected, rtol, atol):
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _compare(one, other, rtol, atol)
        return
    if isinstance(expected, onnx.TensorProto):
        expected = onnx.numpy_helper.to_array(expected)
    if expected is None:
        assert found is None
        return
    array = array_from_tensor(found)
    expected = np.asarray(expected)
    assert array.dtype == expected.dtype, (array.dtype, expected.dtype)
    assert array.shape == expected.shape, (array.shape, expected.shape)
    if expected.dtype.itemsize == 2 and expected.dtype.kind not in "iu":
        # Two units in the last place: the order of additions is the processor's.
        rtol = max(rtol, 2**-6 if expected.dtype.name == "bfloat16" else 2**-9)
    if expected.dtype.kind not in "iubfc":
        array, expected = array.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(array, expected, rtol=rtol, atol=max(atol, 1e-6))
