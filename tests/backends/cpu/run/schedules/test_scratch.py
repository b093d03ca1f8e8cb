"""Tensors in scratch memory."""

from hypothesis import given
from hypothesis import strategies as st

from sift_onnx.backends.cpu.run.schedules.scratch import ALIGNMENT, Lifetime, pack

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
