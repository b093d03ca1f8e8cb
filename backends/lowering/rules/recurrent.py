"""LSTM, GRU and RNN: one product of the inputs of all steps, the steps themselves, and views of their states.

What the input adds to the gates, biases included, does not depend on the states. It is a matrix product of as many rows
as there are steps and sequences. Y, Y_h and Y_c are views of the states of all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.dims import Dim
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.rules.convolution import check_weights
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import Joined, Matmul, Range, Recurrent, Reshaped, Sliced, Spec, Transposed
from sift_onnx.backends.lowering.specs.recurrent import Cell, gate_count
from sift_onnx.backends.lowering.weights import Floats, WeightMatrix

__all__ = ["recurrent_layer"]

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
# Positions of inputs.
_LENGTHS, _FIRST_H, _FIRST_C, _PEEPHOLES = 4, 5, 6, 7
_AXES = 3
# Operators whose result has no other values than their first input.
_COPYING = ("Cast", "Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")


def recurrent_layer(node: NodeView) -> tuple[Step, ...]:
    """The steps of LSTM, GRU or RNN; those for outputs that nobody reads are left out."""
    node.operand(0, "rows")
    if len(node.dims(0)) != _AXES:
        raise NotLowered("its input is not [steps, batch, features]")
    _check_variant(node)
    cell = _cell(node)
    reverse = _DIRECTIONS[node.attribute("direction", "forward")]
    inputs, recurrent = _matrix(node, 1, reverse, cell), _matrix(node, 2, reverse, cell)
    hidden, gates = recurrent.columns, gate_count(cell)
    if recurrent.rows != inputs.rows or inputs.rows != len(reverse) * gates * hidden:
        raise NotLowered(f"its weights {inputs.name!r} and {recurrent.name!r} are of other numbers of units")
    if node.dims(0)[-1] != inputs.columns:
        raise NotLowered(f"its input has {node.dims(0)[-1]} features, its weights take {inputs.columns}")
    of_input, of_state = _biases(node, cell, len(reverse), hidden)
    first = _first_states(node)
    used = [name if _is_read(node, name) else "" for name in (*node.proto.output, "", "", "")[:3]]
    base = next(filter(None, node.proto.output))
    gate_sums, states = made_name(base, "gates"), made_name(base, "states")
    lengths = _lengths(node)
    spec = Recurrent(recurrent, of_state, cell, reverse, has_cell_states=bool(used[2]), has_lengths=bool(lengths))
    steps = [
        _made(node, Matmul(inputs, of_input), (node.input(0),), gate_sums),
        replace(_made(node, spec, (gate_sums, *first), states), mask=lengths),
    ]
    if used[0]:
        steps += _all_states(node, spec, states, used[0])
    if used[1]:
        steps += _last_states(node, spec, states, used[1], spec.states if lengths else 0)
    if used[2]:
        steps += _last_states(node, spec, states, used[2], spec.channels - spec.states)
    return tuple(steps)


def _check_variant(node: NodeView) -> None:
    """Refuse by name what the kernels do not compute."""
    if node.op == "LSTM" and node.input(_PEEPHOLES):
        raise NotLowered("no kernel with peepholes")
    for name, usual in (("layout", 0), ("clip", 0.0), ("input_forget", 0)):
        if node.attribute(name, usual) != usual:
            raise NotLowered(f"no kernel for {name}={node.attribute(name)}")
    if node.attribute("direction", "forward") not in _DIRECTIONS:
        raise NotLowered(f"no kernel for direction={node.attribute('direction')}")


def _cell(node: NodeView) -> Cell:
    directions = len(_DIRECTIONS[node.attribute("direction", "forward")])
    usual = _ACTIVATIONS[node.op]
    listed = [text.decode().lower() for text in node.attribute("activations") or ()] or usual * directions
    if node.op == "RNN" and listed == ["relu"] * directions:
        return "relu"
    if listed != usual * directions:
        raise NotLowered(f"no kernel for activations={listed}")
    if node.op == "RNN":
        return "tanh"
    if node.op == "LSTM":
        return "lstm"
    return "gru_linear" if node.attribute("linear_before_reset", 0) else "gru"


def _matrix(node: NodeView, position: int, reverse: Sequence[bool], cell: Cell) -> WeightMatrix:
    """The weights of all directions, one below the other."""
    constant, shape = _constant(node.graph, node.input(position))
    if constant is None:
        raise NotLowered(f"its weights {node.input(position)!r} are {node.why_not_constant(position)}")
    if len(shape) != _AXES or shape[0] != len(reverse) or shape[1] % gate_count(cell) or 0 in shape:
        raise NotLowered(f"its weights {constant.name!r} are of shape {list(shape)}")
    weights = WeightMatrix(constant, shape[0] * shape[1], shape[2])
    check_weights(node, weights)
    return weights


def _constant(graph: GraphView, name: str) -> tuple[gs.Constant | None, tuple[int, ...]]:
    """The constant that a tensor is, and its sizes; exporters store one direction as a matrix, and unsqueeze it."""
    if name in graph.constants:
        return graph.constants[name], tuple(int(size) for size in graph.constants[name].shape)
    index = graph.producers.get(name)
    if index is None or not is_standard_op(graph.nodes[index], "Unsqueeze"):
        return None, ()
    constant, shape = _constant(graph, graph.nodes[index].input[0])
    return constant, (1, *shape)


def _biases(node: NodeView, cell: Cell, directions: int, hidden: int) -> tuple[Floats | None, Floats | None]:
    """What is added to the product of the input, and to that of the state.

    The two of a gate are one, unless r multiplies the second: that of n, where linear_before_reset is 1.
    """
    if not node.input(3):
        return None, None
    node.graph.fold(node.input(3))
    rows = directions * gate_count(cell) * hidden
    both = node.float_vector(3, 2 * rows, "the bias").reshape(directions, 2, gate_count(cell), hidden)
    of_input, of_state = both[:, 0].copy(), np.zeros_like(both[:, 1])
    if cell == "gru_linear":
        of_input[:, :2] += both[:, 1, :2]
        of_state[:, 2] = both[:, 1, 2]
        return of_input.reshape(-1), of_state.reshape(-1)
    return (of_input + both[:, 1]).reshape(-1), None


def _first_states(node: NodeView) -> tuple[str, ...]:
    """Names of the first states; none where they are zero."""
    positions = (_FIRST_H, _FIRST_C) if node.op == "LSTM" else (_FIRST_H,)
    given = [p for p in positions if node.input(p) and not _is_filled(node.graph, node.input(p), 0)]
    if not given:
        return ()
    if len(given) < len(positions):
        raise NotLowered("no kernel with one of two first states")
    for position in given:
        if node.constant(position) is None:
            node.operand(position, "rows")
        if len(node.dims(position)) != _AXES:
            raise NotLowered(f"its first state {node.input(position)!r} is not [directions, batch, units]")
    return tuple(node.input(position) for position in given)


def _lengths(node: NodeView) -> str:
    """The name of the sequences' lengths; empty where all have all steps."""
    name = node.input(_LENGTHS)
    if not name or _is_filled(node.graph, name, node.dims(0)[0]):
        return ""
    if len(node.dims(_LENGTHS)) != 1:
        raise NotLowered(f"the lengths {name!r} of its sequences are not one for each")
    return name


