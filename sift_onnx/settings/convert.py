"""Conversion of plain values (what YAML, JSON and TOML hold) to annotated types."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import msgspec
import numpy as np

from sift_onnx.errors import UsageError
from sift_onnx.settings.faults import fault_of
from sift_onnx.settings.typed import typed

__all__ = ["convert", "expected", "suggestion"]

T = TypeVar("T")

# YAML 1.1 takes an exponent without a point, as in 1e-3, for text.
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?\s*")
_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a text, in quotes if need be"}
_BOUNDS = (("ge", "{:g} or more"), ("gt", "above {:g}"), ("le", "at most {:g}"), ("lt", "below {:g}"))


@overload
def convert(value: Any, annotation: type[T], *, where: str, ask: str = "write", ignore_unknown: bool = False) -> T: ...
@overload
def convert(value: Any, annotation: Any, *, where: str, ask: str = "write", ignore_unknown: bool = False) -> Any: ...
def convert(value: Any, annotation: Any, *, where: str, ask: str = "write", ignore_unknown: bool = False) -> Any:
    """``value`` as ``annotation`` wants it.

    Numbers, texts and booleans are not turned into each other, with two exceptions: a whole number is a ``float``, and
    so is a text that spells one. Bounds are :class:`msgspec.Meta`; its ``description`` replaces what an error says is
    expected. Errors of a ``__post_init__`` are handed on with their place.

    Args:
        value: what YAML, JSON or TOML hold, or an instance of the type itself.
        annotation: a type: a dataclass, a ``Literal``, containers and unions of those.
        where: what the value is, for errors, such as ``recipe.yaml, training``.
        ask: how errors introduce what is expected.
        ignore_unknown: whether mappings may hold names that a dataclass lacks.

    Raises:
        UsageError: the value does not fit; the message names the place, the value and what is expected.
        TypeError: no plain value has the type ``annotation``.
    """
    if value is None and NoneType in get_args(_unwrapped(annotation)[0]):
        return None
    ready = _ready(value, annotation, _Place(where, ignore_unknown))
    *others, last = _alternatives(annotation)
    for alternative in others:
        try:
            return typed(ready, alternative)
        except msgspec.ValidationError:
            continue
    try:
        return typed(ready, last)
    except msgspec.ValidationError as error:
        raise _reworded(error, ready, annotation, where, ask) from error


def expected(annotation: Any) -> str:
    """What a value of that annotation looks like, in words."""
    bare, metas = _unwrapped(annotation)
    description = next((meta.description for meta in metas if meta.description), None)
    if description:
        return description
    alternatives = _alternatives(annotation)
    if alternatives != (annotation,):
        return " or ".join(dict.fromkeys(expected(alternative) for alternative in alternatives))
    origin = get_origin(bare)
    if origin is Literal:
        return f"a text, one of {', '.join(map(str, get_args(bare)))}"
    if dataclasses.is_dataclass(bare) or (isinstance(origin or bare, type) and issubclass(origin or bare, Mapping)):
        return "a mapping, as {name: value}"
    if isinstance(origin or bare, type) and issubclass(origin or bare, Collection) and bare is not str:
        size = len(get_args(bare)) if origin is tuple and Ellipsis not in get_args(bare) else 0
        return f"a list of {size}" if size else "a list"
    bounds = [
        words.format(bound) for meta in metas for key, words in _BOUNDS if (bound := getattr(meta, key)) is not None
    ]
    plain = _PLAIN.get(bare, f"a value of the type {getattr(bare, '__name__', bare)}")
    return f"{plain}, {' and '.join(bounds)}" if bounds else plain


def suggestion(name: object, names: Collection[str]) -> str:
    """The end of an error about an unknown ``name``: the one of ``names`` that it is close to, if there is one."""
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.75)
    return f"; did you mean {near[0]!r}?" if near else ""


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where in the outermost value a nested one is.

    Attributes:
        where: of the outermost value.
        ignore_unknown: as of :func:`convert`.
        path: names and indices, as ``optimizer.betas[0]``.
    """

    where: str
    ignore_unknown: bool
    path: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.path}" if self.path else self.where

    def at(self, step: str | int) -> _Place:
        inner = f"[{step}]" if isinstance(step, int) else f".{step}"
        return dataclasses.replace(self, path=(self.path + inner).removeprefix("."))


