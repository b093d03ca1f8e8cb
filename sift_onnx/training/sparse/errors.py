"""What a mistake in a sparsity recipe raises: this package's errors, which are Python's built-in ones as well."""

from __future__ import annotations

from sift_onnx.errors import SiftError, UsageError

__all__ = ["MissingSettingError", "SparsityStateError", "WrongTypeError"]


class MissingSettingError(UsageError, KeyError):
    """A recipe lacks a key that it needs."""

    # KeyError would show the message in quotes.
    __str__ = Exception.__str__


class WrongTypeError(UsageError, TypeError):
    """An argument is of a kind that has no meaning here."""


class SparsityStateError(SiftError, RuntimeError):
    """Calls came in an order that leaves a mask, a gradient or an optimizer undefined."""

    exit_code = 2
