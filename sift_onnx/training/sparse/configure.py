"""Algorithms from numbers, dictionaries, lists and YAML."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from sift_onnx.errors import PluginError, UsageError
from sift_onnx.plugins import SPARSITY, plugin_class, plugin_names
from sift_onnx.training.sparse.algorithms.base import SparsityAlgorithm
from sift_onnx.training.sparse.algorithms.group import Group
from sift_onnx.training.sparse.configuration import classes_by_name
from sift_onnx.training.sparse.errors import MissingSettingError, WrongTypeError

__all__ = ["configure", "default_sparse_param_filter", "map_sparsity_algorithm", "plugin_algorithm", "spdf"]

_DENSE_NAMES = ("embedding", "norm", "lm_head", "pe_helper")
_LARGEST_FILE = 1 << 20


def default_sparse_param_filter(name: str, param: torch.Tensor | None) -> bool:
    """Whether a parameter is sparse when nothing else is said.

    It is if it has two dimensions or more, and its name, in lower case, has none of ``embedding``, ``norm``,
    ``lm_head`` and ``pe_helper`` in it.
    """
    return param is not None and param.dim() > 1 and not any(part in name.lower() for part in _DENSE_NAMES)


def map_sparsity_algorithm(algorithm: str) -> type[SparsityAlgorithm]:
    """The algorithm of a name: its class name in lower case, of ours, a user's or a plug-in's.

    Of several classes of one name the one that was defined last counts; plug-ins are asked where there is none.

    Raises:
        UsageError: there is none.
        PluginError: the plug-in that offers it does not load, or is not an algorithm of that name.
    """
    algorithms = classes_by_name(SparsityAlgorithm)  # type: ignore[type-abstract]
    known = {name: cls for name, cls in algorithms.items() if not issubclass(cls, Group)}
    found: type[SparsityAlgorithm] | None = None
    if isinstance(algorithm, str):
        found = known.get(algorithm.lower()) or plugin_algorithm(algorithm)
    if found is None:
        names = ", ".join(sorted({*known, *plugin_names(SPARSITY)}))
        raise UsageError(f"sparsity algorithm {algorithm!r} is unknown; choose one of {names}, or import your own")
    return found


def plugin_algorithm(name: str) -> type[SparsityAlgorithm] | None:
    """The algorithm that a plug-in offers under a name; None if none does.

    Raises:
        PluginError: it does not load, is not an algorithm, or its class has another name.
    """
    found = plugin_class(SPARSITY, name, SparsityAlgorithm)  # type: ignore[type-abstract]
    if found is not None and found.__name__.lower() != name.lower():
        raise PluginError(
            f"the sparsity algorithm {name!r} of {found.__module__} is named {found.__name__.lower()!r} by its class"
        )
    return found


def configure(config: Any) -> Group | None:
    """The group of algorithms that a configuration describes.

    ::

        configure(0.9)                                          # static
        configure({"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 100, "stop": 1000}})
        configure([{"algorithm": "set", "schedule": 0.9, "param_filter": "fc1.*"}, {"sparsity": 0.5, ...}])
        configure(Path("sparsity.yaml"))

    Keys of a dictionary: ``algorithm`` (``static`` if it is not given; ``type`` is its old name), ``sparsity`` or
    ``schedule``, ``param_filter`` (a glob or a list of globs; :func:`default_sparse_param_filter` if it is not given),
    and the arguments of the algorithm. ``groups`` and ``params``, by which configuration classes nest such
    dictionaries, are flattened. The sparsity ``masks`` keeps that of the masks the model comes with.

    Args:
        config: a number, a dictionary, a list of such, the text of a YAML document of one of these, or the path of one.

    Returns:
        A group, of one algorithm for each dictionary; None if the sparsity is None.

    Raises:
        MissingSettingError: no sparsity (a KeyError).
        UsageError: unknown names, two sparsities, arguments that the algorithm does not take (a ValueError).
        WrongTypeError: ``param_filter`` is a function, or the configuration nothing of the above (a TypeError).
    """
    if isinstance(config, (Path, str)):
        return configure(_read(config))
    config = _flattened(config)
    if isinstance(config, bool) or config is None:
        raise WrongTypeError(f"{config!r} is not a sparsity configuration; give a number, a dictionary or a list")
    if isinstance(config, (int, float)):
        return configure({"sparsity": config})
    if isinstance(config, (list, tuple)):
        group = Group()
        for item in config:
            part = configure(item)
            if part is not None:
                group.extend(part)
        return group
    if isinstance(config, Mapping):
        return _configure_one(config)
    raise WrongTypeError(
        f"{type(config).__name__} is not a sparsity configuration; give a number, a dictionary or a list"
    )


def spdf(sparsity: Any, pretraining_steps: int, algorithm: str = "static", **settings: Any) -> Group:
    """SPDF: pre-train sparse, then fine-tune dense (Thangarasa et al. 2023, arXiv:2303.10464).

    After the optimizer's step number ``pretraining_steps`` all masks become ones. The weights that were pruned start
    fine-tuning as zeros, their optimizer states, too. Data and learning rate of the second phase are the loop's own;
    ``group[0].is_dense`` is true in the second phase. cstorch needs a second run with another configuration.

    Args:
        sparsity: of the first phase; 0.75 in the paper's largest model.
        pretraining_steps: length of the first phase.
        algorithm: of the first phase, by name.
        settings: of the algorithm, and ``param_filter``; see :func:`configure`.

    Raises:
        UsageError: the first phase has no step, or a setting is out of its range.
    """
    if pretraining_steps < 1:
        raise UsageError(f"sparse pre-training of {pretraining_steps} steps; use 1 or more")
    group = configure({"algorithm": algorithm, "sparsity": sparsity, "densify_at": pretraining_steps, **settings})
    if group is None:
        raise UsageError("sparse pre-training needs a sparsity")
    return group


def _configure_one(config: Mapping[str, Any]) -> Group | None:
    settings = dict(config)
    if "type" in settings and "algorithm" not in settings:
        warnings.warn("the key 'type' is the old name of 'algorithm'", DeprecationWarning, stacklevel=4)
        settings["algorithm"] = settings.pop("type")
    cls = map_sparsity_algorithm(settings.pop("algorithm", "static"))
    param_filter = settings.pop("param_filter", None)
    if "schedule" in settings:
        if "sparsity" in settings:
            raise UsageError("'schedule' is another name of 'sparsity'; give one of them")
        settings["sparsity"] = settings.pop("schedule")
    if "sparsity" not in settings:
        raise MissingSettingError(f"the configuration of {cls.__name__} has no 'sparsity'; its keys are {list(config)}")
    if settings["sparsity"] is None:
        return None
    if settings["sparsity"] == "masks":
        settings["sparsity"] = None
    if param_filter is not None and not isinstance(param_filter, (str, list, tuple)):
        raise WrongTypeError(f"param_filter is a glob or a list of globs, not {param_filter!r}")
    group = Group()
    group.add(default_sparse_param_filter if param_filter is None else param_filter, _made(cls, settings))
    return group


def _made(cls: type[SparsityAlgorithm], settings: Mapping[str, Any]) -> SparsityAlgorithm:
    accepted = _arguments(cls)
    unknown = [key for key in settings if accepted is not None and key not in accepted]
    if unknown:
        raise UsageError(
            f"{cls.__name__} has no setting {unknown[0]!r}; it has {', '.join(sorted(accepted or ()))}, and "
            "configurations have algorithm, sparsity or schedule, and param_filter"
        )
    return cls(**settings)


def _arguments(cls: type) -> set[str] | None:
    """Names of the arguments of a class whose constructors hand the rest on; None if they are unknown."""
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        names.update(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names
    return None


def _flattened(config: Any) -> Any:
    if not isinstance(config, Mapping) or "groups" not in config:
        return config
    groups = config["groups"]
    if isinstance(groups, Mapping):
        return _without_params(groups)
    if isinstance(groups, (list, tuple)):
        return [_without_params(item) if isinstance(item, Mapping) else item for item in groups]
    return groups


def _without_params(item: Mapping[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in item.items() if key != "params"}
    return {**flat, **(item.get("params") or {})}


def _read(config: Path | str) -> Any:
    path = config if isinstance(config, Path) else Path(config) if config.endswith((".yaml", ".yml")) else None
    try:
        if path is not None:
            with path.open("rb") as stream:
                data = stream.read(_LARGEST_FILE + 1)
            if len(data) > _LARGEST_FILE:
                raise UsageError(f"{path} is not a sparsity configuration: it has more than {_LARGEST_FILE:,} bytes")
            text = data.decode()
        else:
            text = str(config)
        document = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path or 'the configuration'} is not YAML: {error}") from error
    if isinstance(document, (str, Path)):
        raise UsageError(f"{document!r} is not a sparsity configuration; give a number, a mapping or a list")
    return document
