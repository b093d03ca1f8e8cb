"""Batches in slabs, tensors in scratch memory."""

from hypothesis import given
from hypothesis import strategies as st

from sift_onnx.backends.cpu.run.scratch import ALIGNMENT, Lifetime, pack
from sift_onnx.backends.cpu.run.slabs import cut


@given(st.integers(0, 200), st.integers(1, 1 << 26), st.booleans())
def test_slabs_cover_the_batch_once(count, size, only_rows):
    slabs = cut(count, size, only_rows)
    covered = [image for slab in slabs for image in range(slab.first, slab.first + slab.count)]
    assert covered == list(range(count))
    assert all(slab.layout == "planes" for slab in slabs if slab.count < 12)


def test_a_remainder_runs_with_pixels_in_lanes():
    assert [(s.first, s.count, s.layout) for s in cut(33, 1 << 30, False)] == [
        (0, 16, "images16"),
        (16, 16, "images16"),
        (32, 1, "planes"),
    ]


def test_images_that_run_one_by_one_have_no_lanes_of_their_own():
    assert [(s.count, s.layout) for s in cut(17, 64 << 20, False, single=True)] == [(2, "planes")] * 8 + [(1, "planes")]


def test_rows_are_not_cut_since_every_slab_reads_the_weights():
    assert [slab.count for slab in cut(256, 1 << 30, True)] == [256]


lifetimes = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(0, 400),
    st.integers(0, 10),
    st.integers(0, 5),
)


@given(st.lists(lifetimes, max_size=15))
def test_tensors_of_one_time_do_not_overlap(tensors):
    named = {str(i): tensor for i, tensor in enumerate(tensors)}
    offsets, total = pack(named)
    for name, own in named.items():
        assert offsets[name] % ALIGNMENT == 0
        assert offsets[name] + own.size <= total
        for other, tensor in named.items():
            if name != other and own.first <= tensor.last and tensor.first <= own.last:
                apart = offsets[name] + own.size <= offsets[other] or offsets[other] + tensor.size <= offsets[name]
                assert apart


def test_memory_is_used_again():
    _, total = pack({"a": Lifetime(128, 0, 1), "b": Lifetime(128, 1, 2), "c": Lifetime(128, 2, 3)})
    assert total == 256
