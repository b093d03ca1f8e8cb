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


def passed(backend, name, letter):
    """The cases that a back end passes, of operators whose names begin with a letter."""
    warnings.simplefilter("ignore")
    kind, found = cases_of(backend, name), set()
    for case in dir(kind):
        if not (case.startswith(f"test_{letter}") and case.endswith("_cpu")):
            continue
        result = unittest.TestResult()
        kind(case).run(result)
        if result.wasSuccessful() and not result.skipped:
            found.add(case)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize("letter", sorted(set(string.ascii_lowercase) - set("jkvyz")))
def test_all_cases_that_onnxruntime_passes(letter):
    onnxruntime.set_default_logger_severity(4)
    wanted = passed(Reference, "reference", letter)
    assert wanted
    assert wanted <= passed(sift_onnx.backend, "sift", letter)
