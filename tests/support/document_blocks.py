"""The parts of a Markdown document that run: what its fences hold, in the order a reader meets them.

```sh                 run by bash, in the document's folder
```python             run by one interpreter, which keeps its names from block to block
```yaml wide.yaml     a language and a name: the block is written to that file
```text               is not run: output, or what this machine cannot do

Nothing runs that a reader does not see: comments are not looked into, and a document may have none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Block", "commands_outside", "runnable"]

_FENCE = re.compile(r"^```(?P<language>\w*)[ ]?(?P<name>[\w./-]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^ {4}(sift-onnx|python|pip|torchrun|make) .*$", re.MULTILINE)
_RUN = ("sh", "python")


@dataclass(frozen=True)
class Block:
    """One block.

    Attributes:
        language: of the fence.
        name: of the file that it is written to; empty for one that is run.
        text: what it holds.
        line: its first line in the document, counted from 1.
    """

    language: str
    name: str
    text: str
    line: int


def runnable(document: str) -> list[Block]:
    """The blocks that are run or written to a file, in order."""
    blocks = [
        Block(match["language"], match["name"], match["text"], document[: match.start()].count("\n") + 2)
        for match in _FENCE.finditer(document)
    ]
    return [block for block in blocks if block.name or block.language in _RUN]


def commands_outside(document: str) -> list[str]:
    """Commands in indented blocks, where nothing runs them."""
    return [match[0].strip() for match in _COMMAND.finditer(_FENCE.sub("", document))]
