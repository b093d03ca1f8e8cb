"""The YAML of recipes: without aliases, repeated keys and numbers in base 60, which would be misread."""

from __future__ import annotations

import re
from typing import Any

import yaml

from sift_onnx.errors import UsageError

__all__ = ["read_yaml", "write_yaml"]

_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0|[1-9][0-9]*)$"),
    "tag:yaml.org,2002:float": re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"),
}


def read_yaml(text: str, source: str) -> Any:
    """The mappings, lists, strings and numbers of one YAML document; tags are not evaluated.

    Args:
        text: the document.
        source: what error messages call it.

    Raises:
        UsageError: it is not one YAML document, or it has aliases or repeated keys.
    """
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        # Problems are fragments ("but found ..."), and long ones have several lines.
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UsageError(f"{source}{where}: {problem}; a recipe is one YAML document") from error
    except RecursionError as error:
        raise UsageError(f"{source} is not a recipe: its lists are too deep") from error


def write_yaml(document: Any) -> str:
    """A document as YAML, its keys in their order; :func:`read_yaml` reads it back."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


class _Loader(yaml.SafeLoader):
    """Refuses aliases and repeated keys, and reads numbers as YAML 1.2 does.

    Aliases make a huge document of a short text. Of a key that is given twice, YAML keeps the last. ``2:4`` is a
    pattern here, and not the number 124, as which YAML 1.1 reads it in base 60.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        known: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in known:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            known.add(key.value)
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("a recipe has no aliases (*name); write the value out")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
