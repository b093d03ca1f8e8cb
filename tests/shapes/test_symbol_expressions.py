from __future__ import annotations

import pytest

from sift_onnx.shapes.symbol_expressions import names_in, size_of_symbol

SIZES = {"past_sequence_length": 7, "sequence_length": 5, "DynamicDimension.0": 2, "N": 3}


@pytest.mark.parametrize(
    ("symbol", "size"),
    [
        ("N", 3),
        ("DynamicDimension.0", 2),
        ("past_sequence_length + sequence_length", 12),
        ("past_sequence_length+1", 8),
        ("2*N - 1", 5),
        ("past_sequence_length//2", 3),
        ("total_sequence_length", 12),
        ("M", None),
        ("N + M", None),
        ("N - sequence_length", None),
        ("N // (N - 3)", None),
        ("N ** 9", None),
        ("__import__('os')", None),
        ("batch size", None),
        ("(" * 500 + "N" + ")" * 500, None),
    ],
)
def test_a_symbol_has_the_size_that_follows_from_others(symbol: str, size: int | None) -> None:
    assert size_of_symbol(symbol, SIZES) == size


def test_names_are_those_that_a_symbol_is_computed_from() -> None:
    assert names_in("a + 2*b") == {"a", "b"}
    assert names_in("DynamicDimension.0") == {"DynamicDimension.0"}
    assert names_in("total_sequence_length") == {"past_sequence_length", "sequence_length"}