def _ready(value: Any, annotation: Any, place: _Place) -> Any:
    """``value`` with numpy's scalars and the spellings of numbers resolved; names of dataclasses are checked."""
    if isinstance(value, np.generic):
        # The decimal that is shown: of half and single precision, an item has digits that were never written.
        value = float(str(value)) if isinstance(value, np.floating) else value.item()
    kinds = [_unwrapped(alternative)[0] for alternative in _alternatives(annotation)]
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:  # bytes of a command line that are not UTF-8
            raise UsageError(f"{place} is {value!r}, which is not UTF-8 text") from error
        spelled = float in kinds and str not in kinds and _NUMBER.fullmatch(value)
        return float(value) if spelled else value
    for kind in kinds:
        arguments = get_args(kind)
        if isinstance(value, Mapping) and dataclasses.is_dataclass(kind):
            hints = get_type_hints(kind, include_extras=True)
            fields = [field.name for field in dataclasses.fields(kind) if field.init]
            unknown = [name for name in value if name not in fields]
            if unknown and not place.ignore_unknown:
                there = f"there are {', '.join(fields)}{suggestion(unknown[0], fields)}"
                raise UsageError(f"{place} has no setting {unknown[0]!r}; {there}")
            return {name: _ready(v, hints[name], place.at(name)) for name, v in value.items() if name in fields}
        if isinstance(value, Mapping) and len(arguments) == 2:
            return {name: _ready(v, arguments[1], place.at(str(name))) for name, v in value.items()}
        if isinstance(value, (list, tuple)) and arguments and get_origin(kind) is not Literal:
            per_item = arguments if len(arguments) == len(value) and Ellipsis not in arguments else arguments[:1]
            items = per_item * len(value) if len(per_item) == 1 else per_item
            return [_ready(v, item, place.at(i)) for i, (v, item) in enumerate(zip(value, items, strict=True))]
    return value


def _reworded(error: msgspec.ValidationError, value: Any, annotation: Any, where: str, ask: str) -> UsageError:
    """The error in our words, at the innermost place that is known and has no description around it."""
    fault = fault_of(error)
    place = _Place(where, ignore_unknown=False)
    for step in fault.steps:
        kind, metas = _unwrapped(_alternatives(annotation)[-1])
        metas = [*metas, *_unwrapped(annotation)[1]]
        if any(meta.description for meta in metas) or step is None:
            break
        if isinstance(step, str):
            annotation = get_type_hints(kind, include_extras=True)[step]
        else:
            items = get_args(kind)
            annotation = items[0] if Ellipsis in items or len(items) <= step else items[step]
        value, place = value[step], place.at(step)
    if error.__cause__ is not None:
        return UsageError(f"{place}: {error.__cause__}")
    if fault.missing:
        return UsageError(f"{place} needs {fault.missing!r}; {ask} '{fault.missing}: ...'")
    kind, _ = _unwrapped(_alternatives(annotation)[-1])
    if get_origin(kind) is Literal and isinstance(value, str):
        return UsageError(f"{place} is {value!r}; choose one of {', '.join(map(str, get_args(kind)))}")
    return UsageError(f"{place} is {value!r}; {ask} {expected(annotation)}")


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The types of a union but for None; of another annotation itself."""
    kind, metas = _unwrapped(annotation)
    if get_origin(kind) not in (Union, UnionType):
        return (annotation,)
    alternatives = tuple(alternative for alternative in get_args(kind) if alternative is not NoneType)
    # Bounds are of the one type that there is besides None.
    return (Annotated[(alternatives[0], *metas)],) if metas and len(alternatives) == 1 else alternatives


def _unwrapped(annotation: Any) -> tuple[Any, list[msgspec.Meta]]:
    """An annotation without ``Annotated``, and what that adds."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    bare, *more = get_args(annotation)
    return bare, [meta for meta in more if isinstance(meta, msgspec.Meta)]
