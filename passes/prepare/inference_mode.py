"""Every node as it is at inference, whatever the model was exported for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import onnx_graphsurgeon as gs

from sift_onnx.analysis.training_mode import (
    TrainingNode,
    drawing_nodes,
    has_is_test,
    has_modes,
    in_words,
    training_input,
    training_nodes,
)
from sift_onnx.errors import UnsupportedError
from sift_onnx.graphs.unread_nodes import drop_makers
from sift_onnx.model import Model
from sift_onnx.operators.labels import node_name
from sift_onnx.passes.base import Pass, PassResult
from sift_onnx.passes.prepare.inline_functions import InlineFunctions

__all__ = ["InferenceMode", "in_inference_mode", "on_inference_graph"]

AnyPass = TypeVar("AnyPass", bound=Pass)


@dataclass(frozen=True)
class InferenceMode(Pass):
    """Put BatchNormalization and Dropout into inference mode.

    An export with ``training=TrainingMode.TRAINING`` keeps normalizations apart from convolutions, and has them
    normalize by the batch: outputs depend on what else is in it. Trained or not, such a model is no good for inference.

    1. Local functions are inlined where one of their nodes trains.
    2. BatchNormalization normalizes by its running statistics; Dropout hands its input on, and keeps its ratio for
       training.
    3. What these nodes make only in training, statistics and masks, goes.

    Requires: nothing reads what goes, running statistics are there, and the mode is stored. Ensures: no node of the
    model is in training mode; one without such nodes is handed back as it is.
    """

    name: ClassVar[str] = "inference-mode"

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the nodes, and warns of those that draw random numbers.

        Raises:
            UnsupportedError: a node cannot be put into inference mode; the message names it and says why.
        """
        inlined = InlineFunctions()(model).model if any(map(has_modes, model.graph.functions)) else model
        found = training_nodes(inlined.graph)
        hindered = [entry for entry in found if entry.obstacle]
        if hindered:
            others = f", nor can {len(hindered) - 1} others" if len(hindered) > 1 else ""
            raise UnsupportedError(
                f"{in_words([hindered[0].node])} cannot be put into inference mode{others}: {hindered[0].obstacle}"
            )
        report = {"inference_mode": [node_name(entry.node) for entry in found], "warnings": _of_chance(inlined.graph)}
        if not found:
            return PassResult(model, False, report)
        copy = inlined.copy()
        for entry in training_nodes(copy.graph):
            _infer(entry)
        return PassResult(copy, True, report)


def on_inference_graph(apply: Callable[[Model], PassResult], model: Model) -> PassResult:
    """Apply passes to a model in inference mode.

    Args:
        apply: the passes.
        model: in whatever mode.

    Returns:
        Their result, with what :class:`InferenceMode` reports in its report.

    Raises:
        SiftError: see :class:`InferenceMode` and the passes.
    """
    ready = InferenceMode()(model)
    result = apply(ready.model)
    warnings = list(dict.fromkeys([*result.report.get("warnings", ()), *ready.report["warnings"]]))
    report = {**result.report, **ready.report, "warnings": warnings}
    return PassResult(result.model, result.changed or ready.changed, report)


def in_inference_mode(call: Callable[[AnyPass, Model], PassResult]) -> Callable[[AnyPass, Model], PassResult]:
    """Decorator of a pass's ``call``: it is given models in inference mode; see :func:`on_inference_graph`."""

    @functools.wraps(call)
    def wrapped(self: AnyPass, model: Model) -> PassResult:
        return on_inference_graph(functools.partial(call, self), model)

    return wrapped


def _of_chance(graph: gs.Graph) -> list[str]:
    nodes = drawing_nodes(graph)
    if not nodes:
        return []
    return [
        f"outputs depend on chance: {in_words(nodes)} draw random numbers whenever the model runs; if that is noise of "
        "training, like stochastic depth, export the network after model.eval()"
    ]


def _infer(entry: TrainingNode) -> None:
    node = entry.node
    position = training_input(node, entry.version)
    if position is not None:
        mode = node.inputs[position]
        node.inputs = list(node.inputs)[:position]
        drop_makers(entry.graph, [mode])
    node.attrs.pop("training_mode", None)
    if has_is_test(entry.version):
        node.attrs["is_test"] = 1
    node.outputs = list(node.outputs)[:1]
