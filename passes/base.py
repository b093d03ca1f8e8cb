"""The base class of passes, ``pass_(model) -> PassResult``, their registry, and the history that models record."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from sift_onnx.errors import ModelReadError, PluginError, PreconditionError, UsageError
from sift_onnx.model import Model, ModelLike
from sift_onnx.passes.declared_settings import hold_settings, noted_settings
from sift_onnx.plugins import PASSES, plugin_class, plugin_names
from sift_onnx.recipe import OUTCOMES

__all__ = [
    "BUILT_IN",
    "HISTORY_KEY",
    "Pass",
    "PassResult",
    "already_applied",
    "applied",
    "came_of",
    "folded_by_passes",
    "get_pass",
    "history",
    "made_by_transforms",
    "pass_names",
    "plugin_pass",
    "prepared",
    "record",
    "register_pass",
]

# Entry of the model's metadata_props that lists the transforms it went through.
HISTORY_KEY = "sift_onnx"
_MADE, _FOLDED = OUTCOMES
# What an entry holds besides the settings that tell one transform from another.
_BESIDES = (*OUTCOMES, "input_shapes")


@dataclass(frozen=True)
class PassResult:
    """What a pass returns.

    Attributes:
        model: the model after the pass; the very model that came in where nothing changed.
        changed: whether anything did.
        report: what was done, ready for JSON.
    """

    model: Model
    changed: bool
    report: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"PassResult(model={self.model!r}, changed={self.changed}, report=<{len(self.report)} entries>)"


class Pass(ABC):
    """A rewrite of a model.

    What every pass ensures:

    - The given model is not modified.
    - If there is nothing to do, ``changed`` is false and ``model`` is the given object; else it is another object.
    - Applied to its own output with the same settings, it changes nothing.

    The class docstring says what a pass requires, does and ensures.

    The settings of a pass are the fields of a frozen dataclass; see :mod:`sift_onnx.passes.declared_settings`.

    Attributes:
        name: in recipes.
        is_noted: whether the pass records its settings in the models that it makes. If not, models do not tell whether
            it was applied: a recipe that is run again applies it again.
    """

    name: ClassVar[str]
    is_noted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Read the settings.

        Raises:
            UsageError: one is of the wrong type or out of its range, or some contradict each other.
        """
        hold_settings(self)
        self.check_settings()

    def check_settings(self) -> None:  # noqa: B027
        """Refuse settings that contradict each other; none do by default."""

    def __call__(self, model: ModelLike) -> PassResult:
        """Apply the pass to anything that :meth:`Model.load` takes.

        Raises:
            PluginError: ``call`` returns something else than a :class:`PassResult`.
        """
        result = self.call(Model.load(model))
        if not isinstance(result, PassResult):
            raise PluginError(
                f"the pass {self.name!r} of {type(self).__module__} returns {type(result).__name__} and not "
                "PassResult; let its call return PassResult(model, changed)"
            )
        return result

    @abstractmethod
    def call(self, model: Model) -> PassResult:
        """Apply the pass."""

    def settings(self) -> dict[str, Any] | None:
        """What :func:`record` notes in a model, see :meth:`identity`; None if the pass notes nothing."""
        return self.identity() if self.is_noted else None

    def identity(self) -> dict[str, Any]:
        """What determines the result: the settings, ready for JSON, and the name under ``pass``."""
        return {"pass": self.name, **noted_settings(self)}


def applied(model: Model, *passes: Pass) -> Model:
    """What comes of ``passes``, one after the other; ``model`` itself if none changes anything."""
    for pass_ in passes:
        model = pass_(model).model
    return model


def prepared(model: Model, *passes: Pass) -> Model:
    """The same, to be edited: a copy of ``model`` even if no pass changes anything."""
    result = applied(model, *passes)
    return model.copy() if result is model else result


# Passes of this package by name, as module:class; a module is imported when its pass is asked for.
BUILT_IN = {
    "densify": "sift_onnx.passes.densify:Densify",
    "doped": "sift_onnx.passes.doped:Doped",
    "factorized": "sift_onnx.passes.factorized:Factorized",
    "fold-batch-norm": "sift_onnx.passes.batch_norm.fold_batch_norm:FoldBatchNorm",
    "inference-mode": "sift_onnx.passes.prepare.inference_mode:InferenceMode",
    "inline-functions": "sift_onnx.passes.prepare.inline_functions:InlineFunctions",
    "insert-batch-norm": "sift_onnx.passes.batch_norm.insert_batch_norm:InsertBatchNorm",
    "lift-constants": "sift_onnx.passes.prepare.lift_constants:LiftConstants",
    "low-rank": "sift_onnx.passes.low_rank:LowRank",
    "parallel": "sift_onnx.passes.parallel:Parallel",
    "prune": "sift_onnx.passes.prune:Prune",
    "restore-views": "sift_onnx.passes.prepare.restore_views:RestoreViews",
    "store-computed-parameters": "sift_onnx.passes.prepare.store_computed_parameters:StoreComputedParameters",
    "unshare-initializers": "sift_onnx.passes.prepare.unshare_initializers:UnshareInitializers",
    "wide": "sift_onnx.passes.wide:Wide",
}
_REGISTERED: dict[str, type[Pass]] = {}


