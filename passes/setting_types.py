"""Settings of passes as recipes give them: checked by the annotations of the pass's constructor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from numbers import Integral
from typing import Any, get_args, get_origin, get_type_hints

from sift_onnx.errors import UsageError
from sift_onnx.passes.base import Pass

__all__ = ["check_settings"]


def check_settings(pass_class: type[Pass], settings: Mapping[str, Any]) -> None:
    """Refuse what the constructor of ``pass_class`` would not take, or would take for something else.

    Args:
        pass_class: the pass.
        settings: its keyword arguments.

    Raises:
        UsageError: a setting is unknown, missing, or of the wrong type.
    """
    parameters = {
        name: parameter
        for name, parameter in signature(pass_class).parameters.items()
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    for name in settings:
        if name not in parameters:
            known = f"its settings are {', '.join(parameters)}" if parameters else "it has none"
            raise UsageError(f"{pass_class.name} has no setting {name!r}; {known}")
    for name, parameter in parameters.items():
        if parameter.default is Parameter.empty and name not in settings:
            raise UsageError(f"{pass_class.name} needs the setting {name!r}; write '{name}: ...'")
    hints = get_type_hints(pass_class.__init__)
    for name, value in settings.items():
        wanted = _wanted(hints.get(name))
        if wanted is not None and not wanted[1](value):
            raise UsageError(f"the setting {name!r} of {pass_class.name} is {value!r}; write {wanted[0]}")


def _wanted(hint: Any) -> tuple[str, Callable[[Any], bool]] | None:
    """What a value of that annotation looks like, and whether one does; None for what only Python can give."""
    origin, arguments = get_origin(hint), get_args(hint) or (hint,)
    if hint is bool:
        return "true or false", lambda value: isinstance(value, bool)
    if hint is int:
        return "a whole number, 0 or more", _is_size
    if float in arguments:
        return "a number", lambda value: value is not None and not isinstance(value, (bool, list, dict))
    if origin is Sequence:
        return 'a list of names, as ["layer1.*"]', _is_names
    if Mapping in (origin, *map(get_origin, arguments)):
        return "a mapping from inputs to sizes, as {x: [1, 3, 224, 224]}", _is_shapes
    if str in arguments or all(isinstance(argument, str) for argument in arguments):
        # A pattern, or one of several words; which words, the pass knows.
        return (
            "a text, in quotes if need be",
            lambda value: value is not None and not isinstance(value, (bool, int, float, list, dict)),
        )
    return None


def _is_size(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _is_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


def _is_shapes(value: Any) -> bool:
    return value is None or (
        isinstance(value, Mapping)
        and all(
            isinstance(name, str) and isinstance(shape, (list, tuple)) and all(_is_size(size) for size in shape)
            for name, shape in value.items()
        )
    )
