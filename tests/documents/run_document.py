"""Run the blocks of a Markdown document in the current folder: ``python run_document.py DOCUMENT``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from document_blocks import Block, runnable

__all__ = ["main"]


def main() -> None:
    """Run the document; a block that fails ends it with a traceback that names the block's line."""
    path = Path(sys.argv[1])
    sys.path.insert(0, "")  # modules that a block has written are found, as at a prompt
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in runnable(path.read_text(encoding="utf-8")):
        sys.stdout.write(f"{path.name}, line {block.line}\n")
        sys.stdout.flush()
        _run(block, path, names)


def _run(block: Block, path: Path, names: dict[str, Any]) -> None:
    if block.name:
        target = Path(block.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text, encoding="utf-8")
    elif block.language == "sh":
        subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], check=True)
    else:
        # Padded, so that line numbers in a traceback are those of the document.
        exec(compile("\n" * (block.line - 1) + block.text, str(path), "exec"), names)


if __name__ == "__main__":
    main()
