"""Time of a token of pruned decoders, beside onnxruntime on the same file and on one with weights of 8 bits.

    python benchmarks/decode/tokens.py [--shape 110m|1.1b] [--sparsity 0.5 0.7 0.9] [--batch 1] [--prompt 64]
        [--tokens 16] [--threads 2] [--rounds 5] [--values fp32 int8] [--folder DIR] [--results FILE]

A decoder in the shape of Llama with random weights (``llama.py``). Ways to run it take turns in one process: on the CPU
back end with weights as fp32 and int8, on onnxruntime as the file is, and with weights of 8 bits (MatMulNBits, blocks
of 32); and a loop that reads as many bytes as each of ours holds. Of several batches, each is measured in each round;
the prompts of one have different lengths, from half of ``--prompt`` on. With ``--memory`` a process of its own says
what a decoder takes, and ``--greedy N`` compares as many tokens with onnxruntime's. Writes a file of results.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from decode_bytes import weight_only
from llama import SHAPES, LlamaShape, write_decoder

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.pool import pool_of
from sift_onnx.backends.decoding.decoder import Decoder

RESULTS = Path(__file__).parent / "results"
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
Prompts = list[list[int]]


@dataclass
class Times:
    """What the steps of one batch took.

    Attributes:
        first: milliseconds to the first token, by round.
        token: of each token after it.
        processor: processor time of such a token, by round.
    """

    first: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def row(self) -> dict[str, float]:
        """Its figures."""
        return {
            "least_first_ms": min(self.first), "first_ms": statistics.median(self.first),
            "least_ms": min(self.token), "ms": statistics.median(self.token), "processor_ms": min(self.processor),
        }  # fmt: skip


class Way:
    """One way to run a decoder, and its times by batch."""

    def __init__(self, path: Path, backend: str, threads: int) -> None:
        """Open ``path``."""
        self._decoder = Decoder(path, threads, backend=backend)
        self.times: dict[int, Times] = {}

    @property
    def nbytes(self) -> int:
        """What its products hold, if they are ours."""
        return getattr(self._decoder.program, "weight_bytes", 0)

    def generated(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """Tokens, step by step."""
        return list(self._decoder.generate(prompts, tokens))

    def round(self, prompts: Prompts, tokens: int) -> None:
        """Generate once."""
        times = self.times.setdefault(len(prompts), Times())
        begin = time.perf_counter()
        steps = self._decoder.generate(prompts, tokens)
        next(steps)
        last, spent = time.perf_counter(), time.process_time()
        times.first.append(1e3 * (last - begin))
        for _ in steps:
            now = time.perf_counter()
            times.token.append(1e3 * (now - last))
            last = now
        times.processor.append(1e3 * (time.process_time() - spent) / max(tokens - 1, 1))


def prompts_of(batch: int, length: int, vocabulary: int) -> Prompts:
    """Random prompts; several have different lengths."""
    rng = np.random.default_rng(batch)
    lengths = np.linspace(length / 2, length, batch).round().astype(int) if batch > 1 else [length]
    return [rng.integers(0, vocabulary, own).tolist() for own in lengths]


def in_turns(ways: dict[str, Way], batches: list[Prompts], tokens: int, rounds: int, threads: int) -> dict[str, float]:
    """Rounds of all ways, after one that is not counted; least milliseconds of a loop that reads each one's bytes."""
    for way in ways.values():
        for prompts in batches:
            way.round(prompts, tokens)
        way.times.clear()
    kernels = pool_of(threads, None).kernels
    held = {name: way.nbytes // 8 for name, way in ways.items() if way.nbytes}
    memory = np.ones(max(held.values(), default=0), np.uint64)
    read: dict[str, list[float]] = {name: [] for name in held}
    for _ in range(rounds):
        for name, way in ways.items():
            for prompts in batches:
                way.round(prompts, tokens)
            for _ in range(3 if name in held else 0):
                begin = time.perf_counter()
                _kernels.read_memory(kernels, memory[: held[name]])
                read[name].append(1e3 * (time.perf_counter() - begin))
    return {name: min(times) for name, times in read.items()}


def backend_of(values: str) -> str:
    """The back end's name for a type of values."""
    return "cpu" if values == "fp32" else f"cpu:{values}"


def measured(path: Path, shape: LlamaShape, args: argparse.Namespace) -> list[dict[str, object]]:
    """Rows of one sparsity."""
    ways: dict[str, Callable[[], Way]] = {
        values: lambda values=values: Way(path, backend_of(values), args.threads) for values in args.values
    }
    ways["onnxruntime"] = lambda: Way(path, "onnxruntime", args.threads)
    few = path.with_name("bits8.onnx")
    if args.weight_only and weight_only(path, few, 8):
        gc.collect()
        ways["onnxruntime, 8 bits"] = lambda: Way(few, "onnxruntime", args.threads)
    opened = {name: way() for name, way in ways.items()}
    batches = [prompts_of(batch, args.prompt, shape.vocabulary) for batch in args.batch]
    read = in_turns(opened, batches, args.tokens, args.rounds, args.threads)
    rows: list[dict[str, object]] = []
    for batch in args.batch:
        for name, way in opened.items():
            row = way.times[batch].row() | ({"bytes": way.nbytes, "read_ms": read[name]} if name in read else {})
            print(f"  {batch} x {name:20} " + "  ".join(f"{key} {value:.5g}" for key, value in row.items()), flush=True)
            rows.append({"batch": batch, "name": name} | row)
    return rows


def greedy(path: Path, shape: LlamaShape, args: argparse.Namespace) -> list[dict[str, object]]:
    """How many of the most likely tokens are onnxruntime's, until the first that is not."""
    prompts = prompts_of(1, args.prompt, shape.vocabulary)
    found = {
        name: [row[0] for row in Way(path, backend, args.threads).generated(prompts, args.greedy)]
        for name, backend in (*((values, backend_of(values)) for values in args.values), ("onnxruntime", "onnxruntime"))
    }
    wanted = found.pop("onnxruntime")
    rows: list[dict[str, object]] = []
    for name, tokens in found.items():
        same = [a == b for a, b in zip(tokens, wanted, strict=True)]
        equal = (*same, False).index(False)
        print(f"  {name:20} {equal} of {len(wanted)} tokens are onnxruntime's", flush=True)
        rows.append({"batch": 1, "name": f"{name}, greedy", "equal": equal, "of": len(wanted)})
    return rows


def memory_of(path: Path, values: str, args: argparse.Namespace) -> dict[str, float]:
    """Megabytes of a process with the decoder, over those before it was opened; run in a process of its own."""
    code = f"""
import json, re, sys
from pathlib import Path
import numpy as np
import sift_onnx.backends.cpu.run.program, sift_onnx.backends.onnxruntime
from sift_onnx.backends.decoding.decoder import Decoder
def anonymous():
    return int(re.search(r"RssAnon:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
before = anonymous()
decoder = Decoder({str(path)!r}, {args.threads}, backend={backend_of(values)!r})
for _ in decoder.generate(np.ones((1, {args.prompt}), np.int64), {args.tokens}): pass
print(json.dumps({{"resident_mb": anonymous() - before, "bytes": decoder.program.weight_bytes}}))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def main() -> None:
    """Measure, print, and write a file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="110m")
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.5, 0.7, 0.9])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    for name, value in (("prompt", 64), ("tokens", 16), ("threads", 2), ("rounds", 5), ("greedy", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--values", nargs="*", choices=list(_BYTES), default=["fp32", "int8"])
    parser.add_argument("--no-weight-only", dest="weight_only", action="store_false", help="leave 8 bits out")
    parser.add_argument("--memory", action="store_true", help="measure memory, and no times")
    parser.add_argument("--folder", type=Path, help="for the models; they are removed at the end  [default: temporary]")
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    rows: list[dict[str, object]] = []
    for sparsity in args.sparsity:
        print(f"{args.shape} {sparsity:.0%}, prompt {args.prompt}", flush=True)
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            path = Path(folder) / "decoder.onnx"
            write_decoder(path, shape, sparsity)
            gc.collect()
            told = {"shape": args.shape, "sparsity": sparsity, "prompt": args.prompt, "threads": args.threads}
            if not args.memory:
                made = greedy(path, shape, args) if args.greedy else measured(path, shape, args)
                rows += [told | row for row in made]
                continue
            for values in args.values:
                table = shape.weights * (1 / 8 + _BYTES[values] * (1 - sparsity))
                rest = 4 * shape.vocabulary * shape.width + shape.cache_bytes(args.prompt + args.tokens)
                row = memory_of(path, values, args) | {"table_mb": table / 2**20, "rest_mb": rest / 2**20}
                print(f"  {values:6} " + "  ".join(f"{key} {value:.5g}" for key, value in row.items()), flush=True)
                rows.append(told | {"batch": 1, "name": f"{values}, memory"} | row)
    if args.results is not None:
        args.results.parent.mkdir(exist_ok=True)
        pages.write(args.results, rows)


if __name__ == "__main__":
    main()
