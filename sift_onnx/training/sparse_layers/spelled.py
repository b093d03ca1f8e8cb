"""Functions that exporters spell in several nodes, as one function of lanes.

Each node would read and write all activations, and keep what its gradient needs of them; some are none that lanes have.
A graph is searched for them before regions are; those that turn out to lie outside get their nodes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from sift_onnx.training.kernels.elementwise import activation, arithmetic
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.registry import registered_kernel
from sift_onnx.training.sparse_layers.graph_layers import stored_tensor
from sift_onnx.training.sparse_layers.lanes.activations import activate
from sift_onnx.training.sparse_layers.lanes.layer_norm import rms_norm
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, from_lanes, token_lanes

__all__ = ["fuse_spelled", "is_normalization", "respell", "spelled", "spelled_in_lanes"]

# What a spelling consists of: its input; a number that is stored; any number; a vector of the last axis; and calls,
# which are a kernel and its operands.
_INPUT, _ANY, _VECTOR = "input", "any number", "vector"
Spelling = Any

_MEAN = registered_kernel("ReduceMean", "", 1).run  # type: ignore[union-attr]
_COMMUTES = (arithmetic.add, arithmetic.mul)


def _gelus(gate: Spelling) -> list[Spelling]:
    """``x * (1 + gate) / 2``, in the orders that are seen."""
    factor = (arithmetic.add, gate, 1.0)
    return [
        (arithmetic.mul, (arithmetic.mul, _INPUT, factor), 0.5),
        (arithmetic.mul, factor, (arithmetic.mul, _INPUT, 0.5)),
        (arithmetic.mul, _INPUT, (arithmetic.mul, 0.5, factor)),
    ]


def _tanh(cube: Spelling) -> Spelling:
    inner = (arithmetic.add, _INPUT, (arithmetic.mul, cube, 0.044715))
    return torch.tanh, (arithmetic.mul, inner, math.sqrt(2 / math.pi))


_CUBES: list[Spelling] = [(arithmetic.power, _INPUT, 3.0), (arithmetic.mul, _INPUT, (arithmetic.mul, _INPUT, _INPUT))]
_ROOT = (torch.sqrt, (arithmetic.add, (_MEAN, (arithmetic.power, _INPUT, 2.0)), _ANY))

# By function, the ways to spell it; a name and a number say which one a node stands for.
_SPELLINGS: dict[str, list[Spelling]] = {
    "gelu": [
        *_gelus((torch.erf, (arithmetic.div, _INPUT, math.sqrt(2)))),
        *_gelus((torch.erf, (arithmetic.mul, _INPUT, math.sqrt(0.5)))),
    ],
    "gelu_tanh": [spelling for cube in _CUBES for spelling in _gelus(_tanh(cube))],
    "swish": [
        (arithmetic.mul, _INPUT, (torch.sigmoid, _INPUT)),
        (arithmetic.mul, _INPUT, (torch.sigmoid, (arithmetic.mul, _INPUT, _ANY))),
    ],
    "rms_norm": [
        (arithmetic.mul, (arithmetic.mul, _INPUT, (torch.reciprocal, _ROOT)), _VECTOR),
        (arithmetic.mul, (arithmetic.mul, _INPUT, (arithmetic.div, 1.0, _ROOT)), _VECTOR),
        (arithmetic.mul, (arithmetic.div, _INPUT, _ROOT), _VECTOR),
    ],
}


def spelled(x: Tensor, *stored: Tensor, function: tuple[str, int], swaps: Any, reductions: Any) -> Tensor:
    """A function that the graph spells, while regions are looked for. It is never called.

    Args:
        x: its input.
        stored: numbers and vectors of the spelling, in its order.
        function: its name, and which spelling.
        swaps: for each sum and product, whether its operands are in the other order.
        reductions: what means were called with besides.
    """
    raise AssertionError("it is replaced before the graph runs")


def spelled_in_lanes(x: Lanes, *stored: Tensor, function: tuple[str, int], swaps: Any, reductions: Any) -> Lanes:
    """The function of :func:`spelled`, of activations in lanes."""
    name, _ = function
    if name == "gelu":
        return activate("gelu", functional.gelu, x)
    if name == "gelu_tanh":
        return activate("gelu", functional.gelu, x, approximate="tanh")
    if name == "swish":
        return activate("swish", activation.swish, x, alpha=float(stored[0]) if stored else 1.0)
    epsilon, scale = float(stored[-2]), stored[-1]
    (((axis,), _),) = reductions
    if axis % len(x.shape) == len(x.shape) - 1:
        return rms_norm(x, scale, epsilon=epsilon)
    dense = from_lanes(x)
    return token_lanes(dense * torch.rsqrt(dense.square().mean(axis, keepdim=True) + epsilon) * scale)


def is_normalization(node: fx.Node) -> bool:
    """Whether a :func:`spelled` normalizes tokens; others are activations."""
    return node.kwargs["function"][0] == "rms_norm"  # type: ignore[index]


def fuse_spelled(module: ImportedModule) -> None:
    """Replace the spelled functions of a graph."""
    graph: fx.Graph = module.graph
    replaced: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        found = None if node in replaced else next(_found(module, node), None)
        if found is None:
            continue
        kwargs, match = found
        with graph.inserting_before(node):
            fused = graph.call_function(spelled, (match.source, *match.stored), kwargs)
        fused.meta.update(node.meta)
        node.replace_all_uses_with(fused)
        for old in match.nodes:
            graph.erase_node(old)
        replaced.update(match.nodes)


def respell(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The nodes that a :func:`spelled` stands for; new ones are where the graph inserts."""
    kwargs: dict[str, Any] = dict(node.kwargs)
    name, index = kwargs["function"]
    source, *stored = node.args
    rest = iter(stored), iter(kwargs["swaps"]), iter(kwargs["reductions"])
    result: fx.Node = _respelled(graph, _SPELLINGS[name][index], source, *rest)
    return result


