"""Mutated files through load, inspect, transform and InferenceSession.

PYTHONPATH=tests:tests/support python -m fuzz --files 20000 --jobs 2
PYTHONPATH=tests:tests/support python -m fuzz --only 1234          one file, in this process
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

from fuzz.cases import mutated_file
from fuzz.seeds import seed_files
from fuzz.trial import STAGES, try_file
from fuzz.workers import Limits, try_all


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1000, help="how many [%(default)s]")
    parser.add_argument("--first", type=int, default=0, help="number of the first one [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of all mutations [%(default)s]")
    parser.add_argument("--seconds", type=float, help="stop after this long, however many were tried")
    parser.add_argument("--jobs", type=int, default=1, help="processes [%(default)s]")
    parser.add_argument(
        "--findings", type=Path, default=Path("build/fuzz"), help="folder for what is found [%(default)s]"
    )
    parser.add_argument("--only", type=int, metavar="N", help="try file N alone, in this process, without limits")
    parser.add_argument("--write", type=Path, metavar="FILE", help="with --only: write the file there too")
    options = parser.parse_args()
    if options.only is not None:
        return _one(options)

    options.findings.mkdir(parents=True, exist_ok=True)
    passed: collections.Counter[str] = collections.Counter()
    tried = found = 0
    slowest = (0.0, -1)
    begin = time.monotonic()
    numbers = itertools.takewhile(
        lambda _: options.seconds is None or time.monotonic() - begin < options.seconds,
        range(options.first, options.first + options.files),
    )
    seeds = seed_files()
    with tempfile.TemporaryDirectory() as logs:
        for result in try_all(numbers, options.seed, options.jobs, Limits(), Path(logs)):
            tried += 1
            passed.update(result.passed)
            slowest = max(slowest, (result.seconds, result.number))
            if result.findings:
                found += 1
                for finding in result.findings:
                    print(f"--- file {result.number} (of {result.origin}): {finding}", flush=True)
                _, content = mutated_file(seeds, result.number, options.seed)
                (options.findings / f"{options.seed}-{result.number}.onnx").write_bytes(content)
            if tried % 500 == 0:
                print(f"{tried} files, {found} findings, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    reached = ", ".join(f"{stage} {passed[stage]}" for stage in STAGES)
    print(
        f"{tried} files in {time.monotonic() - begin:.0f} s with {options.jobs} processes: {found} findings; "
        f"went through: {reached}; the slowest took {slowest[0]:.1f} s (file {slowest[1]})"
    )
    return 1 if found else 0


def _one(options: argparse.Namespace) -> int:
    origin, content = mutated_file(seed_files(), options.only, options.seed)
    if options.write:
        options.write.write_bytes(content)
    outcome = try_file(content, options.only, lambda stage: print(f"{stage} ...", flush=True))
    print(f"of {origin}; went through: {', '.join(outcome.passed)}")
    print("\n".join(outcome.findings) or "no finding")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
