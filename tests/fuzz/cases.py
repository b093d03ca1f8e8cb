"""Cases: which file number N is, and what lies beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from random import Random

import onnx

from fuzz.fields import mutate_field
from fuzz.structure import mutate_structure
from fuzz.wire import mutate_bytes

__all__ = ["OUTSIDE", "lay_out", "mutated_file"]

# What a file must never get at; so odd that it does not occur by chance.
OUTSIDE = b"from outside of the folder" * 40


def mutated_file(seeds: Mapping[str, bytes], number: int, seed: int = 0) -> tuple[str, bytes]:
    """The name of the seed that file ``number`` comes from, and its content; the same ones each time."""
    rng = Random(f"{seed}/{number}")
    # Half of the files are mutations of what is built for this, which has more to break.
    built = [name for name in seeds if not name.startswith(("pytorch-", "simple/"))]
    name = rng.choice(built if rng.random() < 0.6 else sorted(seeds))
    if rng.random() < 0.2:
        return name, mutate_bytes(seeds[name], rng)
    model = onnx.ModelProto.FromString(seeds[name])
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        (mutate_field if rng.random() < 0.5 else mutate_structure)(model, rng)
    data = model.SerializePartialToString()
    return name, mutate_bytes(data, rng) if rng.random() < 0.05 else data


def lay_out(folder: Path, content: bytes) -> Path:
    """Put a case into ``folder``: the model, its data, and files and links that a location may name."""
    inside = folder / "inside"
    inside.mkdir()
    (folder / "outside.bin").write_bytes(OUTSIDE)
    (inside / "data.bin").write_bytes(bytes(range(256)) * 4)
    (inside / "empty.bin").write_bytes(b"")
    (inside / "folder").mkdir()
    (inside / "link.bin").symlink_to("../outside.bin")
    (inside / "link-folder").symlink_to("..")
    (inside / "loop.bin").symlink_to("loop.bin")
    os.mkfifo(inside / "pipe")
    path = inside / "case.onnx"
    path.write_bytes(content)
    return path
