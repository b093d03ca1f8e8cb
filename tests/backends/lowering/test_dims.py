"""Sizes as expressions."""

from sift_onnx.backends.lowering.dims import added, bound, cut, difference, names_in, product, quotient, solved, window


def test_sizes_that_are_provably_equal():
    assert product(["n", 4, 2]) == product([8, "n"])
    assert quotient(product(["n", 128, 512]), 512) == product(["n", 128])
    assert window("h", 3, 1, 1, (1, 1)) == "h"
    assert window("h", 3, 2, 1, (1, 1)) != "h"
    assert window(9, 2, 2, 1, (0, 0), ceil_mode=True) == 5


def test_names_stand_for_the_numbers_of_a_run():
    known = {"n": 2, "h": 9}
    assert bound(product(["n", "h", 3]), known) == 54
    assert bound(quotient(product(["h", "t"]), "n"), known) == quotient(product([9, "t"]), 2)
    for pads in ((1, 1), (0, 0)):
        assert bound(window("h", 3, 2, 2, pads), known) == window(9, 3, 2, 2, pads)
    assert bound(cut(512, "n"), known) == 2
    assert bound(cut(512, "t"), known) == cut(512, "t")
    assert names_in(product(["n", "t", 4])) == {"n", "t"}


def test_the_only_open_name_of_two_equal_sizes():
    assert solved(product(["t", "n", 256]), product([128, 4, "n", 64])) == ("t", 128)
    assert solved(product([128, "n"]), product(["t", "n", 2])) == ("t", 64)
    assert solved(product(["t", "n"]), 64) is None
    assert solved(product(["t", 3]), 64) is None
    assert solved("t", "t") is None


def test_sums_know_their_terms_in_any_order():
    whole = added(["past", 3, "new", -3])
    assert whole == added(["new", "past"]) == ("sum", 0, "new", "past")
    assert added(["past", 0]) == "past"
    assert added([2, 3]) == 5
    assert difference(whole, "new") == "past"
    assert difference(whole, added(["new", 2])) == added(["past", -2])
    assert difference("past", "new") is None
    assert bound(whole, {"past": 4}) == added([4, "new"])
    assert bound(whole, {"past": 4, "new": 1}) == 5
    assert names_in(whole) == {"past", "new"}
