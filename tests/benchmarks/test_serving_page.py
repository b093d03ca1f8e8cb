"""The page about serving is what its script makes of the committed results."""

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks" / "serving"


def test_the_page_is_made_of_the_results():
    found = importlib.util.spec_from_file_location("serving_page", FOLDER / "page.py")
    page = importlib.util.module_from_spec(found)
    found.loader.exec_module(page)
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == page.page()
