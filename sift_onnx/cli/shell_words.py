"""Completion of words with a colon or an equals sign in them: ``dataflow:wse2``, ``--method=random``.

What click answers is the value alone, and what a shell puts it in the place of differs.
"""

from __future__ import annotations

import os

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

__all__ = ["BrokenWordsBashComplete", "WholeWordsFishComplete", "WholeWordsZshComplete"]


@add_completion_class
class BrokenWordsBashComplete(BashComplete):
    """Bash ends a word at a colon or an equals sign (``COMP_WORDBREAKS``), and takes either for a separate word.

    Words are joined again at a colon; answers then begin after the last one. An equals sign after an option is
    left out.
    """

    _behind = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        given = split_arg_string(os.environ["COMP_WORDS"])
        current = int(os.environ["COMP_CWORD"])
        self._behind = ""
        if current >= len(given):  # an empty word is not among those that were given
            given.append("")
        words: list[str] = []
        is_open = at_colon = False
        for word in given[: current + 1]:
            at_colon = word == ":" or (at_colon and is_open)
            if word == "=" and words[-1].startswith("--"):
                words.append("")
            elif word == ":" or is_open:
                words[-1] += word
            else:
                words.append(word)
            is_open = word in ("=", ":")
        if at_colon:
            self._behind = words[-1].rpartition(":")[0] + ":"
        return words[1:-1], words[-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        items = super().get_completions(args, incomplete)
        return [CompletionItem(i.value.removeprefix(self._behind), i.type, i.help) for i in items]


class _WholeWords(ShellComplete):
    """Zsh and fish put an answer in the place of the whole word, so it begins with the option."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        option, equals, _ = incomplete.partition("=")
        items = super().get_completions(args, incomplete)
        if not equals or not option.startswith("--") or "--" in args:
            return items
        return [CompletionItem(f"{option}={i.value}", i.type, i.help) if i.type == "plain" else i for i in items]


@add_completion_class
class WholeWordsZshComplete(_WholeWords, ZshComplete):
    """Completion in zsh."""


@add_completion_class
class WholeWordsFishComplete(_WholeWords, FishComplete):
    """Completion in fish."""
