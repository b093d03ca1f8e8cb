"""Assignments to slices of a tensor, as torch's exporters write them."""

from __future__ import annotations

from nets import Net

END = (1 << 63) - 1
Part = tuple[int, int] | int | None


def integers(net: Net, *numbers: int) -> str:
    """A list of integers as an initializer."""
    return net.constant(list(numbers), dtype="int64")


def positions(net: Net, x: str, axis: int, part: Part, step: int = 1) -> str:
    """The positions of a part of an axis, one after the other: a range, of which a slice takes some."""
    size = net.op("Gather", net.op("Shape", x), net.constant(axis, dtype="int64"), axis=0)
    found = net.op("Range", net.constant(0, dtype="int64"), size, net.constant(1, dtype="int64"))
    if isinstance(part, tuple):
        bounds = [integers(net, number) for number in (*part, 0, step)]
        found = net.op("Slice", found, *bounds)
    return str(found)


def part_of(net: Net, x: str, *parts: Part) -> str:
    """The slice that is assigned to; one place keeps its axis."""
    for axis, part in enumerate(parts):
        if part is not None:
            bounds = part if isinstance(part, tuple) else (part, part + 1 or END)
            x = net.op("Slice", x, *[integers(net, number) for number in (*bounds, axis)])
    return x


def assigned(net: Net, x: str, value: str, *parts: Part, step: int = 1, **attrs: str) -> str:
    """``x[parts] = value`` by a grid of places, as torch's TorchScript exporter writes it.

    Args:
        net: that gets the nodes.
        x: the tensor.
        value: of the sizes of the slice, see :func:`part_of`.
        parts: along each of the first axes: None is all of it, a pair is a range, a number is one place.
        step: between the positions of ranges.
        attrs: of ScatterND.
    """
    lines = []
    for axis, part in enumerate(parts):
        if isinstance(part, int):
            lines.append(integers(net, part))
            target = [1] * len(parts)
        else:
            lines.append(positions(net, x, axis, part, step))
            target = [-1 if other == axis else 1 for other in range(len(parts))]
        lines[-1] = net.op("Reshape", lines[-1], integers(net, *target))
    total = lines[0]
    for line in lines[1:]:
        total = net.op("Add", total, line)
    shape = net.op("Shape", total)
    columns = [net.op("Unsqueeze", net.op("Expand", line, shape), integers(net, -1)) for line in lines]
    grid = net.op("Concat", *columns, axis=-1)
    rest = net.op("Slice", net.op("Shape", x), integers(net, len(parts)), integers(net, END))
    target = net.op("Concat", shape, rest, axis=0)
    return str(net.op("ScatterND", x, grid, net.op("Reshape", value, target), **attrs))


def assigned_rows(net: Net, x: str, value: str, part: Part, rank: int, axis: int, step: int = 1) -> str:
    """``x[..., part, ...] = value`` along one axis that is turned to be the first, as torch.export has it."""
    order = [axis, *(other for other in range(rank) if other != axis)]
    back = [order.index(other) for other in range(rank)]
    places = net.op("Unsqueeze", positions(net, x, axis, part, step), integers(net, -1))
    turned = [net.op("Transpose", name, perm=order) for name in (x, value)]
    return str(net.op("Transpose", net.op("ScatterND", turned[0], places, turned[1], reduction="none"), perm=back))
