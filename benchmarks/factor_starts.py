"""How near `--init svd` starts to the model that it starts from, beside magnitude pruning: ResNet-18 for CIFAR.

    python benchmarks/factor_starts.py [--width 0.5]

Weights are fresh, or fresh ones whose singular values are made to decay as ``i ** -0.7``, as training makes them.
Errors are relative: of the outputs for random images (Euclidean norm), and of each weight (Frobenius norm), averaged
over the transformed layers. Everything is linear (``activation="none"``), so that the difference is the approximation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from sift_onnx.models.export import export
from sift_onnx.passes import Doped, Factorized, LowRank, Pass, Prune

IMAGES = 8


@click.command()
@click.option("--width", type=float, default=0.5, show_default=True, help="Factor on the channels.")
def main(width: float) -> None:
    """Print a Markdown table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export("resnet18-cifar", path, width=width, batch="dynamic", keep_batch_norm=False, seed=1)
        fresh = onnx.load(path)
    decaying = with_decaying_spectrum(fresh)
    click.echo("| start | outputs, fresh | outputs, decaying | weights, fresh | weights, decaying |")
    click.echo("| --- | ---: | ---: | ---: | ---: |")
    for label, pass_ in starts():
        found = [errors(pass_, model) for model in (fresh, decaying)]
        (output, weight), (output_decaying, weight_decaying) = found
        click.echo(f"| {label} | {output:.3f} | {output_decaying:.3f} | {weight:.3f} | {weight_decaying:.3f} |")


def starts() -> Iterator[tuple[str, Pass]]:
    """What is compared."""
    for sparsity in ("0.5", "0.75", "0.9"):
        yield f"Doped {sparsity}", Doped(sparsity, init="svd", activation="none")
        yield f"Factorized {sparsity}", Factorized(sparsity, init="svd", activation="none")
        yield f"magnitude pruning {sparsity}", Prune(sparsity)
    yield "low rank, width 1", LowRank(1, init="svd", activation="none")


def errors(pass_: Pass, model: onnx.ModelProto) -> tuple[float, float]:
    """Relative error of the outputs, and of the weights."""
    result = pass_(model)
    expected, found = outputs(model), outputs(result.model.to_proto())
    by_layer = [layer["weight_error"] for layer in result.report["layers"] if "weight_error" in layer]
    if not by_layer:
        by_layer = list(pruned_weight_errors(model, result.model.to_proto()))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected)), float(np.mean(by_layer))


def pruned_weight_errors(before: onnx.ModelProto, after: onnx.ModelProto) -> Iterator[float]:
    """Of the weights that pruning changed."""
    pruned = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    for tensor in before.graph.initializer:
        values = numpy_helper.to_array(tensor)
        other = pruned.get(tensor.name)
        if other is not None and values.ndim == 4 and not np.array_equal(other, values):
            yield float(np.linalg.norm(other - values) / np.linalg.norm(values))


def outputs(model: onnx.ModelProto) -> np.ndarray:
    """For random images."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).standard_normal((IMAGES, 3, 32, 32)).astype(np.float32)
    return session.run(None, {session.get_inputs()[0].name: images})[0].astype(np.float64)


def with_decaying_spectrum(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose convolutions have decaying singular values and the norms that they had."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in copy.graph.initializer:
        if len(tensor.dims) != 4:
            continue
        values = numpy_helper.to_array(tensor)
        left, singular, right = np.linalg.svd(values.reshape(values.shape[0], -1), full_matrices=False)
        scaled = singular * np.arange(1, singular.size + 1) ** -0.7
        scaled *= np.linalg.norm(singular) / np.linalg.norm(scaled)
        decayed = ((left * scaled) @ right).reshape(values.shape).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(decayed, tensor.name))
    return copy


if __name__ == "__main__":
    main()
