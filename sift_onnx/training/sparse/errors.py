"""What a mistake in a sparsity recipe raises: this package's errors, which are Python's built-in ones as well."""

from __future__ import annotations

from typing import NoReturn

from sift_onnx.errors import SiftError, UsageError

__all__ = ["MissingSettingError", "SparsityStateError", "WrongTypeError", "refuse_pickling"]


class MissingSettingError(UsageError, KeyError):
    """A recipe lacks a key that it needs."""

    # KeyError would show the message in quotes.
    __str__ = Exception.__str__


class WrongTypeError(UsageError, TypeError):
    """An argument is of a kind that has no meaning here."""


class SparsityStateError(SiftError, RuntimeError):
    """Calls came in an order that leaves a mask, a gradient or an optimizer undefined."""

    exit_code = 2


def refuse_pickling(what: str) -> NoReturn:
    """Refuse to pickle an algorithm at work, since an optimizer loses in a pickle what keeps it within the masks.

    Raises:
        UsageError: always; it says what to save.
    """
    raise UsageError(
        f"{what} cannot be pickled: it belongs to this model and its optimizer; save the state_dict() of the model "
        "(it has the masks), of the optimizer and of the algorithm, or write the model with sift_onnx.write_back"
    )
