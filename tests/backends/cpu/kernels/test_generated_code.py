"""Sparse layers as machine code: which layers become it, and that they compute what lists do."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_reference import ACTIVATIONS, LAYOUTS, assert_close, conv, random_array, random_sparse, run

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.isa import generates_code, selected_isa
from sift_onnx.errors import UsageError

ISA = _kernels.detected_isa()
needs_code = pytest.mark.skipif(not generates_code(ISA), reason="this machine runs no generated code")


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def generated(weights: np.ndarray, bias: np.ndarray | None = None, **options: Any) -> _kernels.Conv:
    source = _kernels.SparseWeights.from_dense(len(weights), weights[0].size, weights)
    return _kernels.Conv(source, bias, algorithm="generated", kernel=weights.shape[2:], **options)


@needs_code
@pytest.mark.parametrize("rows", [1, 27, 28, 29, 57, 130])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_groups_of_rows_of_every_size(
    pool: _kernels.ThreadPool, rows: int, layout: str, activation: tuple[str, float, float]
) -> None:
    rng = np.random.default_rng(rows)
    x = random_array(rng, (18, 40, 9, 11))
    weights = random_sparse(rng, (2 * rows, 20, 3, 3), 0.2)
    weights[0] = 0
    bias = random_array(rng, (2 * rows,))
    geometry = {"pads": (1, 0, 2, 1), "groups": 2}
    residual = random_array(rng, conv(x, weights, **geometry).shape)
    expected = conv(x, weights, bias, **geometry, activation=activation, residual=residual)
    singly, in_fours = (
        run(
            pool,
            generated(weights, bias, layout=layout, activation=activation, microarchitecture=processor, **geometry),
            x,
            residual,
        )
        for processor in ("intel", "zen5")
    )
    assert_close(singly, expected, 180)
    np.testing.assert_array_equal(in_fours, singly)


@needs_code
@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("kernel", [1, 3])
def test_weights_in_fours_are_read_back(pool: _kernels.ThreadPool, density: float, kernel: int) -> None:
    """Four of every eight weights are loaded at once on Zen 5, but for layers of one tap, and of few blocks."""
    rng = np.random.default_rng(7)
    weights = random_sparse(rng, (61, 45, kernel, kernel), density)
    x = random_array(rng, (16, 45, 9, 9))
    ops = {name: generated(weights, microarchitecture=name) for name in ("zen4", "zen5")}
    sizes = {name: op.describe(x.shape, pool.threads)["packed_bytes"] for name, op in ops.items()}
    assert (sizes["zen5"] > sizes["zen4"]) == (kernel > 1 and density > 0)
    few = {name: generated(weights, microarchitecture=name) for name in ops}
    assert len({op.describe((16, 45, 5, 5), pool.threads)["packed_bytes"] for op in few.values()}) == 1
    source = _kernels.SparseWeights.from_dense(61, weights[0].size, weights)
    expected = run(pool, _kernels.Conv(source, kernel=(kernel, kernel), algorithm="single"), x)
    for op in ops.values():
        assert op.release_source()
        read_back = _kernels.Conv(op.source(), kernel=(kernel, kernel), algorithm="single")
        np.testing.assert_array_equal(run(pool, read_back, x), expected)


@needs_code
@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_code_longer_than_the_cache_is_cut_into_parts(pool: _kernels.ThreadPool, layout: str, density: float) -> None:
    """7 bytes per non-zero: 28 dense rows of 3600 columns are 700 KB; and displacements of every size."""
    rng = np.random.default_rng(1)
    x = random_array(rng, (3, 400, 5, 6))
    weights = random_sparse(rng, (60, 400, 3, 3), density)
    op = generated(weights, layout=layout, pads=(1, 1, 1, 1))
    residual = random_array(rng, (3, 60, 5, 6))
    assert_close(run(pool, op, x, residual), conv(x, weights, pads=(1, 1, 1, 1), residual=residual), 3600)


@needs_code
@pytest.mark.parametrize("images", [16, 17, 100, 449])
@pytest.mark.parametrize("columns", [3, 130, 5000])
def test_matrices_are_read_where_they_are(pool: _kernels.ThreadPool, images: int, columns: int) -> None:
    """In blocks of 16 rows, of which the last tile may have fewer than the others."""
    rng = np.random.default_rng(2)
    x = random_array(rng, (images, columns, 1, 1))
    weights = random_sparse(rng, (45, columns, 1, 1), 0.2)
    bias = random_array(rng, (45,))
    residual = random_array(rng, (images, 45, 1, 1))
    op = generated(weights, bias, layout="images16", activation=("clip", 0.0, np.inf))
    expected = conv(x, weights, bias, activation=("clip", 0.0, np.inf), residual=residual)
    assert_close(run(pool, op, x, residual), expected, columns)


@needs_code
def test_groups_of_a_matrix_product_read_their_own_columns(pool: _kernels.ThreadPool) -> None:
    rng = np.random.default_rng(3)
    x = random_array(rng, (40, 60, 1, 1))
    weights = random_sparse(rng, (90, 20, 1, 1), 0.3)
    op = generated(weights, layout="images16", groups=3)
    assert_close(run(pool, op, x), conv(x, weights, groups=3), 20)


@needs_code
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_same_bits_for_any_number_of_threads(threads: int) -> None:
    rng = np.random.default_rng(4)
    x = random_array(rng, (33, 32, 14, 14))
    weights = random_sparse(rng, (96, 32, 3, 3), 0.1)
    op = generated(weights, pads=(1, 1, 1, 1))
    expected = run(_kernels.ThreadPool(1), op, x)
    np.testing.assert_array_equal(run(_kernels.ThreadPool(threads), op, x), expected)


@needs_code
def test_nan_and_infinity_pass_as_they_do_through_lists(pool: _kernels.ThreadPool) -> None:
    rng = np.random.default_rng(5)
    x = random_array(rng, (16, 64, 3, 3))
    x[3, 5], x[7, 9], x[8, 11] = np.nan, np.inf, -np.inf
    weights = random_sparse(rng, (40, 64, 3, 3), 0.2)
    source = _kernels.SparseWeights.from_dense(40, 576, weights)
    lists, code = (
        run(
            pool,
            _kernels.Conv(source, kernel=(3, 3), pads=(1, 1, 1, 1), activation=("clip", 0.0, 6.0), algorithm=algorithm),
            x,
        )
        for algorithm in ("single", "generated")
    )
    np.testing.assert_allclose(code, lists, atol=1e-4)
    assert np.isnan(code).any()


@needs_code
def test_layers_become_code_where_it_takes_less_time() -> None:
    def algorithm(shape: tuple[int, int, int, int], rows: int, density: float, layout: str, kernel: int = 1) -> str:
        rng = np.random.default_rng(6)
        weights = random_sparse(rng, (rows, shape[1], kernel, kernel), density)
        source = _kernels.SparseWeights.from_dense(rows, weights[0].size, weights)
        op = _kernels.Conv(source, kernel=(kernel, kernel), pads=(kernel // 2,) * 4, layout=layout)
        return str(op.describe(shape, 2)["algorithm"])

    assert algorithm((64, 128, 14, 14), 128, 0.1, "images16", 3) == "generated"
    assert algorithm((1, 128, 14, 14), 128, 0.1, "planes", 3) == "generated"
    assert algorithm((128, 1024, 1, 1), 256, 0.25, "images16") == "generated"
    # Few blocks: code is longer than lists, and comes from memory for each.
    assert algorithm((32, 1024, 1, 1), 256, 0.25, "images16") == "single"
    # An operand that is loaded for one non-zero.
    assert algorithm((64, 128, 14, 14), 128, 0.02, "images16", 3) == "single"
    assert algorithm((64, 128, 14, 14), 4, 0.2, "images16", 3) == "pair"
    # A few non-zeros for each start and end of the sums.
    assert algorithm((64, 16, 14, 14), 128, 0.2, "images16") == "single"
    assert algorithm((64, 128, 14, 14), 128, 1.0, "images16", 3) == "dense"


@needs_code
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", [1, 3])
def test_all_shapes_run_the_same_code(pool: _kernels.ThreadPool, layout: str, kernel: int) -> None:
    rng = np.random.default_rng(5)
    weights = random_sparse(rng, (60, 70, kernel, kernel), 0.2)
    pads = (kernel // 2,) * 4
    op = generated(weights, layout=layout, pads=pads)
    tilings = set()
    for shape in ((1, 70, 1, 128), (1, 70, 8, 9), (5, 70, 4, 4), (17, 70, 1, 1), (33, 70, 7, 7), (1, 70, 30, 40)):
        x = random_array(rng, shape)
        assert_close(run(pool, op, x), conv(x, weights, pads=pads), 70 * kernel**2)
        told = op.describe(shape, pool.threads)
        tilings.add((told["tile"], told["slice_channels"]))
    assert len(tilings) > 3
    assert op.times_packed == 1
    assert op.weight_bytes < 2 * told["packed_bytes"]


@needs_code
def test_layers_are_packed_side_by_side_for_the_shapes_to_come(pool: _kernels.ThreadPool) -> None:
    rng = np.random.default_rng(6)
    weights = [random_sparse(rng, (56, 64, 1, 1), 0.16) for _ in range(3)]
    ops = [_kernels.Conv(_kernels.SparseWeights.from_dense(56, 64, each)) for each in weights]
    shapes = [(16, 64, 1, 1), (128, 64, 1, 1)]
    _kernels.Conv.prepare_all(ops, [shapes] * 3, pool)
    for op, each in zip(ops, weights, strict=True):
        for shape in ((40, 64, 1, 1), *shapes, (90, 64, 1, 1)):
            x = random_array(rng, shape)
            assert_close(run(pool, op, x), conv(x, each), 64)
        assert op.times_packed == 2
    for layers, each in ((ops, [shapes]), ([None], [shapes])):
        with pytest.raises(ValueError, match="each layer needs its shapes"):
            _kernels.Conv.prepare_all(layers, each, pool)


@needs_code
@pytest.mark.parametrize("zen", ["zen4", "zen5"])
@pytest.mark.parametrize(("kernel", "stride", "larger"), [(3, 1, True), (3, 2, False), (1, 1, False)])
def test_tiles_are_larger_on_zen_where_taps_share_their_borders(
    pool: _kernels.ThreadPool, kernel: int, stride: int, larger: bool, zen: str
) -> None:
    rng = np.random.default_rng(5)
    x = random_array(rng, (16, 100, 28, 28))
    weights = random_sparse(rng, (100, 100, kernel, kernel), 0.1)
    geometry = {"pads": (kernel // 2,) * 4, "stride": (stride, stride)}
    expected = conv(x, weights, **geometry)
    blocks = {}
    for processor in (zen, "intel"):
        op = generated(weights, layout="images16", microarchitecture=processor, **geometry)
        blocks[processor] = np.prod(op.describe(x.shape, 2)["tile"])
        assert_close(run(pool, op, x), expected, weights[0].size)
    assert (blocks[zen] > blocks["intel"]) == larger


def test_other_instruction_sets_run_no_generated_code() -> None:
    weights = np.ones((32, 32, 1, 1), np.float32)
    source = _kernels.SparseWeights.from_dense(32, 32, weights)
    for isa in _kernels.supported_isas():
        if isa == "avx512":
            continue
        with pytest.raises(ValueError, match="generated code needs AVX-512"):
            _kernels.Conv(source, algorithm="generated", isa=isa)


_PROBE = """
import numpy as np
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.isa import generates_code
assert not _kernels.may_execute_code()
assert not generates_code("avx512")
weights = np.ones((32, 64), np.float32)
weights[:, ::2] = 0
source = _kernels.SparseWeights.from_dense(32, 64, weights)
print(_kernels.Conv(source).describe((64, 64, 1, 1), 1)["algorithm"])
try:
    _kernels.Conv(source, algorithm="generated")
except ValueError as error:
    print(error)
"""


@needs_code
def test_sift_jit_0_does_without() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], env={**os.environ, "SIFT_JIT": "0"}, capture_output=True, text=True, check=True
    )
    algorithm, error = done.stdout.splitlines()
    assert algorithm in ("single", "pair")
    assert error == "conv: this process may not execute generated code"


def test_another_sift_jit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIFT_JIT", "off")
    with pytest.raises(UsageError, match=r"^SIFT_JIT is 'off': set it to 0, .*, or to 1, or unset it$"):
        selected_isa()


@needs_code
@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="filters calls of Linux on x86-64"
)
@pytest.mark.parametrize("case", [("protection",), ("protection", "before"), ("space", "before")], ids="-".join)
def test_layers_stay_in_lists_where_memory_for_code_is_refused(case: tuple[str, ...]) -> None:
    script = Path(__file__).with_name("refused_code.py")
    done = subprocess.run([sys.executable, script, *case], capture_output=True, text=True, check=False, timeout=100)
    if done.stderr.startswith("SKIP"):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