def _respelled(
    graph: fx.Graph, spelling: Spelling, source: Any, stored: Iterator[Any], swaps: Iterator[Any], means: Iterator[Any]
) -> Any:
    if not isinstance(spelling, tuple):
        return source if spelling == _INPUT else next(stored)
    run, *operands = spelling
    swapped = run in _COMMUTES and next(swaps)
    args, kwargs = next(means) if run is _MEAN else ((), {})
    parts = [_respelled(graph, operand, source, stored, swaps, means) for operand in operands]
    if run is _MEAN:
        return graph.call_function(run, (*parts, tuple(args)), dict(kwargs))
    return graph.call_function(run, tuple(reversed(parts) if swapped else parts))


@dataclass(frozen=True)
class _Match:
    """What is known of a spelling while its nodes are compared, in their order."""

    source: fx.Node | None = None
    stored: tuple[fx.Node, ...] = ()
    swaps: tuple[bool, ...] = ()
    reductions: tuple[tuple[tuple[int, ...], Mapping[str, Any]], ...] = ()
    nodes: tuple[fx.Node, ...] = ()


def _found(module: ImportedModule, node: fx.Node) -> Iterator[tuple[dict[str, Any], _Match]]:
    for name, spellings in _SPELLINGS.items():
        for index, spelling in enumerate(spellings):
            for match in _matches(module, spelling, node, _Match()):
                inner = match.nodes[1:]
                alone = all(user in match.nodes for part in inner for user in part.users)
                if alone and len(set(match.nodes)) == len(match.nodes):
                    kwargs = {"function": (name, index), "swaps": match.swaps, "reductions": match.reductions}
                    yield kwargs, match


def _matches(module: ImportedModule, spelling: Spelling, found: Any, match: _Match) -> Iterator[_Match]:
    if not isinstance(found, fx.Node):
        return
    if not isinstance(spelling, tuple):
        yield from _leaf(module, spelling, found, match)
        return
    run, *operands = spelling
    if found.target is not run:
        return
    match = replace(match, nodes=(*match.nodes, found))
    if run is _MEAN:
        x, *axes = found.args
        if len(axes) == 1 and len(axes[0] or ()) == 1 and found.kwargs.get("keepdims", 1):  # type: ignore[arg-type]
            kept = replace(match, reductions=(*match.reductions, (tuple(axes[0]), dict(found.kwargs))))  # type: ignore[arg-type]
            yield from _matches(module, operands[0], x, kept)
    elif run not in _COMMUTES:
        yield from _all_match(module, zip(operands, found.args, strict=True), match)
    else:
        for swapped in (False, True):
            args = found.args[::-1] if swapped else found.args
            pairs = zip(operands, args, strict=True)
            yield from _all_match(module, pairs, replace(match, swaps=(*match.swaps, swapped)))


def _all_match(module: ImportedModule, pairs: Iterable[tuple[Spelling, Any]], match: _Match) -> Iterator[_Match]:
    first, *rest = pairs
    for found in _matches(module, *first, match):
        if rest:
            yield from _all_match(module, rest, found)
        else:
            yield found


def _leaf(module: ImportedModule, spelling: Spelling, found: fx.Node, match: _Match) -> Iterator[_Match]:
    value = stored_tensor(module, found)
    if spelling == _INPUT:
        if match.source in (None, found) and value is None:
            yield replace(match, source=found)
        return
    if value is None:
        return
    if spelling == _VECTOR:
        fits = value.dim() == 1 and value.numel() > 1
    else:
        fits = value.numel() == 1 and (spelling == _ANY or math.isclose(float(value), spelling, rel_tol=1e-5))
    if fits:
        yield replace(match, stored=(*match.stored, found))
