"""The page about weights as they come from memory is what its script makes of the committed results."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks" / "decode"


def test_the_page_is_made_of_the_results() -> None:
    spec = importlib.util.spec_from_file_location("decode_page", FOLDER / "page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    folders = (page.RESULTS, page.TOKENS, page.PERPLEXITY)
    documents = [[page.pages.read(path) for path in sorted(at.glob("*.json"))] for at in folders]
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == page.page(*documents)
