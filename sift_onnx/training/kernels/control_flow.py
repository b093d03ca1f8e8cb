"""If, Loop and Scan: modules whose subgraphs are graph modules.

A subgraph reads values of the graphs around it; they are handed to its module in front of its own inputs, and come here
as ``captured``, one tuple for each subgraph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sift_onnx.training.host import number
from sift_onnx.training.registry import kernel

__all__: list[str] = []

Captured = dict[str, tuple[Any, ...]]


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@kernel("If", host=(0,))
class If(nn.Module):
    """Runs one of two subgraphs."""

    def __init__(self, then_branch: nn.Module, else_branch: nn.Module, outputs: int = 1) -> None:
        super().__init__()
        self.then_branch = then_branch
        self.else_branch = else_branch

    def forward(self, condition: Any, *, captured: Captured) -> tuple[Any, ...]:
        """The outputs of the branch that was run."""
        name = "then_branch" if number(condition) else "else_branch"
        return _as_tuple(self.get_submodule(name)(*captured[name]))


@kernel("Loop", host=(0, 1))
class Loop(nn.Module):
    """Runs a subgraph again and again, with the values that it carries over; stacks what it gives besides."""

    def __init__(self, body: nn.Module, outputs: int = 1) -> None:
        super().__init__()
        self.body = body
        self.outputs = outputs

    def forward(self, limit: Any = None, condition: Any = None, *carried: Any, captured: Captured) -> tuple[Any, ...]:
        """The carried values after the last turn, and the others of every turn, stacked along a new first axis."""
        most = None if limit is None else int(number(limit))
        goes_on = True if condition is None else bool(number(condition))
        turns: list[tuple[Any, ...]] = []
        i = 0
        while goes_on and (most is None or i < most):
            condition_after, *rest = _as_tuple(
                self.body(*captured["body"], torch.tensor(i), torch.tensor(goes_on), *carried)
            )
            carried = tuple(rest[: len(carried)])
            turns.append(tuple(rest[len(carried) :]))
            goes_on = bool(condition_after)
            i += 1
        stacked = tuple(torch.stack(parts) for parts in zip(*turns, strict=True))
        missing = self.outputs - len(carried) - len(stacked)
        return (*carried, *stacked, *(torch.empty(0) for _ in range(missing)))


@kernel("Scan", since=9)
class Scan(nn.Module):
    """Runs a subgraph for every slice of some inputs, with the values that it carries over."""

    def __init__(
        self,
        body: nn.Module,
        num_scan_inputs: int,
        scan_input_axes: Sequence[int] = (),
        scan_input_directions: Sequence[int] = (),
        scan_output_axes: Sequence[int] = (),
        scan_output_directions: Sequence[int] = (),
        outputs: int = 1,
    ) -> None:
        super().__init__()
        self.body = body
        self.scanned = num_scan_inputs
        self.input_axes = scan_input_axes or (0,) * num_scan_inputs
        self.input_directions = scan_input_directions or (0,) * num_scan_inputs
        self.output_axes = scan_output_axes
        self.output_directions = scan_output_directions

    def forward(self, *inputs: Tensor, captured: Captured) -> tuple[Tensor, ...]:
        """The carried values after the last slice, and the others of every slice, stacked along a new axis."""
        states, scanned = inputs[: len(inputs) - self.scanned], inputs[len(inputs) - self.scanned :]
        slices = [
            list(reversed(x.unbind(axis))) if backwards else list(x.unbind(axis))
            for x, axis, backwards in zip(scanned, self.input_axes, self.input_directions, strict=True)
        ]
        turns: list[tuple[Tensor, ...]] = []
        for parts in zip(*slices, strict=True):
            results = _as_tuple(self.body(*captured["body"], *states, *parts))
            states, rest = results[: len(states)], results[len(states) :]
            turns.append(rest)
        columns = [list(column) for column in zip(*turns, strict=True)]
        axes = self.output_axes or (0,) * len(columns)
        directions = self.output_directions or (0,) * len(columns)
        stacked = [
            torch.stack(column[::-1] if backwards else column, axis)
            for column, axis, backwards in zip(columns, axes, directions, strict=True)
        ]
        return (*states, *stacked)


@kernel("SequenceMap", since=17)
class SequenceMap(nn.Module):
    """Runs a subgraph for every element of sequences; what is a tensor goes to each of them."""

    def __init__(self, body: nn.Module, outputs: int = 1) -> None:
        super().__init__()
        self.body = body
        self.outputs = outputs

    def forward(self, sequence: list[Tensor], *others: Any, captured: Captured) -> tuple[list[Tensor], ...]:
        """A sequence for each output of the subgraph."""
        results = []
        for i, element in enumerate(sequence):
            rest = [other[i] if isinstance(other, list) else other for other in others]
            results.append(_as_tuple(self.body(*captured["body"], element, *rest)))
        return tuple([result[k] for result in results] for k in range(self.outputs))
