"""The loops that a machine's peak is timed with."""

from __future__ import annotations

import pytest

from sift_onnx.backends.cpu import _kernels


@pytest.mark.parametrize("isa", _kernels.supported_isas())
@pytest.mark.parametrize("load", [False, True])
def test_operations_are_those_of_all_iterations_on_all_threads(isa: str, load: bool) -> None:
    alone, both = _kernels.ThreadPool(1), _kernels.ThreadPool(2)
    of_one = _kernels.run_multiply_adds(alone, 1, isa, load=load)
    assert of_one > 0
    assert _kernels.run_multiply_adds(alone, 1000, isa, load=load) == 1000 * of_one
    assert _kernels.run_multiply_adds(both, 7, isa, load=load) == 14 * of_one


@pytest.mark.parametrize("isa", _kernels.supported_isas())
def test_loading_operands_changes_no_count(isa: str) -> None:
    pool = _kernels.ThreadPool(1)
    assert _kernels.run_multiply_adds(pool, 5, isa) == _kernels.run_multiply_adds(pool, 5, isa, load=True)


def test_an_instruction_set_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="'sse9'"):
        _kernels.run_multiply_adds(_kernels.ThreadPool(1), 1, "sse9")
