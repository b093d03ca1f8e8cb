"""Time per step of a region, compared with the peak rate of the machine."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt
from msgspec.structs import replace

from sift_onnx.backends.base import NodeProfile
from sift_onnx.backends.cpu.run.peak import Peak
from sift_onnx.backends.cpu.run.region_program import RegionProgram, StepTime
from sift_onnx.backends.lowering.specs import LinearLayer, QuantizedMatmul, Recurrent

__all__ = ["profile_region", "with_shares"]


def profile_region(
    program: RegionProgram, values: Mapping[str, npt.NDArray[Any]], reasons: Mapping[str, str], runs: int, peak: Peak
) -> list[NodeProfile]:
    """The steps of a region, with medians over ``runs`` runs, and without shares of the peak.

    Args:
        program: the region.
        values: its inputs, by name.
        reasons: why a node is where it is, by name.
        runs: to be timed; one more is not.
        peak: sampled before each of them.
    """
    program.run(values)
    sums: dict[int | None, list[float]] = defaultdict(list)
    flops: dict[int, float] = {}
    shapes: dict[int, StepTime] = {}
    for _ in range(runs):
        peak.sample()
        times: list[StepTime] = []
        program.run(values, times)
        per_step: dict[int | None, float] = defaultdict(float)
        flops.clear()
        for item in times:
            per_step[item.step] += item.seconds
            if item.step is not None:
                flops[item.step] = flops.get(item.step, 0.0) + program.flops(item)
                shapes.setdefault(item.step, item)
        for timed, seconds in per_step.items():
            sums[timed].append(seconds)
    nodes = []
    region = program.region
    for number, (step, name, op) in enumerate(zip(region.steps, region.names, region.ops, strict=True)):
        if number not in sums:
            continue
        seconds = statistics.median(sums[number])
        layer = step.spec if isinstance(step.spec, (LinearLayer, QuantizedMatmul, Recurrent)) else None
        together = [number for number, _ in shapes[number].together] or [number]
        fused = sum(len(region.steps[own].nodes) for own in together) - 1
        reason = reasons.get(name, "")
        nodes.append(
            NodeProfile(
                name=name,
                op=op,
                placement="kernels",
                reason=f"{reason}; {fused} nodes behind it are fused into it" if fused else reason,
                ms=1e3 * seconds,
                kernel=program.kernel_name(shapes[number]),
                density=layer.weights.density if layer else None,
                gflops=flops[number] / seconds / 1e9 if layer and seconds else None,
            )
        )
    if None in sums:
        seconds = statistics.median(sums[None])
        nodes.append(
            NodeProfile("", "Reorder", "kernels", "into the kernels' layout and back", 1e3 * seconds, kernel="reorder")
        )
    return nodes


def with_shares(nodes: Iterable[NodeProfile], peak: Peak) -> tuple[NodeProfile, ...]:
    """``nodes`` with their rates as shares of ``peak``, the same for all; the peak is that of floats, not of int8."""
    return tuple(
        node
        if node.gflops is None or (node.kernel or "").startswith("int8")
        else replace(node, share_of_peak=node.gflops / peak.gflops)
        for node in nodes
    )
