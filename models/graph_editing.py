"""Walking over the messages of a graph, and deleting some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence
from typing import Any, TypeVar

import onnx

__all__ = ["all_nodes", "drop_unread_nodes", "keep"]

Message = TypeVar("Message")


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from all_nodes(inner)


def drop_unread_nodes(graph: onnx.GraphProto) -> None:
    """Remove the nodes of the main graph whose outputs nothing reads, and those that only they read."""
    read = {value.name for value in graph.output}
    for position in reversed(range(len(graph.node))):
        node = graph.node[position]
        if read.isdisjoint(node.output):
            del graph.node[position]
            continue
        read.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                read.update(name for nested in all_nodes(inner) for name in nested.input)
                read.update(value.name for value in inner.output)


def keep(messages: MutableSequence[Message], is_kept: Callable[[Message], Any]) -> None:
    """Delete the messages that are not kept, one by one, as a repeated field requires."""
    for position in reversed(range(len(messages))):
        if not is_kept(messages[position]):
            del messages[position]
