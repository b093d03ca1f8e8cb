"""The registry of what is known about operators."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import pytest

from sift_onnx.analysis import rule_registry
from sift_onnx.errors import UsageError
from sift_onnx.operators.registry import Registry


@pytest.fixture
def registry() -> Registry[str]:
    return Registry("a word")


def test_an_entry_is_found_by_either_name_of_the_standard_domain(registry):
    registry.add("Relu", "ours", domain="ai.onnx")
    assert [registry.find("Relu", domain) for domain in ("", None, "ai.onnx")] == ["ours"] * 3
    assert registry.find("Relu", "com.example") is None


def test_a_second_entry_is_an_error_unless_it_replaces_the_first(registry):
    registry.add("Relu", "first")
    with pytest.raises(UsageError, match=r"ai\.onnx::Relu has a word already; replace=True"):
        registry.add("Relu", "second")
    assert registry.find("Relu") == "first"
    registry.add("Relu", "second", replace=True)
    assert registry.find("Relu") == "second"


def test_the_same_entry_may_be_registered_twice(registry):
    registry.add("Relu", "same")
    registry.add("Relu", "same")
    assert registry.find("Relu") == "same"


def test_the_newest_entry_that_a_version_has_is_found(registry):
    for since in (1, 13, 7):
        registry.add("Clip", f"from {since}", since=since)
    assert [registry.find("Clip", version=v) for v in (1, 6, 7, 12, 13, 20)] == [
        "from 1", "from 1", "from 7", "from 7", "from 13", "from 13",
    ]  # fmt: skip
    assert registry.find("Clip") == "from 13"


def test_before_the_first_version_there_is_no_entry(registry):
    registry.add("Clip", "from 6", since=6)
    assert registry.find("Clip", version=5) is None


def test_what_is_only_new_replaces_nothing_even_if_it_says_so(registry):
    registry.add("Relu", "ours")

    def load():
        registry.add("Mish", "theirs")
        registry.add("Relu", "theirs", replace=True)

    with pytest.raises(UsageError, match="Relu"), registry.only_new():
        load()
    assert registry.find("Relu") == "ours"
    assert registry.find("Mish") is None


def test_what_is_only_new_stays_if_nothing_fails(registry):
    with registry.only_new():
        registry.add("Mish", "theirs")
    registry.add("Mish", "mine", replace=True)
    assert registry.find("Mish") == "mine"


def test_entries_are_listed_by_domain_operator_and_version(registry):
    registry.add("B", "3", since=2)
    registry.add("B", "2")
    registry.add("A", "1")
    registry.add("A", "4", domain="com.example")
    assert list(registry.items()) == [
        ("", "A", 1, "1"), ("", "B", 1, "2"), ("", "B", 2, "3"), ("com.example", "A", 1, "4"),
    ]  # fmt: skip


def test_built_in_entries_come_before_any_other(monkeypatch, tmp_path):
    """A user who replaces a built-in entry does so whether or not it has been looked up before."""
    holder = ModuleType("words_holder")
    monkeypatch.setitem(sys.modules, "words_holder", holder)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "built_in_words.py").write_text(
        "from words_holder import registry\n"
        "registry.add('Relu', 'built in')\n"
        "assert registry.find('Relu') == 'built in'\n"
    )
    holder.registry = Registry("a word", built_in="built_in_words")
    with pytest.raises(UsageError, match="Relu"):
        holder.registry.add("Relu", "theirs")
    holder.registry.add("Relu", "mine", replace=True)
    assert holder.registry.find("Relu") == "mine"
    del sys.modules["built_in_words"]


def test_threads_find_built_in_entries_while_another_loads_them(monkeypatch, tmp_path):
    holder = ModuleType("words_holder")
    monkeypatch.setitem(sys.modules, "words_holder", holder)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slow_words.py").write_text(
        "from words_holder import loading, registry, waiting\n"
        "loading.set()\n"
        "assert waiting.wait(10)\n"
        "registry.add('Relu', 'built in')\n"
    )
    holder.loading, holder.waiting = threading.Event(), threading.Event()
    holder.registry = Registry("a word", built_in="slow_words")
    found: list[str | None] = []
    first = threading.Thread(target=lambda: found.append(holder.registry.find("Relu")))
    first.start()
    assert holder.loading.wait(10)
    second = threading.Thread(target=lambda: found.append(holder.registry.find("Relu")))
    second.start()
    holder.waiting.set()
    first.join()
    second.join()
    assert found == ["built in", "built in"]
    del sys.modules["slow_words"]


def test_no_operator_has_two_axis_rules_of_ours():
    with pytest.raises(UsageError, match=r"ai\.onnx::Conv has an axis rule already"):
        rule_registry.axis_rule("Conv")(lambda ctx: None)
