"""Parts of a decoder's step: kernels by kind, and what is outside of them.

    python benchmarks/decode/step.py [--shape 110m|1.1b|narrow] [--sparsity 0.9] [--values fp32 int8] [--batch 1]
        [--prompt 64] [--tokens 32] [--rounds 4] [--threads 2] [--folder DIR]

Steps of `Decoder.generate` with a decoder of ``llama.py``, medians in milliseconds. Rounds with timers in the kernels
and without take turns: the whole step and the time outside of the kernels' sequence are of those without, and the
kinds are of those with. ``narrow`` has as many layers as 110m and a width of 48: nearly all of its time is overhead.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama import SHAPES, LlamaShape, write_decoder
from tokens import backend_of, prompts_of

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.decoding.decoder import Decoder

_SHAPES = SHAPES | {"narrow": LlamaShape(12, 48, 12, 4, 128, 512)}
_WARM_ROUNDS = 2


@dataclass
class _Parts:
    """Milliseconds of steps.

    Attributes:
        whole: of each step.
        sequence: of its kernels one after the other, with the threads' waking and joining.
        kinds: of each kind of kernel.
        counts: whether kernels count: those of the prompt do not.
    """

    whole: list[float] = field(default_factory=list)
    sequence: list[float] = field(default_factory=list)
    kinds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: bool = False


@contextmanager
def _timed_sequences(parts: _Parts, by_kind: bool) -> Iterator[None]:
    """Add the time of every run of kernels, or of each of its kernels, to the parts."""
    run_slabs = RegionProgram._run_slabs

    def timed(program: RegionProgram, *args: Any) -> None:
        *given, times = args
        if times is not None or not parts.counts:
            run_slabs(program, *args)
            return
        steps: list[Any] | None = [] if by_kind else None
        begin = time.perf_counter()
        run_slabs(program, *given, steps)
        parts.sequence.append(1e3 * (time.perf_counter() - begin))
        sums: dict[str, float] = defaultdict(float)
        for step in steps or ():
            kind = "Copy" if step.step is None else type(program.region.steps[step.step].spec).__name__
            sums[kind] += 1e3 * step.seconds
        for kind, milliseconds in sums.items():
            parts.kinds[kind].append(milliseconds)

    RegionProgram._run_slabs = timed  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        RegionProgram._run_slabs = run_slabs  # type: ignore[method-assign]


def _generate(decoder: Decoder, prompts: list[list[int]], tokens: int, parts: _Parts) -> None:
    """Generate, and add the time of each step after the first."""
    begin = None
    parts.counts = False
    for _ in decoder.generate(prompts, tokens):
        end = time.perf_counter()
        if begin is not None:
            parts.whole.append(1e3 * (end - begin))
        parts.counts = True
        begin = time.perf_counter()


def _measure(decoder: Decoder, args: argparse.Namespace) -> tuple[_Parts, _Parts]:
    """Steps without timers in the kernels, and with them."""
    prompts = prompts_of(args.batch, args.prompt, decoder.vocabulary)
    plain, timed = _Parts(), _Parts()
    for number in range(_WARM_ROUNDS + args.rounds):
        if number == _WARM_ROUNDS:
            plain, timed = _Parts(), _Parts()
        for parts, by_kind in ((plain, False), (timed, True)):
            with _timed_sequences(parts, by_kind):
                _generate(decoder, prompts, args.tokens, parts)
    return plain, timed


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=_SHAPES, default="110m")
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--values", nargs="+", choices=("fp32", "bf16", "fp16", "int8"), default=["fp32", "int8"])
    for name, default in (("batch", 1), ("prompt", 64), ("tokens", 32), ("rounds", 4), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="for the model; it is removed at the end [default: temporary]")
    args = parser.parse_args()
    print(f"{args.shape}, {args.sparsity:.0%}, batch {args.batch}, {args.threads} threads, {pages.processor_name()}")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "decoder.onnx"
        write_decoder(path, _SHAPES[args.shape], args.sparsity)
        for values in args.values:
            plain, timed = _measure(Decoder(path, args.threads, backend=backend_of(values)), args)
            whole, sequence = statistics.median(plain.whole), statistics.median(plain.sequence)
            rows = {"all of it": whole}
            rows |= {kind: statistics.median(each) for kind, each in timed.kinds.items()}
            rows["outside of the kernels"] = whole - sequence
            print(pages.table((values, "ms"), [(part, f"{milliseconds:.3f}") for part, milliseconds in rows.items()]))


if __name__ == "__main__":
    main()
