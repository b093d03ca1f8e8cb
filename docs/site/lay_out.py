"""Lays out what the site is made of: python docs/site/lay_out.py, then mkdocs build.

The documents keep their places in the repository, so that links between them hold in both; pages of verbs and of public
modules, and the list of benchmarks, are made here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml
from python_pages import python_pages
from verb_pages import verb_pages

__all__ = ["lay_out"]

ROOT = Path(__file__).parents[2]
SOURCE, PACKAGE = ROOT / "build" / "site-source", ROOT / "build" / "site-python"
CONFIG = ROOT / "build" / "mkdocs.yml"
ALONE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CITATION.cff")
FOLDERS = ("docs", "benchmarks")
SUFFIXES = (".md", ".svg", ".css", ".json")
# Where a document goes that mkdocs.yml does not list.
_UNLISTED = "How-to"
# A fence that names its file, as document_blocks.py has it.
_NAMED_FENCE = re.compile(r"^```(\w+) ([\w./-]+)$", re.MULTILINE)

# GitHub wants a pipe escaped in a table's code; Python-Markdown takes it as it is, and shows a backslash.
_CODE_WITH_PIPE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):`(~?)([\w.]+)`")


def lay_out() -> None:
    """Fill build/site-source and build/site-python, and write build/mkdocs.yml with the whole navigation."""
    for folder in (SOURCE, PACKAGE):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ALONE:
        _copy(ROOT / name)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                _copy(path)
    # As wheels lay it out.
    for name, target in {"sift_onnx": ".", "passes": "passes", "backends": "backends", "models": "models"}.items():
        for path in (ROOT / name).rglob("*.py"):
            _copy_module(path, PACKAGE / "sift_onnx" / target / path.relative_to(ROOT / name))
    made = {
        "*verbs": [{name: _write(f"reference/verbs/{name}.md", text)} for name, text in verb_pages()],
        "*python": [{name: _write(f"reference/python/{name}.md", text)} for name, text in python_pages()],
        "*benchmarks": _benchmarks(),
    }
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    head, _, nav = text.partition("\nnav:\n")
    entries = yaml.safe_load(nav)
    for section in entries:
        for title, pages in section.items():
            section[title] = [_filled(page, made) for page in pages] if isinstance(pages, list) else pages
    listed = {path for section in entries for pages in section.values() for path in _paths(pages)}
    unlisted = sorted(str(p.relative_to(SOURCE)) for p in (SOURCE / "docs").rglob("*.md"))
    next(s for s in entries if _UNLISTED in s)[_UNLISTED] += [path for path in unlisted if path not in listed]
    paths = head.replace(": build/", ": ").replace("[build/", "[")
    CONFIG.write_text(f"{paths}\n{yaml.safe_dump({'nav': entries}, sort_keys=False)}", encoding="utf-8")


def _paths(pages: object) -> Iterator[str]:
    """All paths of a part of the navigation."""
    if isinstance(pages, str):
        yield pages
    elif isinstance(pages, dict):
        pages = list(pages.values())
    if isinstance(pages, list):
        for page in pages:
            yield from _paths(page)


def _copy(path: Path) -> None:
    target = SOURCE / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        text = _NAMED_FENCE.sub(r'```\1 title="\2"', path.read_text(encoding="utf-8"))
        lines = [_pipes_bare(line) if line.startswith("|") else line for line in text.split("\n")]
        target.write_text("\n".join(lines), encoding="utf-8")
    else:
        shutil.copyfile(path, target)


def _pipes_bare(row: str) -> str:
    return _CODE_WITH_PIPE.sub(lambda code: code[0].replace("\\|", "|"), row)


def _copy_module(path: Path, target: Path) -> None:
    """Copy a module; in its docstrings, what Sphinx's roles mark becomes code, as Markdown has it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    text = _ROLE.sub(_as_code, path.read_text("utf-8"))
    target.write_text(text.replace("``", "`"), encoding="utf-8")


def _as_code(role: re.Match[str]) -> str:
    return f"`{role[2].rpartition('.')[2] if role[1] else role[2]}`"


def _write(name: str, text: str) -> str:
    path = SOURCE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return name


def _benchmarks() -> list[str]:
    pages = [path.relative_to(SOURCE) for path in (SOURCE / "benchmarks").rglob("*.md")]
    return [str(page) for page in sorted(pages, key=lambda page: (len(page.parts), page))]


def _filled(page: str | dict[str, str], made: dict[str, list[object]]) -> object:
    return {title: made.get(name, name) for title, name in page.items()} if isinstance(page, dict) else page


if __name__ == "__main__":
    lay_out()
