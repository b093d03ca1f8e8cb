"""Where a module keeps a tensor of a given name.

``state_dict`` keys are initializer names. torch keeps a tensor called ``layer1.0.conv1.weight`` as the attribute
``weight`` of a module inside modules, so that most names are paths as they are. Some cannot be: torch refuses both
``fc`` and ``fc.weight``, empty segments, and names that modules have already (``float``); a keyword, a quote or a
line break would break the code that torch.fx writes. Those get a path that is free, and a module's ``state_dict`` hooks
translate.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from torch import fx, nn

__all__ = ["attribute_paths"]

# What torch.fx puts between double quotes, at most.
_UNSAFE = re.compile(r"[^\w:/\-+@#$%&*()\[\]<>=~!?,; ]")
_TAKEN = frozenset(dir(nn.Module())) | frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph())))


def attribute_paths(names: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """A path of attributes for each name, the name itself wherever torch allows that.

    Args:
        names: distinct names of tensors.
        reserved: attributes of the root module that are taken.

    Returns:
        Paths by name, all distinct, none the beginning of another.
    """
    wanted = list(names)
    taken_at_root = _TAKEN | frozenset(reserved)
    paths: dict[str, str] = {}
    leaves: set[str] = set()
    # Everything that has something below it.
    inner: set[str] = set()
    plain = [name for name in wanted if _escape(name, taken_at_root) == name]
    for name in plain:
        inner.update(_above(name))
    escaped = [name for name in wanted if name not in set(plain)]
    for name in (*plain, *escaped):
        path = _escape(name, taken_at_root)
        while path in leaves or path in inner or any(above in leaves for above in _above(path)):
            first, dot, rest = path.partition(".")
            # Another attribute of the root, unless the last segment is what collides.
            path = f"{path}_" if not dot or not any(above in leaves for above in _above(path)) else f"{first}_.{rest}"
        leaves.add(path)
        inner.update(_above(path))
        paths[name] = path
    return {name: paths[name] for name in wanted}


def _above(path: str) -> list[str]:
    segments = path.split(".")
    return [".".join(segments[:i]) for i in range(1, len(segments))]


def _escape(name: str, taken_at_root: frozenset[str]) -> str:
    segments = []
    for i, segment in enumerate(name.split(".")):
        safe = _UNSAFE.sub("_", segment) or "_"
        if keyword.iskeyword(safe) or safe in (taken_at_root if i == 0 else _TAKEN):
            safe += "_"
        segments.append(safe)
    return ".".join(segments)
