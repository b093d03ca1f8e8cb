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
SITE, CONFIG = ROOT / "build" / "site", ROOT / "build" / "mkdocs.yml"

# Packages are looked for and not imported: collecting the fast tests would take seconds longer.
NEEDED = ("mkdocs", "torch", "olive", "onnx_ir", "onnxscript", "qonnx")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(importlib.util.find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}"),
]


def lay_out() -> str:
    """The settings of the site, without its navigation."""
    subprocess.run([sys.executable, "docs/site/lay_out.py"], cwd=ROOT, check=True)
    return CONFIG.read_text(encoding="utf-8").partition("\nnav:\n")[0]


def build(config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)]
    environment = dict(os.environ, NO_MKDOCS_2_WARNING="1")
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_site_has_everything() -> None:
    lay_out()
    done = build(CONFIG)
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


@pytest.mark.parametrize(("link", "is_broken"), [("index.md", False), ("gone.md", True)])
def test_a_broken_link_is_an_error(tmp_path: Path, link: str, is_broken: bool) -> None:
    """In a site of one page, which takes less time, with the same settings."""
    settings = lay_out()
    for setting, name in (("docs_dir", "site-source"), ("site_dir", "site")):
        assert f"{setting}: {name}\n" in settings
        settings = settings.replace(f"{setting}: {name}\n", f"{setting}: {tmp_path / setting}\n")
    (tmp_path / "docs_dir").mkdir()
    (tmp_path / "docs_dir" / "index.md").write_text(f"# Page\n\n[a link]({link})\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    done = build(tmp_path / "mkdocs.yml")
    assert (done.returncode != 0) == is_broken, done.stderr[-3000:]
    assert ("gone.md" in done.stderr) == is_broken
