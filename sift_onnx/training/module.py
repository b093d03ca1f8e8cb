"""The torch module that an ONNX model becomes."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from sift_onnx.errors import UsageError
from sift_onnx.training.graph_module import LoweredModule
from sift_onnx.training.packed_masks import PackedMasks

__all__ = ["ImportedModule"]

_MASK = "_mask"
# Kernels would fail for the attributes of a tensor that these lack.
_NO_TENSORS = (np.ndarray, np.generic, bool, int, float, str, Mapping)


class ImportedModule(LoweredModule):
    """An ONNX model as a torch.fx graph with trainable parameters.

    ``state_dict`` keys are initializer names. Attribute paths, and with them the names that ``named_parameters`` gives,
    are the same, save for the few names that torch cannot take as a path.

    Attributes:
        masks: masks of the model's masked weights by initializer name; boolean tensors of the weights' shapes, on the
            CPU. They say how the model came: a sparsity algorithm starts from them and keeps its own. They are kept as
            bits, so that what is read is a new tensor.
        parameter_paths: attribute path by initializer name, of parameters and statistics.
        feature_axes: axes of output and input features by attribute path, of weights that multiply activations.
    """

    masks: MutableMapping[str, torch.Tensor]
    parameter_paths: dict[str, str]
    feature_axes: dict[str, tuple[int, int]]

    def __init__(self, graph: fx.Graph, tensors: Mapping[str, torch.Tensor], paths: Mapping[str, str]) -> None:
        """A module without its graph's other attributes, which are set before :meth:`recompile`.

        Args:
            graph: the graph.
            tensors: parameters (``nn.Parameter``) and statistics by initializer name.
            paths: attribute paths by initializer name.
        """
        super().__init__({}, fx.Graph(), "ImportedModule")
        self.masks = PackedMasks()
        self.feature_axes = {}
        self.parameter_paths = dict(paths)
        for name, tensor in tensors.items():
            *folders, leaf = paths[name].split(".")
            owner: nn.Module = self
            for folder in folders:
                if folder not in owner._modules:
                    owner.add_module(folder, nn.Module())
                owner = owner.get_submodule(folder)
            if isinstance(tensor, nn.Parameter):
                owner.register_parameter(leaf, tensor)
            else:
                owner.register_buffer(leaf, tensor)
        self._renamed = {path: name for name, path in paths.items() if path != name}
        if self._renamed:
            self.register_state_dict_post_hook(_to_initializer_names)  # type: ignore[no-untyped-call]
            self.register_load_state_dict_pre_hook(_to_attribute_paths)  # type: ignore[no-untyped-call]
        self.graph = graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module.

        Raises:
            UsageError: an argument is an array, a number or a mapping.
        """
        for value in (*args, *kwargs.values()):
            if isinstance(value, _NO_TENSORS):
                kind = type(value).__name__
                raise UsageError(f"the module takes torch tensors, not {kind}; torch.from_numpy makes one of an array")
        return super().__call__(*args, **kwargs)


def _to_initializer_names(module: ImportedModule, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    _rename(state, prefix, {p + s: n + s for p, n in module._renamed.items() for s in ("", _MASK)})


def _to_attribute_paths(module: ImportedModule, state: dict[str, Any], prefix: str, *details: Any) -> None:
    _rename(state, prefix, {n + s: p + s for p, n in module._renamed.items() for s in ("", _MASK)})


def _rename(state: dict[str, Any], prefix: str, names: Mapping[str, str]) -> None:
    """Rename keys in place, in their order."""
    entries = [(names.get(key.removeprefix(prefix)) if key.startswith(prefix) else None, key) for key in state]
    renamed = {prefix + new if new is not None else key: state[key] for new, key in entries}
    state.clear()
    state.update(renamed)
