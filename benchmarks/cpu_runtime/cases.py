"""The models that are measured, made where they are missing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import sift_onnx
from sift_onnx.models import ARCHITECTURES
from sift_onnx.models.export import export

__all__ = ["BATCHES", "CHAIN_ROWS", "Models", "stage_of"]

# A batch, and the next multiple of 16.
BATCHES = ((2, 16), (15, 16), (17, 32), (33, 48))
CHAIN_ROWS = (1, 64, 256)
_LAYERS, _SIZE = 4, 2048
_SEQUENCE = 128


class Models:
    """Files in a folder.

    Attributes:
        folder: where they are kept; made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def dense(self, name: str) -> Path:
        """An architecture as it is deployed, normalizations folded, with random weights."""
        path = self.folder / f"{name}.onnx"
        if not path.exists():
            sequence = _SEQUENCE if name.startswith(("bert", "gpt")) else None
            # Branches that start at zero have weights of zero once folded, which some runtimes skip.
            residuals = False if "zero_init_residual" in ARCHITECTURES[name].options else None
            export(name, path, batch="dynamic", sequence=sequence, keep_batch_norm=False, zero_init_residual=residuals)
        return path

    def wide(self, name: str, sparsity: float) -> Path:
        """What Sparse Wide makes of it."""
        path = self.folder / f"{name}-wide-{sparsity:g}.onnx"
        if not path.exists():
            budget = "layer" if name.startswith(("bert", "gpt")) else "model"
            sift_onnx.save(sift_onnx.transform(self.dense(name), wide=sparsity, budget=budget), path)
        return path

    def chain(self, sparsity: float) -> Path:
        """Matrix products, each followed by a ReLU."""
        path = self.folder / f"chain-{sparsity:g}.onnx"
        if path.exists():
            return path
        rng = np.random.default_rng(0)
        nodes, constants, x = [], [], "x"
        for layer in range(_LAYERS):
            weight = rng.standard_normal((_SIZE, _SIZE), np.float32) * np.float32((2 / _SIZE / (1 - sparsity)) ** 0.5)
            weight *= rng.random(weight.shape) >= sparsity
            constants += [numpy_helper.from_array(weight, f"w{layer}")]
            constants += [numpy_helper.from_array(np.zeros(_SIZE, np.float32), f"b{layer}")]
            nodes.append(helper.make_node("Gemm", [x, f"w{layer}", f"b{layer}"], [f"y{layer}"], transB=1))
            nodes.append(helper.make_node("Relu", [f"y{layer}"], [f"x{layer}"]))
            x = f"x{layer}"
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", _SIZE]) for name in ("x", x)]
        graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], constants)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def stage_of(node: str) -> str:
    """The stage of ResNet-18 whose 3x3 convolution with stride 1 a node is; empty if it is none."""
    found = re.fullmatch(r"/layer(\d)/layer\d\.(\d)/conv(\d)/Conv", node)
    if found is None or (found[1] != "1" and found[2] == "0" and found[3] == "1"):
        return ""
    return f"stage {found[1]}"
