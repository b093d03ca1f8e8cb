from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sift_onnx.backends.cpu import _kernels

pytestmark = pytest.mark.usefixtures("older_objects_are_frozen")


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_arrays_have_the_sizes_asked_for_and_are_writable() -> None:
    array = _kernels.ArrayPool().empty((2, 3, 5))
    assert array.shape == (2, 3, 5)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    array[:] = 1
    assert array.sum() == 30


def test_memory_is_used_again_when_the_array_is_gone() -> None:
    pool = _kernels.ArrayPool()
    first = pool.empty((1 << 16,))
    place = address(first)
    del first
    assert pool.idle == 1 << 16
    assert address(pool.empty((1 << 8, 1 << 8))) == place


@pytest.mark.parametrize(
    "look",
    [
        lambda array: array[1:].reshape(-1)[::2],
        lambda array: np.frombuffer(memoryview(array), np.float32),
        lambda array: array.view(np.int32),
        lambda array: array.T,
    ],
)
def test_memory_that_a_view_looks_at_is_not_used_again(look: Callable[[np.ndarray], np.ndarray]) -> None:
    pool = _kernels.ArrayPool()
    first = pool.empty((4, 1 << 12))
    first[:] = 7
    view = look(first)
    before = view.copy()
    del first
    gc.collect()
    assert pool.idle == 0
    pool.empty((4, 1 << 12))[:] = 0
    np.testing.assert_array_equal(view, before)


def test_arrays_outlive_their_pool() -> None:
    pool = _kernels.ArrayPool()
    array = pool.empty((1 << 16,))
    del pool
    array[:] = 3
    assert array.sum() == 3 << 16


def test_a_piece_of_larger_memory_leaves_the_rest_for_others() -> None:
    pool = _kernels.ArrayPool()
    large, last = pool.empty((1 << 20,)), pool.empty((1 << 16,))
    place = address(large)
    del large
    parts = [pool.empty((1 << 18,)) for _ in range(4)]
    assert sorted(address(part) for part in parts) == [place + (i << 20) for i in range(4)]
    assert pool.idle == 0
    assert address(last) not in {address(part) for part in parts}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_neighbours_that_came_back_are_one_piece(order: tuple[int, ...]) -> None:
    pool = _kernels.ArrayPool()
    arrays: dict[int, np.ndarray] = {i: pool.empty((1 << 16,)) for i in range(3)}
    last = pool.empty((1 << 16,))
    place = min(address(array) for array in arrays.values())
    for i in order:
        del arrays[i]
    assert address(pool.empty((3 << 16,))) == place
    assert last.size == 1 << 16


def test_arrays_of_a_repeated_sequence_lie_where_they_lay() -> None:
    """However sizes follow each other: after the second round no page is new."""
    pool = _kernels.ArrayPool()
    sizes = np.random.default_rng(0).integers(1 << 10, 1 << 18, 40).tolist()

    def step() -> list[int]:
        kept = [pool.empty((size,)) for size in sizes]
        places = [address(array) for array in kept]
        for size in sizes:
            kept.pop()
            gradient = pool.empty((size,))
            places.append(address(gradient))
        return places

    first = step()
    assert step() == first


def test_no_more_lies_idle_than_was_out_at_one_time() -> None:
    pool = _kernels.ArrayPool()
    for size in range(1 << 14, 1 << 18, 1 << 13):
        pool.empty((size,))
        assert pool.idle <= 1 << 18


def test_the_smallest_piece_that_is_large_enough_is_given() -> None:
    pool = _kernels.ArrayPool()
    sizes = (5 << 14, 4 << 14, 9 << 13)
    pieces, between = [], []
    for size in sizes:
        pieces.append(pool.empty((size,)))
        between.append(pool.empty((1 << 12,)))
    places = [address(array) for array in pieces]
    pieces.clear()
    assert address(pool.empty((4 << 14,))) == places[1]
    assert len(between) == 3


def test_what_is_out_and_idle_together_stays_near_what_was_out_at_one_time() -> None:
    """As in a training step: small arrays of the forward pass are gone when the backward pass asks for a large one."""
    pool = _kernels.ArrayPool()
    small = [pool.empty((1 << 16,)) for _ in range(16)]
    del small
    gc.collect()
    large = pool.empty((1 << 19,))
    assert large.size + pool.idle <= (16 << 16) * 9 // 8


def test_memory_that_is_released_is_taken_anew() -> None:
    pool = _kernels.ArrayPool()
    kept, dropped = pool.empty((1 << 16,)), pool.empty((1 << 20,))
    kept[:] = 5
    dropped[:] = 7
    del dropped
    pool.release_idle()
    assert pool.idle == 0
    again = pool.empty((1 << 20,))
    assert (kept == 5).all()
    again[:] = 3
    assert (again == 3).all()


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(MemoryError):
        _kernels.ArrayPool().empty((1 << 40, 1 << 40))


def test_threads_never_share_memory() -> None:
    pool = _kernels.ArrayPool()

    def work(number: int) -> bool:
        for _ in range(200):
            array = pool.empty((1 << 12,))
            array[:] = number
            if not (array == number).all():
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))