def _is_filled(graph: GraphView, name: str, value: Dim) -> bool:
    """Whether a tensor is known to have ``value`` alone."""
    if graph.fold(name):
        return bool(np.all(graph.values_of(name) == value))
    vector = graph.vector(name)
    if vector is not None:
        return all(element == value for element in vector)
    index = graph.producers.get(name)
    if index is None:
        return False
    maker = graph.nodes[index]
    if is_standard_op(maker, "ConstantOfShape"):
        filled = [onnx.numpy_helper.to_array(attribute.t) for attribute in maker.attribute]
        return all(np.all(values == value) for values in filled) if filled else value == 0
    if is_standard_op(maker, "Concat"):
        return all(_is_filled(graph, operand, value) for operand in maker.input)
    return is_standard_op(maker, *_COPYING) and _is_filled(graph, maker.input[0], value)


def _is_read(node: NodeView, name: str) -> bool:
    return bool(name) and (bool(node.graph.readers.get(name)) or name in node.graph.outputs)


def _all_states(node: NodeView, spec: Recurrent, states: str, output: str) -> list[Step]:
    """Y, [steps, directions, batch, units]."""
    directions, hidden = len(spec.reversed), spec.weights.columns
    steps = []
    if spec.channels > spec.states:
        taken = Range(2, 0, spec.states, of=spec.channels)
        steps.append(_made(node, Sliced((taken,)), (states,), made_name(output, "h")))
        states = made_name(output, "h")
    apart = Reshaped(((0, 1), (1, 2), directions, hidden))
    steps.append(_made(node, apart, (states,), made_name(output, "directions")))
    steps.append(_made(node, Transposed((0, 2, 1, 3)), (made_name(output, "directions"),), output))
    return steps


def _last_states(node: NodeView, spec: Recurrent, states: str, output: str, channel: int) -> list[Step]:
    """Y_h or Y_c, [directions, batch, units]: of each direction the channels from ``channel`` on of its last step."""
    hidden, directions = spec.weights.columns, len(spec.reversed)
    steps = []
    names = [output] if directions == 1 else [made_name(output, str(number)) for number in range(directions)]
    for number, (name, is_reversed) in enumerate(zip(names, spec.reversed, strict=True)):
        first = channel + number * hidden
        last = Range(0, 0, 1) if is_reversed else Range(0, -1, None)
        own = Range(2, first, first + hidden, of=spec.channels)
        steps.append(_made(node, Sliced((last, own)), (states,), name))
    if directions > 1:
        steps.append(_made(node, Joined(0, tuple(range(directions)), directions), tuple(names), output))
    return steps


def _made(node: NodeView, spec: Spec, inputs: tuple[str, ...], output: str) -> Step:
    return Step(spec, inputs, output, "rows", "rows", (node.index,))
