"""Grow every export of `export.py` at two sparsities, with the original in it, and compare outputs and costs.

    python benchmarks/growth/zoo.py --folder build/growth --results benchmarks/growth/zoo.json

What the results have is not run again; ``--again`` repeats what did not come out right.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import numpy as np
from grown import grow
from growth_model import GrowthModel
from small_models import MODELS
from verdicts import verdict

from sift_onnx.shapes.random_inputs import Feeds

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))

import pages
from settings import EXPORTERS

__all__ = ["main"]

_LARGEST_TOKEN = 64


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/growth"), help="Where the exports are.")
@click.option("--results", type=click.Path(path_type=Path), required=True)
@click.option("--model", "globs", multiple=True, default=("*",), help="Glob over model names (repeatable).")
@click.option("--sparsity", "sparsities", multiple=True, default=("0.5", "0.75"), show_default=True)
@click.option("--again", is_flag=True, help="Repeat what did not grow as it should.")
def main(folder: Path, results: Path, globs: Sequence[str], sparsities: Sequence[str], again: bool) -> None:
    """Grow what the results do not have."""
    logging.disable(logging.WARNING)
    rows = {_key(row): row for row in (pages.read(results)["rows"] if results.exists() else [])}
    with tempfile.TemporaryDirectory() as scratch:
        for exporter in EXPORTERS:
            for model in MODELS:
                path = folder / f"{model.name}-{exporter}.onnx"
                if not any(fnmatch(model.name, glob) for glob in globs) or not path.exists():
                    continue
                about = {"model": model.name, "library": model.library, "family": model.family, "exporter": exporter}
                for sparsity in sparsities:
                    known = rows.get((model.name, exporter, sparsity))
                    if known is not None and not (again and verdict(known) != "grown"):
                        continue
                    row = about | grow(path, [_feeds(model)], sparsity, Path(scratch) / "grown.onnx")
                    rows[_key(row)] = row
                    pages.write(results, list(rows.values()))
                    why = row.get("refused") or row.get("defect") or f"{row['error']:.1e} {row['share']} {row['kept']}"
                    click.echo(f"{path.name} {sparsity} {verdict(row)}: {why}")


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["model"], row["exporter"], row["sparsity"]


def _feeds(model: GrowthModel) -> Feeds:
    generator = np.random.default_rng(0)
    return {
        name: generator.integers(0, _LARGEST_TOKEN, shape)
        if name.endswith("ids")
        else generator.standard_normal(shape).astype(np.float32)
        for name, shape in model.inputs.items()
    }


if __name__ == "__main__":
    main()
