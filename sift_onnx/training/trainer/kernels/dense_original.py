"""How long a dense model of as many multiply-accumulates would take: what sparse training is compared with.

A weight of density d that a transform has widened belongs to an original of sqrt(d) times its channels on either side.
torch's layer of that size is timed, forward and backward. What lies between such layers is timed as it is, and counts
by the share of its channels that the original has.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from sift_onnx.training.kernels.matrix import gemm, matmul
from sift_onnx.training.kernels.spatial.convolution import convolve

__all__ = ["seconds_of_dense_original"]

# A first run of this many seconds is exact enough; a shorter one is repeated, and the faster one counts.
_LONG = 0.5


def seconds_of_dense_original(
    module: fx.GraphModule, densities: Mapping[str, float], inputs: Sequence[Tensor]
) -> float:
    """An estimate of one forward and backward pass of the dense original, without the loss and the optimizer.

    Args:
        module: the sparse model, in training mode. It stays as it is.
        densities: shares of active weights by the path of the masked parameter.
        inputs: a batch.

    Returns:
        Seconds.
    """
    timer = _Timer(module, densities)
    with torch.random.fork_rng(devices=[]):
        timer.run(*inputs)
    return timer.seconds()


@dataclass(frozen=True)
class _Axes:
    """Where the features of a layer lie: in its input and output, and in its weight."""

    features: int
    weight_out: int
    weight_in: int


class _Timer(fx.Interpreter):
    """Runs a graph with random numbers for the outputs of masked layers, and times each node by itself."""

    def __init__(self, module: fx.GraphModule, densities: Mapping[str, float]) -> None:
        super().__init__(module)
        self._densities = densities
        self._trained = {name for name, param in module.named_parameters() if param.requires_grad}
        # The path of the parameter by each node that reads it, or a view of it.
        self._parameters: dict[fx.Node, str] = {}
        # Links between nodes whose values have the same channels.
        self._same: dict[fx.Node, fx.Node] = {}
        self._shares: list[tuple[fx.Node, float]] = []
        self._masked = 0.0
        self._others: list[tuple[float, list[fx.Node]]] = []

    def seconds(self) -> float:
        """The estimate, once the graph has run."""
        found: dict[fx.Node, list[float]] = {}
        for node, share in self._shares:
            found.setdefault(self._channels(node), []).append(share)
        shares = {node: fmean(values) for node, values in found.items()}
        return self._masked + sum(
            seconds * math.prod(shares.get(self._channels(node), 1.0) for node in nodes)
            for seconds, nodes in self._others
        )

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "get_attr":
            self._parameters[n] = str(n.target)
        if n.op not in ("call_function", "call_module"):
            return super().run_node(n)
        tensors = [node for node in n.all_input_nodes if isinstance(self.env[node], Tensor)]
        data = [node for node in tensors if node not in self._parameters and self.env[node].is_floating_point()]
        if len(tensors) == 1 and tensors[0] in self._parameters:
            self._parameters[n] = self._parameters[tensors[0]]
        if not data:
            with torch.no_grad():
                return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        axes = _axes_of(n, args)
        if axes is None or data != [n.args[0]] or n.args[1] not in self._parameters:
            for node in data:
                self._same[self._channels(node)] = self._channels(n)
            return self._timed(n, args, kwargs, [n])
        density = self._densities.get(self._parameters[n.args[1]])  # type: ignore[index]
        if density is None:
            return self._timed(n, args, kwargs, [*data, n])
        self._shares += [(node, math.sqrt(density)) for node in (*data, n)]
        return self._timed_narrow(n, args, kwargs, density, axes)

    def _has_gradient(self, origin: Any) -> bool:
        if not isinstance(origin, fx.Node) or origin.op == "placeholder":
            return False
        return origin not in self._parameters or self._parameters[origin] in self._trained

    def _channels(self, node: fx.Node) -> fx.Node:
        """The node that stands for all with the same channels."""
        while node in self._same and self._same[node] is not node:
            node = self._same[node]
        return node

    def _timed(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], channels: list[fx.Node]) -> Any:
        seconds, result = self._measure(node, args, kwargs)
        self._others.append((seconds, channels))
        return result

    def _timed_narrow(
        self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], density: float, axes: _Axes
    ) -> Tensor:
        """Time a masked layer with the channels of the original; its output has the shape of the whole layer's."""
        x, weight, *rest = args
        outputs, inputs = weight.shape[axes.weight_out], weight.shape[axes.weight_in]
        kept_inputs = max(1, round(inputs * math.sqrt(density)))
        kept = min(outputs, max(1, round(outputs * density * inputs / kept_inputs)))
        x = x.narrow(axes.features, 0, kept_inputs).contiguous()
        weight = weight.narrow(axes.weight_in, 0, kept_inputs).narrow(axes.weight_out, 0, kept).contiguous()
        rest = [
            part.narrow(-1, 0, kept) if isinstance(part, Tensor) and part.shape[-1:] == (outputs,) else part
            for part in rest
        ]
        seconds, narrow = self._measure(node, (x, weight, *rest), kwargs)
        self._masked += seconds
        shape = list(narrow.shape)
        shape[axes.features] = outputs
        result: Tensor = narrow.new_empty(shape).uniform_(-1, 1)
        return result

    def _measure(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, Any]:
        """Seconds of a node, forward and backward, and what it gives."""
        given, wanted = [], []
        for arg, origin in zip(args, node.args, strict=True):
            if isinstance(arg, Tensor):
                # In training mode statistics change in place.
                arg = arg.detach().clone() if origin in self._parameters else arg.detach()
                if self._has_gradient(origin) and arg.is_floating_point():
                    wanted.append(arg.requires_grad_())
            given.append(arg)
        run = getattr(self, node.op)
        fastest, result = math.inf, None
        for _ in range(2):
            start = time.perf_counter()
            with torch.enable_grad():
                result = run(node.target, tuple(given), kwargs)
            taken = time.perf_counter() - start
            outputs = [part for part in _parts(result) if part.requires_grad and part.grad_fn is not None]
            if outputs:
                ones = [torch.ones_like(part) for part in outputs]
                start = time.perf_counter()
                torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
                taken += time.perf_counter() - start
            fastest = min(fastest, taken)
            if taken > _LONG:
                break
        return fastest, map_aggregate(result, lambda part: part.detach() if isinstance(part, Tensor) else part)


def _axes_of(node: fx.Node, args: tuple[Any, ...]) -> _Axes | None:
    """The axes of a layer whose second argument is its weight; None for what else a node computes."""
    if node.op != "call_function" or len(args) < 2 or not isinstance(args[1], Tensor):
        return None
    if node.target is convolve and node.kwargs.get("group", 1) == 1:
        return _Axes(1, 0, 1)
    if node.target is matmul and args[1].dim() == 2:
        return _Axes(-1, 1, 0)
    if node.target is gemm and not node.kwargs.get("transA"):
        return _Axes(-1, 0, 1) if node.kwargs.get("transB") else _Axes(-1, 1, 0)
    return None


def _parts(result: Any) -> list[Tensor]:
    found = result if isinstance(result, (tuple, list)) else [result]
    return [part for part in found if isinstance(part, Tensor)]
