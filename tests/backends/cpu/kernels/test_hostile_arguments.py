"""Whatever Python passes to the kernels, they answer or raise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sift_onnx.backends.cpu import _kernels

SCRIPT = Path(__file__).with_name("hostile_arguments.py")


@pytest.mark.full
def test_random_arguments_are_taken_or_refused() -> None:
    # In a process of its own, which a memory error ends.
    done = subprocess.run(
        [sys.executable, SCRIPT, "--rounds", "6000"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rows", [2**32, 2**62, 2**63 - 1])
@pytest.mark.parametrize("indices", [[], [0], [2**62]])
def test_a_matrix_whose_size_runs_over_is_refused(rows: int, indices: list[int]) -> None:
    values = np.ones(len(indices), np.float32)
    with pytest.raises((ValueError, MemoryError)):
        _kernels.SparseWeights.from_indices(rows, 2**32 - 1, np.array(indices, np.int64), values)


@pytest.mark.parametrize("shape", [(2**32, 2**32, 1, 1), (-1, -4, 1, 1), (2**62, 4, 1, 1), (0, 2**60, 2**60, 1)])
@pytest.mark.parametrize("layout", ["planes", "images16"])
def test_a_shape_whose_size_runs_over_is_refused(shape: tuple[int, int, int, int], layout: str) -> None:
    op = _kernels.Elementwise("first", layout=layout)
    array = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="shape"):
        op.run(_kernels.ThreadPool(1), shape, array, array)


@pytest.mark.parametrize("window", [{"kernel": (0, 1)}, {"stride": (1, -1)}, {"dilation": (2**62, 1)}])
def test_a_window_that_cannot_slide_is_refused(window: dict[str, tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="window"):
        _kernels.MaxPool(**{"kernel": (1, 1), **window})


@pytest.mark.parametrize("kernel", [(65536, 1), (1, 65536), (65, 64)])
def test_a_convolution_of_more_taps_than_offsets_reach_is_refused(kernel: tuple[int, int]) -> None:
    taps = kernel[0] * kernel[1]
    weights = _kernels.SparseWeights.from_dense(1, taps, np.ones(taps, np.float32))
    with pytest.raises(ValueError, match="too many taps"):
        _kernels.Conv(weights, kernel=kernel)


def test_how_a_convolution_without_output_is_run_is_no_question() -> None:
    conv = _kernels.Conv(_kernels.SparseWeights.from_dense(1, 9, np.ones(9, np.float32)), kernel=(3, 3))
    with pytest.raises(ValueError, match="the output is empty"):
        conv.describe((1, 1, 2, 2), 1)


def test_pads_that_run_over_are_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        _kernels.MaxPool(kernel=(1, 1), pads=(2**62, 0, 2**62, 0))
