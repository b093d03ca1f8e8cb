"""The settings that a pass declares: the fields of its dataclass, or the arguments of a constructor written by hand.

The annotation of a setting holds its type, and as ``Annotated`` a line of help and a
:class:`~sift_onnx.passes.settings.Form`. The checks of recipes and the record in a model derive from it.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from sift_onnx.errors import UsageError
from sift_onnx.passes.settings import Count, Form, Globs, InputShapes
from sift_onnx.settings.convert import convert, suggestion

__all__ = [
    "Setting",
    "declared_settings",
    "field_hints",
    "hold_settings",
    "make",
    "noted_settings",
    "resolve_annotations",
]

Made = TypeVar("Made")

# Plain annotations of constructors in plug-ins, and the annotated types that they stand for.
_MEANT: dict[Any, Any] = {
    int: Count,
    Sequence[str]: Globs,
    Mapping[str, Sequence[int]]: InputShapes,
    Mapping[str, Sequence[int]] | None: InputShapes,
}


@dataclass(frozen=True)
class Setting:
    """One setting of a pass.

    Attributes:
        name: of the argument.
        annotation: its type.
        default: where the setting is not given; ``Parameter.empty`` if it has to be.
        help: one line for users.
        form: the forms that it is held and noted in.
    """

    name: str
    annotation: Any
    default: Any
    help: str
    form: Form

    @property
    def choices(self) -> tuple[Any, ...]:
        """The words that it may be, where there are a few."""
        bare = get_args(self.annotation)[0] if get_origin(self.annotation) is Annotated else self.annotation
        return get_args(bare) if get_origin(bare) is Literal else ()

    def read(self, value: Any, pass_name: str) -> Any:
        """A value as the pass holds it.

        Raises:
            UsageError: it is of the wrong type, or out of its range.
        """
        if not self.form.for_files:
            return value
        if self.choices and isinstance(value, str) and value not in self.choices:
            refused = self.form.refused.replace("{pass}", pass_name)
            raise UsageError(f"{self.name} {value!r} {refused}; choose one of {', '.join(self.choices)}")
        try:
            read = convert(value, self.annotation, where=f"the setting {self.name!r} of {pass_name}")
        except TypeError:  # a value of a type that files do not have
            read = value
        return self.form.held(read)


def declared_settings(pass_class: type[Any]) -> Mapping[str, Setting]:
    """The settings of a pass by name: those that have to be given, then its own, then those of its bases."""
    return _declared(cast(Hashable, pass_class))


@functools.cache
def _declared(pass_class: Any) -> Mapping[str, Setting]:
    by_hand = _is_written_by_hand(pass_class)
    hints = get_type_hints(pass_class.__init__, include_extras=True) if by_hand else field_hints(pass_class)
    found: list[Setting] = []
    for name, parameter in signature(pass_class).parameters.items():
        if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            continue
        annotation = hints.get(name, Any)
        annotation = _MEANT.get(annotation, annotation) if by_hand else annotation
        more = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
        form = next((extra for extra in reversed(more) if isinstance(extra, Form)), Form())
        text = next((extra for extra in reversed(more) if isinstance(extra, str)), "")
        found.append(Setting(name, annotation, parameter.default, text, form))
    bases = pass_class.__mro__

    def rank(setting: Setting) -> tuple[bool, int]:
        declaring = (i for i, base in enumerate(bases) if setting.name in vars(base).get("__annotations__", {}))
        return setting.default is not Parameter.empty, next(declaring, len(bases))

    return {setting.name: setting for setting in sorted(found, key=rank)}


def resolve_annotations(pass_class: type[Any]) -> None:
    """Give the constructor of a dataclass types for annotations.

    Its annotations are texts, also those of inherited fields, whose names may be unknown in the module of the class.
    """
    if not _is_written_by_hand(pass_class):
        hints = field_hints(pass_class, include_extras=False)
        constructor = pass_class.__init__
        constructor.__annotations__ = {name: hints.get(name) for name in constructor.__annotations__}


def field_hints(pass_class: type[Any], *, include_extras: bool = True) -> dict[str, Any]:
    """Types of the fields of a dataclass by name."""
    # Up to Python 3.10, typing refuses annotations that are not types: KW_ONLY, which separates fields, is none.
    return get_type_hints(pass_class, localns={"KW_ONLY": object}, include_extras=include_extras)


def _is_written_by_hand(pass_class: type[Any]) -> bool:
    """Whether a constructor is used that is not that of a dataclass."""
    constructor = next(base for base in pass_class.__mro__ if "__init__" in vars(base))
    return constructor is not _with_fields(pass_class)


def _with_fields(pass_class: type[Any]) -> type[Any] | None:
    """The class itself or the nearest of its bases that is a dataclass."""
    return next((base for base in pass_class.__mro__ if "__dataclass_fields__" in vars(base)), None)


def make(pass_class: type[Made], given: Mapping[str, Any]) -> Made:
    """A pass with the settings of a recipe.

    Raises:
        UsageError: a setting is unknown, missing, of the wrong type, or out of its range.
    """
    pass_name, declared = pass_class.name, declared_settings(pass_class)  # type: ignore[attr-defined]
    for name in given:
        if name not in declared:
            known = f"its settings are {', '.join(declared)}" if declared else "it has none"
            raise UsageError(f"{pass_name} has no setting {name!r}; {known}{suggestion(name, declared)}")
    for name, setting in declared.items():
        if setting.default is Parameter.empty and name not in given:
            raise UsageError(f"{pass_name} needs the setting {name!r}; write '{name}: ...'")
    if _is_written_by_hand(pass_class):
        given = {name: declared[name].read(value, pass_name) for name, value in given.items()}
    return pass_class(**given)  # a dataclass reads them itself


def hold_settings(pass_: Any) -> None:
    """Replace the fields of a new pass by what it holds.

    Raises:
        UsageError: a setting is of the wrong type, or out of its range.
    """
    for name, setting in _fields_of(pass_).items():
        object.__setattr__(pass_, name, setting.read(getattr(pass_, name), pass_.name))


def noted_settings(pass_: Any) -> dict[str, Any]:
    """The settings of a pass as a model notes them, ready for JSON."""
    noted = {}
    for name, setting in _fields_of(pass_).items():
        form, held = setting.form, getattr(pass_, name)
        if form.when_noted == "always" or (form.when_noted == "unless default" and held != form.held(setting.default)):
            noted[name] = form.noted(held)
    return noted


def _fields_of(pass_: Any) -> Mapping[str, Setting]:
    pass_class = _with_fields(type(pass_))
    return declared_settings(pass_class) if pass_class is not None else {}
