"""onnx's own cases: every one that onnxruntime passes, passes here."""

import functools
import string
import unittest
import warnings

import onnxruntime
import pytest
from onnx.backend.test import BackendTest
from onnxruntime.backend.backend import OnnxRuntimeBackend

import sift_onnx.backend

# By operator, so that a worker has a part of them: those with the most kernels. The slow tests have all cases.
FAMILIES = (
    *("add", "averagepool", "batchnorm", "clip", "conv", "div", "dropout", "flatten", "gelu", "gemm"),
    *("globalaveragepool", "hardsigmoid", "hardswish", "identity", "leakyrelu", "matmul", "maxpool", "mul"),
    *("reduce_mean", "relu", "reshape", "sigmoid", "squeeze", "sub", "tanh"),
    "attention_23_boolmask_fullymasked_row_nan_robustness",
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


@functools.cache
def cases_of(backend, name):
    (kind,) = [c for n, c in BackendTest(backend, f"{__name__}.{name}").test_cases.items() if "Node" in n]
    return kind


def passed(backend, name, is_wanted):
    """The cases that a back end passes, of those whose operators are wanted."""
    warnings.simplefilter("ignore")
    kind, found = cases_of(backend, name), set()
    for case in dir(kind):
        if not (case.startswith("test_") and case.endswith("_cpu") and is_wanted(case[len("test_") : -len("_cpu")])):
            continue
        result = unittest.TestResult()
        kind(case).run(result)
        if result.wasSuccessful() and not result.skipped:
            found.add(case)
    return found


def assert_all_pass(is_wanted):
    onnxruntime.set_default_logger_severity(4)
    wanted = passed(Reference, "reference", is_wanted)
    assert wanted
    assert wanted <= passed(sift_onnx.backend, "sift", is_wanted)


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("family", FAMILIES)
def test_cases_that_onnxruntime_passes(family):
    assert_all_pass(lambda case: case == family or case.startswith(f"{family}_"))


@pytest.mark.slow
@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("letter", sorted(set(string.ascii_lowercase) - set("jkvyz")))
def test_all_cases_that_onnxruntime_passes(letter):
    assert_all_pass(lambda case: case.startswith(letter))
