"""Sparse Wide, Parallel, Factorized and Doped on every architecture of ``models/``: same cost, valid, runs, repeats.

    python benchmarks/family.py                              # all architectures, at a quarter of their width
    python benchmarks/family.py --width 1 --model resnet18   # full size

Each result must have the original's weight MACs within 0.1 %, pass the full checker and strict shape inference, give
every tensor of the original its shape (Wide: every input and output), run in onnxruntime with finite outputs, stay as
it is when the same transform is applied again, and have the same bytes when it is made again. A model whose dense
layers grow by more than its budget is not one that Wide applies to; its row says so. Prints a Markdown table.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime

from sift_onnx.errors import BudgetError
from sift_onnx.models import ARCHITECTURES
from sift_onnx.models.export import export
from sift_onnx.passes import Doped, Factorized, Parallel, Wide
from sift_onnx.shapes.random_inputs import random_feeds
from sift_onnx.shapes.tensor_specs import graph_inputs

Member = type[Wide] | type[Parallel] | type[Factorized] | type[Doped]
MEMBERS: tuple[Member, ...] = (Wide, Parallel, Factorized, Doped)
MAC_TOLERANCE = 1e-3


@click.command()
@click.option("--model", "patterns", multiple=True, default=("*",), help="Glob over architectures (repeatable).")
@click.option("--sparsity", "sparsities", multiple=True, default=("0.5", "0.75", "0.9"), show_default=True)
@click.option("--width", type=float, default=0.25, show_default=True, help="Factor on the channels.")
@click.option("--layers", type=int, default=2, show_default=True, help="Of a language model.")
@click.option("--sequence", type=int, default=32, show_default=True, help="Of a language model.")
def main(patterns: tuple[str, ...], sparsities: tuple[str, ...], width: float, layers: int, sequence: int) -> None:
    """Transform every architecture and check the results."""
    click.echo(
        "| model | transform | s | weight MACs | ratio | MACs in sparse layers | search space | unchanged layers |"
    )
    click.echo("| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |")
    failed = False
    for name, architecture in ARCHITECTURES.items():
        if not any(fnmatch(name, pattern) for pattern in patterns):
            continue
        options = {"layers": layers, "sequence": sequence} if "layers" in architecture.options else {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            export(name, path, width=width, keep_batch_norm=False, **options)
            original = onnx.load(path)
        for member in MEMBERS:
            for sparsity in sparsities:
                start = time.perf_counter()
                try:
                    click.echo(row(name, member, sparsity, original))
                except BudgetError as error:
                    click.echo(f"| {name} | {member.name} | {sparsity} | does not apply: {error} |")
                except Exception as error:
                    failed = True
                    click.echo(f"| {name} | {member.name} | {sparsity} | **{type(error).__name__}: {error}** |")
                click.echo(f"{name} {member.name} {sparsity}: {time.perf_counter() - start:.1f} s", err=True)
    sys.exit(failed)


def row(name: str, member: Member, sparsity: str, original: onnx.ModelProto) -> str:
    """Check one result; its line of the table.

    Raises:
        AssertionError: it is not as it should be.
    """
    result = member(sparsity)(original)
    proto = result.model.to_proto()
    totals = result.report["totals"]
    require(abs(totals["weight_macs_ratio"] - 1) <= MAC_TOLERANCE, f"MAC ratio {totals['weight_macs_ratio']}")
    onnx.checker.check_model(proto, full_check=True)
    before, after = shapes(original), shapes(proto)
    ends = {value.name for value in [*original.graph.input, *original.graph.output]}
    compared = ends if member is Wide else before.keys() & after.keys()
    changed = [key for key in compared if before[key] != after[key]]
    require(not changed, f"shapes of {changed[:3]} changed")
    require(all(np.isfinite(value).all() for value in run(proto)), "outputs are not finite")
    require(not member(sparsity)(proto).changed, "a second run changes the result")
    again = member(sparsity)(original).model.to_proto()
    require(again.SerializeToString(deterministic=True) == proto.SerializeToString(deterministic=True), "other bytes")
    return line(name, member, sparsity, result.report)


def line(name: str, member: Member, sparsity: str, report: Any) -> str:
    """A row of the table."""
    totals, layers = report["totals"], report["layers"]
    sparse = sum(layer["macs_after"] for layer in layers if layer["status"] not in ("dense", "unchanged"))
    reasons = Counter(layer["reason"] for layer in layers if layer["status"] in ("dense", "unchanged"))
    left = ", ".join(f"{reason} ({n})" for reason, n in sorted(reasons.items()))
    return (
        f"| {name} | {member.name} | {sparsity} | {totals['weight_macs_after']:,} | {totals['weight_macs_ratio']:.6f} "
        f"| {sparse / totals['weight_macs_after']:.1%} | {totals['search_space']:,} | {left} |"
    )


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with ``message`` unless ``condition``; ``assert`` is not for checks that must happen."""
    if not condition:
        raise AssertionError(message)


def shapes(proto: onnx.ModelProto) -> dict[str, list[int]]:
    """The inferred shape of every tensor."""
    inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    infos = [*inferred.graph.input, *inferred.graph.output, *inferred.graph.value_info]
    return {info.name: [d.dim_value for d in info.type.tensor_type.shape.dim] for info in infos}


def run(proto: onnx.ModelProto) -> Iterator[np.ndarray]:
    """Outputs for random inputs."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    yield from session.run(None, random_feeds(graph_inputs(proto)))


if __name__ == "__main__":
    main()
