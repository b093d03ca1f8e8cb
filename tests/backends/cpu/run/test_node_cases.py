"""onnx's own cases: every one that onnxruntime passes, passes here."""

import unittest
import warnings

import onnxruntime
import pytest
from onnx.backend.test import BackendTest
from onnxruntime.backend.backend import OnnxRuntimeBackend

import sift_onnx.backend

# By operator, so that a worker has a part of them; the rest of the alphabet is none of the kernels'.
FAMILIES = (
    *("add", "averagepool", "batchnorm", "clip", "conv", "div", "dropout", "flatten", "gelu", "gemm"),
    *("globalaveragepool", "hardsigmoid", "hardswish", "identity", "leakyrelu", "matmul", "maxpool", "mul"),
    *("reduce_mean", "relu", "reshape", "sigmoid", "squeeze", "sub", "tanh"),
)


class Reference:
    """onnxruntime's own back end."""

    supports_device = staticmethod(OnnxRuntimeBackend.supports_device)
    run_model = run_node = None

    @staticmethod
    def is_compatible(model, device="CPU", **kwargs):
        return True

    @staticmethod
    def prepare(model, device="CPU", **kwargs):
        return OnnxRuntimeBackend.prepare(model, device)


def passed(backend, name, family):
    warnings.simplefilter("ignore")
    (kind,) = [c for n, c in BackendTest(backend, f"{__name__}.{name}").test_cases.items() if "Node" in n]
    names = [n for n in dir(kind) if n.startswith(f"test_{family}_") and n.endswith("_cpu")]
    names += [n for n in dir(kind) if n == f"test_{family}_cpu"]
    found = set()
    for case in names:
        result = unittest.TestResult()
        kind(case).run(result)
        if result.wasSuccessful() and not result.skipped:
            found.add(case)
    return found


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("family", FAMILIES)
def test_cases_that_onnxruntime_passes(family):
    onnxruntime.set_default_logger_severity(4)
    wanted = passed(Reference, "reference", family)
    assert wanted
    assert wanted <= passed(sift_onnx.backend, "sift", family)
