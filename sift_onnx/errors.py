"""What a user's mistake raises.

Every error says what is wrong, where (file, node or setting) and what to do, in one line; the command line prints that
line and leaves with ``exit_code``. A setting is named as in Python, between backquotes, as in "drop `keep_dense`"; the
command line puts its option there (:mod:`sift_onnx.cli.flags`). Anything else that escapes is a defect of this package
and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BackendError",
    "BudgetError",
    "CheckError",
    "MaskWarning",
    "MissingExtraError",
    "ModelReadError",
    "OutputError",
    "PluginError",
    "PreconditionError",
    "ShapeCheckError",
    "SiftError",
    "UnsupportedError",
    "UsageError",
    "listing",
    "printable",
]

_MESSAGE_LENGTH = 1600


def printable(text: str) -> str:
    """``text`` with line ends and other control characters spelled out, as Python would write them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def listing(texts: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """The first ``most`` of ``texts``, and how many more there are."""
    return separator.join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


class SiftError(Exception):
    """The root of what this package raises on purpose."""

    exit_code = 1

    def __str__(self) -> str:
        """The message in one line of bounded length: names in it come from files."""
        text = printable(super().__str__())
        if len(text) <= _MESSAGE_LENGTH:
            return text
        return f"{text[: _MESSAGE_LENGTH // 2]} ... {text[-_MESSAGE_LENGTH // 2 :]}"


class CheckError(SiftError):
    """A check failed or a gate was missed."""

    exit_code = 1


class ShapeCheckError(CheckError):
    """A shape predicted by the analysis differs from the one that shape inference finds afterwards."""


class UsageError(SiftError, ValueError):
    """An argument is out of its range, or arguments contradict each other."""

    exit_code = 2


class ModelReadError(UsageError):
    """A file cannot be read as an ONNX model."""


class OutputError(UsageError):
    """A file cannot be written."""


class PreconditionError(UsageError):
    """A pass got a model that it must not be applied to."""


class UnsupportedError(SiftError):
    """A model or an operator that is not supported."""

    exit_code = 3


class BudgetError(UnsupportedError):
    """The multiply-accumulates of the original cannot be matched."""


class BackendError(SiftError):
    """A back end is not installed, or refused the model."""

    exit_code = 4


class MissingExtraError(BackendError, ImportError):
    """An optional part of this package, or a package that it works with, is not installed."""


class PluginError(BackendError):
    """What another package adds to this one does not load."""


class MaskWarning(UserWarning):
    """A mask in a file matches no weight for certain, or its weight has changed."""
