"""Recipes: an ordered list of passes with their settings, as YAML.

    version: 1
    passes:
      - wide: {sparsity: 0.9, keep_dense: ["head.*"]}
      - parallel: {sparsity: 0.5, only: ["head.*"], activation: none}

The settings are the keyword arguments of the passes. A transform notes its settings in the model, so that a recipe can
be read back from what it made. Under a key ``training`` there may be the settings of :mod:`sift_onnx.training.trainer`,
beside the passes or instead of them: ``transform`` reads the one, ``train`` the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sift_onnx.errors import UsageError

__all__ = ["OUTCOMES", "Recipe", "Step"]

# What a note of a transform says besides its settings: the weights that it put in others' place, and those that took up
# a normalization.
OUTCOMES = ("made", "folded")

_VERSION = 1
_KEYS = ("version", "passes", "training")
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class Step:
    """One pass of a recipe.

    Attributes:
        name: of the pass.
        settings: its keyword arguments.
    """

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """An ordered list of passes.

    Attributes:
        steps: the passes, first to last; there may be none if there is a training.
        source: where it is from, for error messages.
        training: settings of the training; None if the recipe has none.
    """

    steps: tuple[Step, ...]
    source: str = field(default="recipe", compare=False)
    training: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, text: str, source: str = "recipe") -> Recipe:
        """A recipe from YAML.

        Args:
            text: the YAML document; tags are not evaluated, and aliases are refused.
            source: what error messages call it.

        Raises:
            UsageError: it is not a recipe.
        """
        from sift_onnx.settings.recipe_yaml import read_yaml  # the yaml package takes 10 ms to import

        document = read_yaml(text, source)
        if isinstance(document, dict) and document.get("version") != _VERSION:
            raise UsageError(f"{source}: version {document.get('version')!r} is unknown; write 'version: {_VERSION}'")
        return cls.of(document, source)

    @classmethod
    def of(cls, document: Any, source: str = "recipe") -> Recipe:
        """A recipe from what its YAML holds: mappings, lists, strings and numbers.

        Args:
            document: a mapping with the keys ``passes``, ``training`` or both, and ``version`` where that is to be held
                against this one.
            source: what error messages call it.

        Raises:
            UsageError: it is not a recipe.
        """
        if not isinstance(document, Mapping):
            raise UsageError(f"{source} is not a recipe: it needs the keys {', '.join(_KEYS)}")
        unknown = [key for key in document if key not in _KEYS]
        if unknown:
            raise UsageError(f"{source}: unknown key {unknown[0]!r}; the keys are {', '.join(_KEYS)}")
        if document.get("version", _VERSION) != _VERSION:
            raise UsageError(f"{source}: version {document['version']!r} is unknown; this one is {_VERSION}")
        training = document.get("training")
        if "training" in document and not isinstance(training, Mapping):
            raise UsageError(f"{source}: 'training' is not a mapping; write its settings as 'epochs: 10', one a line")
        passes = document.get("passes")
        if training is not None and "passes" not in document:
            return cls((), source, training)
        if not isinstance(passes, list) or not passes:
            raise UsageError(f"{source}: 'passes' lists one pass or more, as '- wide: {{sparsity: 0.9}}'")
        steps = tuple(_step(entry, f"{source}, pass {i}") for i, entry in enumerate(passes, 1))
        return cls(steps, source, training)

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """A recipe from a file.

        Raises:
            UsageError: it cannot be read, or is not a recipe.
        """
        file = Path(path)
        try:
            with file.open("rb") as stream:
                data = stream.read(_LARGEST_FILE + 1)
            text = data.decode()
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{file} is not a recipe: it is not UTF-8 text") from error
        if len(data) > _LARGEST_FILE:
            raise UsageError(f"{file} is not a recipe: it has more than {_LARGEST_FILE:,} bytes")
        return cls.parse(text, str(file))

    @classmethod
    def of_history(cls, entries: Iterable[Mapping[str, Any]]) -> Recipe:
        """The recipe that repeats the transforms noted in a model.

        Args:
            entries: notes; see :func:`sift_onnx.passes.base.history`.
        """
        return cls(
            tuple(
                Step(str(entry["pass"]), {k: v for k, v in entry.items() if k not in ("pass", *OUTCOMES)})
                for entry in entries
            )
        )

    def dump(self) -> str:
        """The recipe as YAML; :meth:`parse` reads it back."""
        document: dict[str, Any] = {"version": _VERSION}
        if self.steps or self.training is None:
            document["passes"] = [{step.name: dict(step.settings)} for step in self.steps]
        if self.training is not None:
            document["training"] = dict(self.training)
        from sift_onnx.settings.recipe_yaml import write_yaml

        return write_yaml(document)


def _step(entry: Any, where: str) -> Step:
    if isinstance(entry, str):
        return Step(entry, {})
    if not isinstance(entry, dict) or len(entry) != 1:
        raise UsageError(f"{where}: write one pass and its settings, as '- wide: {{sparsity: 0.9}}'")
    name, settings = next(iter(entry.items()))
    if not isinstance(name, str) or not (settings is None or isinstance(settings, dict)):
        raise UsageError(f"{where}: the settings of {name!r} are not a mapping; write them as '{{sparsity: 0.9}}'")
    wrong = [key for key in settings or {} if not isinstance(key, str)]
    if wrong:
        raise UsageError(f"{where}: {wrong[0]!r} is not a name of a setting")
    return Step(name, dict(settings or {}))
