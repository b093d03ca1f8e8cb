"""A full set of results, each written by its verb, and a page of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import BROWSERS, Browser, Page, find_browser

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

from training.trainer.cases import arrays, classifier

from sift_onnx.cli import main

RECIPE = """\
version: 1
training:
  epochs: 2
  batch_size: 16
  folded_batch_norm: allow
  log_every: 2
"""
RIGL = "  sparsity: {algorithm: rigl, sparsity: masks, update: {freq: 2}, metrics: true}\n"
# Of every verb that a report shows; run in this order, in one folder.
COMMANDS = """\
transform net.onnx wide.onnx --wide 0.5 --budget layer --json transform.json
prune net.onnx pruned.onnx --sparsity 0.5 --json prune.json
inspect wide.onnx --json inspect.json
check wide.onnx --json check.json
train net.onnx net-trained.onnx --recipe dense.yaml --data d.npz --device cpu --json train-dense.json
train wide.onnx wide-trained.onnx --recipe rigl.yaml --data d.npz --device cpu --json train.json
benchmark wide.onnx --baseline net.onnx --backend cpu --backend onnxruntime --backend dataflow --batch 2 \
--seconds 0.02 --warmup 0 --json benchmark.json
profile wide.onnx --backend cpu --batch 2 --json profile.json
simulate wide.onnx --baseline net.onnx --input-shapes x:2,1,6,6 --html simulation.html --json simulate.json
"""


def call(command: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(args=command.split())
    return int(stop.value.code or 0)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all results, and of ``report.html``."""
    folder = tmp_path_factory.mktemp("results")
    classifier(folder / "net.onnx", norm=False)
    arrays(folder / "d.npz")
    (folder / "dense.yaml").write_text(RECIPE)
    (folder / "rigl.yaml").write_text(RECIPE + RIGL)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for command in COMMANDS.splitlines():
            assert call(command) == 0, command
        files = " ".join(sorted(path.name for path in folder.glob("*.json")))
        assert call(f"report {files} --model wide-trained.onnx --html report.html --json page.json") == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)} is found")
    with Browser(program) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.page() as tab:
        yield tab
