"""Export the models of ``small_models.py``, each with the three exporters of the zoo.

    python benchmarks/growth/export.py --folder build/growth --model 'resnet*'

Needs torch, onnxscript, timm, torchvision and transformers, and downloads nothing. What exists is skipped; an export
that failed has a file that says how.
"""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import torch
from growth_model import GrowthModel
from small_models import MODELS

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))

from export_one import cause_of, let_torchvision_load, randomize
from settings import EXPORTERS

__all__ = ["main"]

# Examples that statistics are of.
_BATCH = 16


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/growth"), help="Where the files go.")
@click.option("--model", "globs", multiple=True, default=("*",), help="Glob over model names (repeatable).")
@click.option("--exporter", "exporters", multiple=True, type=click.Choice(list(EXPORTERS)), default=list(EXPORTERS))
@click.option("--seconds", default=600, show_default=True, help="For one export.")
@click.option("--retry", is_flag=True, help="Repeat exports that failed before.")
def main(folder: Path, globs: Sequence[str], exporters: Sequence[str], seconds: int, retry: bool) -> None:
    """Export what is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    let_torchvision_load()
    # In evaluation nn.MultiheadAttention runs as one fused operator, which TorchScript's exporter does not know.
    torch.backends.mha.set_fastpath_enabled(False)
    for exporter in exporters:
        for model in MODELS:
            target = folder / f"{model.name}-{exporter}.onnx"
            failed = target.with_suffix(".failed")
            if target.exists() or (failed.exists() and not retry) or not any(fnmatch(model.name, g) for g in globs):
                continue
            try:
                with (
                    contextlib.redirect_stdout(io.StringIO()),
                    contextlib.redirect_stderr(io.StringIO()),
                    limit(seconds),
                ):
                    export(model, exporter, target)
                failed.unlink(missing_ok=True)
                click.echo(target.name)
            except Exception as error:  # whatever an exporter raises is what is recorded
                failed.write_text(cause_of(error)[:300], encoding="utf-8")
                click.echo(f"{target.name}: {cause_of(error)[:300]}")


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise a TimeoutError after so many seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def make_trained_like(module: torch.nn.Module, shapes: Sequence[tuple[int, ...]]) -> None:
    """Give parameters values as training would, so that outputs depend on inputs.

    What starts at zero is drawn; statistics of BatchNorm are those of a batch.
    """
    randomize(module)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim != 1 and not parameter.any():
                parameter.uniform_(-0.1, 0.1) if parameter.ndim else parameter.uniform_(0.5, 1.5)
        norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        if not norms:
            return
        for norm in norms:
            norm.momentum = 1.0
        module.train()
        module(*(torch.randn(_BATCH, *shape[1:]) for shape in shapes))
        module.eval()


def export(model: GrowthModel, exporter: str, target: Path) -> None:
    """Write the file as a user of ``torch.onnx.export`` would; it gets its name once it is complete."""
    torch.manual_seed(0)
    module = model.build().eval()
    make_trained_like(module, list(model.inputs.values()))
    kind, opset = EXPORTERS[exporter]
    arguments = tuple(
        torch.zeros(shape, dtype=torch.int64) if name.endswith("ids") else torch.zeros(shape)
        for name, shape in model.inputs.items()
    )
    options: dict[str, Any] = {"dynamo": kind == "dynamo", "opset_version": opset, "input_names": list(model.inputs)}
    if kind == "dynamo":
        options |= {"external_data": False, "verbose": False}
    draft = target.with_suffix(".draft")
    with torch.no_grad():
        torch.onnx.export(module, arguments, str(draft), **options)
    draft.replace(target)


if __name__ == "__main__":
    main()