def register_pass(pass_class: type[Pass]) -> type[Pass]:
    """Decorator: make a pass of another package known by its ``name``.

    Raises:
        UsageError: a pass of this package has that name.
    """
    if pass_class.name in BUILT_IN:
        raise UsageError(f"sift_onnx has a pass {pass_class.name!r} of its own; give yours another name")
    _REGISTERED[pass_class.name] = pass_class
    return pass_class


def get_pass(name: str) -> type[Pass]:
    """The pass class of that name: of this package, registered, or of a plug-in.

    Raises:
        UsageError: there is none.
        PluginError: the plug-in that offers it does not load, or is not a pass of that name.
    """
    if name in BUILT_IN:
        module, _, class_name = BUILT_IN[name].partition(":")
        built_in: type[Pass] = getattr(import_module(module), class_name)
        return built_in
    found = _REGISTERED.get(name) or plugin_pass(name)
    if found is None:
        raise UsageError(f"there is no pass {name!r}; the passes are {', '.join(pass_names())}")
    return found


def pass_names() -> tuple[str, ...]:
    """The names that :func:`get_pass` knows, in alphabetical order."""
    return tuple(sorted({*BUILT_IN, *_REGISTERED, *plugin_names(PASSES)}))


def plugin_pass(name: str) -> type[Pass] | None:
    """The pass that a plug-in offers under a name; None if none does.

    Raises:
        PluginError: it does not load, is not a pass, or its own name is another.
    """
    found = plugin_class(PASSES, name, Pass)  # type: ignore[type-abstract]
    if found is None:
        return None
    if found.name != name:
        raise PluginError(f"the pass {name!r} of {found.__module__} is named {found.name!r} by its class")
    if name in BUILT_IN:
        raise PluginError(f"the pass {name!r} of {found.__module__} is never used: sift_onnx has its own {name!r}")
    return found


def history(model: Model) -> list[dict[str, Any]]:
    """The transforms that ``model`` went through, oldest first.

    Raises:
        ModelReadError: the metadata entry is damaged.
    """
    text = model.metadata.get(HISTORY_KEY)
    if text is None:
        return []
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelReadError(f"the metadata entry {HISTORY_KEY!r} is damaged: {error}") from error
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise ModelReadError(f"the metadata entry {HISTORY_KEY!r} is damaged: it is not a list of transforms")
    return entries


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("pass"), str):
        return False
    outcomes = [entry.get(key, []) for key in OUTCOMES]
    return all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in outcomes)


def record(model: Model, settings: Mapping[str, Any], made: Sequence[str] = (), *, folded: Sequence[str] = ()) -> None:
    """Note in ``model`` that a transform with ``settings`` made it.

    Args:
        model: what the transform made.
        settings: of the transform.
        made: the weights that it put in others' place.
        folded: the weights that took up a normalization.
    """
    outcomes = {key: list(names) for key, names in ((_MADE, made), (_FOLDED, folded)) if names}
    model.metadata[HISTORY_KEY] = json.dumps([*history(model), dict(settings) | outcomes], sort_keys=True)


def made_by_transforms(model: Model) -> frozenset[str]:
    """Names of the weights that transforms put in others' place."""
    return frozenset(name for entry in history(model) for name in entry.get(_MADE, ()))


def folded_by_passes(model: Model) -> frozenset[str]:
    """Names of the weights that took up a normalization."""
    return frozenset(name for entry in history(model) for name in entry.get(_FOLDED, ()))


def already_applied(model: Model, settings: Mapping[str, Any], *, repeatable: bool = False) -> bool:
    """Whether ``model`` came out of this very transform.

    Args:
        model: the model.
        settings: of the transform.
        repeatable: whether the transform may be applied again with other settings, to other layers.

    Raises:
        PreconditionError: it came out of the same transform with other settings, and that cannot be repeated.
    """
    wanted = _telling(settings)
    for noted in history(model):
        entry = _telling(noted)
        if entry["pass"] != wanted["pass"]:
            continue
        if entry == wanted:
            return True
        if repeatable:
            continue
        differing = sorted(k for k in entry.keys() | wanted.keys() if entry.get(k) != wanted.get(k))
        was = ", ".join(f"{k}={entry.get(k)!r}" for k in differing)
        raise PreconditionError(
            f"the model has been through {settings['pass']!r} already, with {was}; "
            "transform the original model, or repeat the same settings"
        )
    return False


def came_of(model: Model, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last transforms that ``model`` went through were these, in this order."""
    last = history(model)[-len(settings) :] if settings else []
    return bool(settings) and [_telling(entry) for entry in last] == [_telling(entry) for entry in settings]


def _telling(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in _BESIDES}
