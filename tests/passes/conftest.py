"""ResNets as users export them: straight from torch's two exporters, without this package's own cleaning."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import onnx
import pytest
import torch

from sift_onnx.models import build


@lru_cache(maxsize=4)
def export(name: str, variant: str, width: float = 1.0) -> onnx.ModelProto:
    """A freshly initialised network as ONNX.

    Args:
        name: an architecture of :mod:`sift_onnx.models`.
        variant: ``torchscript|dynamo``, ``folded|kept`` BatchNorm and ``static|dynamic`` batch, joined by dashes.
        width: factor on the channels.
    """
    exporter, norm, batch = variant.split("-")
    module = build(name, width=width, seed=1).eval()
    size = 32 if "cifar" in name else 224
    image = torch.zeros(2 if batch == "dynamic" else 1, 3, size, size)
    with tempfile.TemporaryDirectory() as folder, _silence():
        path = Path(folder) / "model.onnx"
        if exporter == "torchscript":
            kept = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
            torch.onnx.export(
                module,
                (image,),
                path,
                dynamo=False,
                opset_version=17,
                input_names=["x"],
                dynamic_axes={"x": {0: "batch"}} if batch == "dynamic" else None,
                **(kept if norm == "kept" else {}),
            )
        else:
            torch.onnx.export(
                module,
                (image,),
                path,
                dynamo=True,
                opset_version=20,
                optimize=norm == "folded",
                external_data=False,
                verbose=False,
                dynamic_shapes=({0: torch.export.Dim("batch")},) if batch == "dynamic" else None,
            )
        return onnx.load(path)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.fixture
def exported(torch_operators: None) -> Callable[..., onnx.ModelProto]:
    """:func:`export`."""
    return export
