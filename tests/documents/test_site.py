"""The site builds without a warning, has a page for every verb and every public name, and no broken link."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents.test_api_pages import PUBLIC, python_pages

from sift_onnx.cli.app import VERBS

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"

# Packages are looked for and not imported: collecting the fast tests would take seconds longer.
NEEDED = ("mkdocs", "torch", "olive", "onnx_ir", "onnxscript", "qonnx")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(importlib.util.find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}"),
]


def build() -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "build/mkdocs.yml"]
    environment = dict(os.environ, NO_MKDOCS_2_WARNING="1")
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_site_has_everything_and_a_broken_link_is_an_error() -> None:
    subprocess.run([sys.executable, "docs/site/lay_out.py"], cwd=ROOT, check=True)
    done = build()
    assert done.returncode == 0, done.stderr[-3000:]
    pages = python_pages()
    for name in PUBLIC:
        text = (SITE / "reference" / "python" / f"{name}.html").read_text(encoding="utf-8")
        for public in pages.documented_names(name):
            if not inspect.ismodule(getattr(importlib.import_module(name), public)):
                assert f'id="{pages.place_of(name, public)}"' in text, f"{name}.{public}"
        assert not re.search(r":(?:func|class|meth|mod|data):|`~", text)
    assert "auto|none|bn-relu|relu|gelu" in (SITE / "docs" / "transform.html").read_text(encoding="utf-8")
    for verb in VERBS:
        assert f">{verb}" in (SITE / "reference" / "verbs" / f"{verb}.html").read_text(encoding="utf-8")

    with (ROOT / "build" / "site-source" / "docs" / "glossary.md").open("a", encoding="utf-8") as page:
        page.write("\n[gone](gone.md)\n")
    broken = build()
    assert broken.returncode != 0
    assert "gone.md" in broken.stderr
