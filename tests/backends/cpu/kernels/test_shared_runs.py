"""Products of one input run together in a sequence, unless one of them needs what another one writes."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_reference import aligned, product, random_array, random_sparse

from sift_onnx.backends.cpu import _kernels

COLUMNS, ROWS = 200, (70, 400, 30)
NONE = (None, None, None)
Floats = np.ndarray


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


def products(values: str, density: float) -> tuple[list[Floats], list[_kernels.Matmul]]:
    rng = np.random.default_rng(0)
    weights = [random_sparse(rng, (rows, COLUMNS), density) for rows in ROWS]
    scales = np.full(1, 0.5, np.float32)
    if values == "int8":
        weights = [np.clip(np.rint(40 * own), -127, 127).astype(np.float32) for own in weights]
    ops = []
    for own in weights:
        sparse = _kernels.SparseWeights.from_dense(*own.shape, own)
        given = np.repeat(scales, len(own)) if values == "int8" else None
        ops.append(_kernels.Matmul(_kernels.PackedRows(sparse, values, given), np.arange(len(own), dtype=np.float32)))
    factor = 0.5 if values == "int8" else 1.0
    return [factor * own.astype(np.float64) for own in weights], ops


def copies(m: int, places: list[tuple[int, int, int]]) -> list[tuple]:
    """Of scratch memory to arrays: rows, where they are, number of the array."""
    copy = _kernels.Elementwise("first", layout="planes")
    return [(copy, (m, rows, 1, 1), (-1, at), NONE, (array, 0)) for rows, at, array in places]


def outputs(pool: _kernels.ThreadPool, steps: list[tuple], scratch: int, x: Floats, m: int) -> list[Floats]:
    """What the steps write to the arrays after the first."""
    made = [aligned(m * rows) for rows in ROWS]
    sequence = _kernels.Sequence(steps, scratch, [x.size, *(own.size for own in made)])
    sequence.run(pool, _kernels.Workspace(), [x, *made])
    return [own.reshape(m, -1) for own in made]


@pytest.mark.parametrize(("values", "density"), [("float32", 0.3), ("float32", 0.05), ("int8", 0.3), ("int8", 0.05)])
@pytest.mark.parametrize("m", [1, 8, 20, 45, 300])
def test_products_of_one_input_are_those_of_each(
    pool: _kernels.ThreadPool, m: int, values: str, density: float
) -> None:
    weights, ops = products(values, density)
    x = random_array(np.random.default_rng(m), (m, COLUMNS))
    starts = [0, m * ROWS[0], m * (ROWS[0] + ROWS[1])]
    steps = [(op, (m, COLUMNS, 1, 1), (0, 0), NONE, (-1, at)) for op, at in zip(ops, starts, strict=True)] + copies(
        m, [(ROWS[i], starts[i], i + 1) for i in range(3)]
    )
    for found, own in zip(outputs(pool, steps, m * sum(ROWS), x, m), weights, strict=True):
        wanted = x.astype(np.float64) @ own.T + np.arange(len(own))
        np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_products_that_round_activations_do_not_share_them(pool: _kernels.ThreadPool) -> None:
    m = 8
    rng = np.random.default_rng(0)
    integers = [rng.integers(-127, 128, (rows, COLUMNS)).astype(np.float32) for rows in ROWS]
    packed = [
        _kernels.PackedRows(_kernels.SparseWeights.from_dense(*own.shape, own), "int8", np.ones(len(own), np.float32))
        for own in integers
    ]
    x = random_array(rng, (m, COLUMNS))
    ops = [_kernels.Matmul(own, rounds_activations=i == 0) for i, own in enumerate(packed)]
    starts = [0, m * ROWS[0], m * (ROWS[0] + ROWS[1])]
    steps = [(op, (m, COLUMNS, 1, 1), (0, 0), NONE, (-1, at)) for op, at in zip(ops, starts, strict=True)] + copies(
        m, [(ROWS[i], starts[i], i + 1) for i in range(3)]
    )
    for found, op in zip(outputs(pool, steps, m * sum(ROWS), x, m), ops, strict=True):
        np.testing.assert_array_equal(found, product(pool, op, x))


def test_what_one_writes_and_another_reads_is_waited_for(pool: _kernels.ThreadPool) -> None:
    m, rows = 16, ROWS[1]
    weights, (_, op, _) = products("float32", 0.3)
    x = random_array(np.random.default_rng(0), (m, COLUMNS))
    size = m * rows
    product = x.astype(np.float64) @ weights[1].T + np.arange(rows)
    shape = (m, COLUMNS, 1, 1)
    first = (op, shape, (0, 0), NONE, (-1, 0))
    for _ in range(20):
        # The second operand of one is the output of the one before; then, an output goes where that operand was.
        steps = [first, (op, shape, (0, 0), ((-1, 0), None, None), (-1, size)), (op, shape, (0, 0), NONE, (-1, 0))]
        steps += [
            (_kernels.Elementwise("first", layout="planes"), (m, rows, 1, 1), (-1, i * size), NONE, (1 + i, 0))
            for i in range(2)
        ]
        made = [aligned(size), aligned(size)]
        sequence = _kernels.Sequence(steps, 2 * size, [x.size, size, size])
        sequence.run(pool, _kernels.Workspace(), [x, *made])
        np.testing.assert_allclose(made[0].reshape(m, -1), product, atol=1e-3)
        np.testing.assert_allclose(made[1].reshape(m, -1), 2 * product, atol=1e-3)


def test_a_sequence_runs_once_for_each_list_of_arrays(pool: _kernels.ThreadPool) -> None:
    copy, shape = _kernels.Elementwise("first", activation=("clip", 0.0, 1.0), layout="planes"), (1, 3, 2, 2)
    places = [(copy, shape, (0, 0), NONE, (-1, 0)), (copy, shape, (-1, 0), NONE, (1, 0))]
    sequence, workspace = _kernels.Sequence(places, 12, [12, 12]), _kernels.Workspace()
    given = [random_array(np.random.default_rng(i), (12,)) for i in range(9)]
    made = [np.empty(12, np.float32) for _ in given]
    sequence.run_each(pool, workspace, [list(arrays) for arrays in zip(given, made, strict=True)])
    np.testing.assert_array_equal(made, np.clip(given, 0, 1))
    with pytest.raises(ValueError, match="one array per size"):
        sequence.run_each(pool, workspace, [[given[0], made[0]], [given[1]]])
