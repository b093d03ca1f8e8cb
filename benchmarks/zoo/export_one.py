"""Export one model of the zoo with one exporter; ``export.py`` runs this, each time in a process of its own."""

from __future__ import annotations

import argparse
import io
import json
import logging
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import onnx
import torch
from catalogue import ZooModel, find
from settings import EXPORTERS

__all__ = ["main"]


def let_torchvision_load() -> None:
    """Make torchvision importable where its compiled operators are not: its models need none of them.

    Importing it registers shape functions for those operators, which fails beside a torch that has not loaded them,
    such as a CPU build beside a wheel made for an accelerator.
    """
    register_fake = torch.library.register_fake

    def register_others(op: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(op, str) and op.startswith("torchvision::"):
            return lambda function: function
        return register_fake(op, *arguments, **options)

    torch.library.register_fake = register_others


def randomize(module: torch.nn.Module) -> None:
    """Give parameters and statistics of one axis the values that training would: no two tensors stay equal."""
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            # The frequencies of rotary embeddings are no parameters.
            if tensor.ndim != 1 or not tensor.is_floating_point() or name.endswith("inv_freq"):
                continue
            if name.endswith(("bias", "running_mean")):
                tensor.normal_(0, 0.1)
            else:
                tensor.uniform_(0.5, 1.5)


def example(entry: ZooModel, dynamic: bool) -> dict[str, torch.Tensor]:
    """Inputs to trace with; an axis that is to stay open must not be 1."""
    return {
        value.name: torch.ones(value.shapes[-1 if dynamic else 0], dtype=getattr(torch, value.dtype))
        for value in entry.inputs
    }


def export(entry: ZooModel, exporter: str, dynamic: bool, path: Path) -> None:
    """Write the model as a user of ``torch.onnx.export`` would, with the exporter's default settings."""
    torch.manual_seed(0)
    module = entry.build().eval()
    if entry.trained_like:
        randomize(module)
    names = [value.name for value in entry.inputs]
    axes = {value.name: dict(value.dynamic) for value in entry.inputs} if dynamic else None
    kind, opset = EXPORTERS[exporter]
    options: dict[str, Any]
    if kind == "dynamo":
        options = {"dynamo": True, "dynamic_shapes": axes, "external_data": False, "verbose": False}
    else:
        # In evaluation nn.MultiheadAttention runs as one fused operator, which this exporter does not know.
        torch.backends.mha.set_fastpath_enabled(False)
        options = {"dynamo": False, "dynamic_axes": axes}
    with torch.no_grad():
        torch.onnx.export(
            module, (), str(path), kwargs=example(entry, dynamic), input_names=names, opset_version=opset, **options
        )


def cause_of(error: BaseException) -> str:
    """The first line of an error, and that of the error at its root."""
    root = error
    while (inner := root.__cause__ or root.__context__) is not None:
        root = inner
    lines = dict.fromkeys(f"{type(e).__name__}: {(str(e).strip() or '-').splitlines()[0]}" for e in (error, root))
    return "; root: ".join(lines)


def attempt(action: Callable[[], None]) -> tuple[float, str | None]:
    """Seconds that ``action`` took, and how it failed, if it did."""
    start = time.perf_counter()
    error: str | None = None
    try:
        action()
    except Exception as failure:  # whatever an exporter raises is what is recorded
        traceback.print_exc()
        error = cause_of(failure)
    return time.perf_counter() - start, error


def main() -> None:
    """Write the file, and beside it a JSON document on how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("exporter", choices=EXPORTERS)
    parser.add_argument("axes", choices=("static", "dynamic"))
    parser.add_argument("file", type=Path)
    parser.add_argument("record", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    let_torchvision_load()
    entry = find(given.model)
    with redirect_stdout(io.StringIO()):
        seconds, error = attempt(lambda: export(entry, given.exporter, given.axes == "dynamic", given.file))
    record: dict[str, Any] = {"seconds": round(seconds, 1), "error": error}
    if error is None:
        graph = onnx.load(given.file, load_external_data=False).graph
        record |= {
            "nodes": len(graph.node),
            "inputs": [value.name for value in graph.input],
            "outputs": [value.name for value in graph.output],
        }
    given.record.write_text(json.dumps(record))


if __name__ == "__main__":
    main()
