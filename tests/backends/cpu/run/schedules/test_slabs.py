"""Batches in slabs."""

from hypothesis import given
from hypothesis import strategies as st

from sift_onnx.backends.cpu.run.schedules.slabs import cut


@given(st.integers(0, 200), st.integers(1, 1 << 26), st.sampled_from(("", "only_rows", "apart", "in_groups")))
def test_slabs_cover_the_batch_once(count, size, kind):
    slabs = cut(count, lambda: size, **({kind: True} if kind else {}))
    covered = [image for slab in slabs for image in range(slab.first, slab.first + slab.count)]
    assert covered == list(range(count))
    assert all(slab.layout == "planes" for slab in slabs if slab.count < 12)


def test_a_remainder_runs_with_pixels_in_lanes():
    assert [(s.first, s.count, s.layout) for s in cut(33, lambda: 1 << 30)] == [
        (0, 16, "images16"),
        (16, 16, "images16"),
        (32, 1, "planes"),
    ]


def test_images_that_run_one_by_one_have_no_lanes_of_their_own():
    assert [(s.count, s.layout) for s in cut(17, lambda: 64 << 20, single=True)] == [(1, "planes")] * 17


def test_rows_are_not_cut_since_every_slab_reads_the_weights():
    assert [slab.count for slab in cut(256, lambda: 1 << 30, only_rows=True)] == [256]


def test_groups_of_images_are_slabs_and_a_remainder_stays_together():
    slabs = cut(53, lambda: 1, in_groups=True)
    assert [(s.count, s.layout) for s in slabs] == [*[(16, "images16")] * 3, (5, "planes")]
    assert [s.count for s in cut(45, lambda: 1, in_groups=True)] == [16, 16, 13]
    assert [s.count for s in cut(45, lambda: 1)] == [45]
