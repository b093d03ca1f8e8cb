"""Measure what the estimates of the CPU back end are made of: ``backends/cpu/lower/measured_rates.json``.

    python benchmarks/kernels/fit_costs.py [--threads 1 2] [--isa avx512 avx2 portable] [--seconds 0.1] [--improve]
    python benchmarks/kernels/fit_costs.py --only "product *"    # these kinds of layers; the others keep their rates

Each rate is that of a model of a few operators of one kind, in the kernels and in onnxruntime: the least time of
several rounds. The file is replaced when all is done. It takes some minutes; nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
from dataclasses import replace
from fnmatch import fnmatch
from importlib.metadata import version

import msgspec
from kernel_rates import Kernels, kernels_entry, layer_grids
from onnxruntime_rates import onnxruntime_entry

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower import rates
from sift_onnx.backends.cpu.lower.rates import TABLE, Entry, Grid, Table
from sift_onnx.backends.measure import host


def write(table: Table) -> None:
    """Replace the file; numbers of a list are on one line, so that a difference shows which rates changed."""
    text = msgspec.json.format(msgspec.json.encode(table), indent=1).decode()
    text = re.sub(
        r"\[[-\d.e,\s]+\]", lambda found: re.sub(r"\s+", " ", found[0]).replace("[ ", "[").replace(" ]", "]"), text
    )
    TABLE.write_text(text + "\n", encoding="utf-8")


def renewed(known: Table, arguments: argparse.Namespace) -> Table:
    """``known``, with other rates of some kinds of layers in the kernels."""
    entries = []
    for entry in known.kernels:
        if entry.isa in arguments.isa and entry.threads in arguments.threads:
            print(f"{entry.isa}, {entry.threads} threads", flush=True)
            kernels = Kernels(entry.isa, entry.threads, arguments.seconds)
            found = layer_grids(kernels, entry.step_seconds, lambda kind: fnmatch(kind, arguments.only))
            nbytes = {"memory": kernels.memory} if fnmatch("memory", arguments.only) else {}
            renewed_entry = replace(entry, flops={**entry.flops, **found}, bytes={**entry.bytes, **nbytes})
            entry = _better(renewed_entry, (entry,)) if arguments.improve else renewed_entry
        entries.append(entry)
    return replace(known, kernels=tuple(entries))


def improved(measured: Table, known: Table) -> Table:
    """``measured``, with the better of both rates and seconds where ``known`` has them of the same processor.

    Other programs only make rates worse, so that several measurements beside them come nearer to the machine's.
    """
    if known.processor != measured.processor:
        return measured
    return replace(
        measured,
        kernels=tuple(_better(entry, known.kernels) for entry in measured.kernels),
        onnxruntime=tuple(_better(entry, known.onnxruntime) for entry in measured.onnxruntime),
    )


def _better(entry: Entry, known: tuple[Entry, ...]) -> Entry:
    other = next((one for one in known if (one.isa, one.threads) == (entry.isa, entry.threads)), entry)
    return replace(
        entry,
        peak_gflops=max(entry.peak_gflops, other.peak_gflops),
        flops={kind: _better_grid(grid, other.flops.get(kind, grid)) for kind, grid in entry.flops.items()},
        bytes={kind: _better_grid(grid, other.bytes.get(kind, grid)) for kind, grid in entry.bytes.items()},
        step_seconds=min(entry.step_seconds, other.step_seconds),
        call_seconds=min(entry.call_seconds, other.call_seconds),
        turn_seconds=min(entry.turn_seconds, other.turn_seconds),
        quantized=max(entry.quantized, other.quantized),
    )


def _better_grid(grid: Grid, other: Grid) -> Grid:
    if (grid.sizes, grid.densities) != (other.sizes, other.densities):
        return grid
    pairs = zip(grid.rates, other.rates, strict=True)
    return replace(grid, rates=tuple(tuple(map(max, *rows)) for rows in pairs))


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    supported = _kernels.supported_isas()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", nargs="+", default=supported, choices=supported)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each model")
    parser.add_argument(
        "--improve", action="store_true", help="keep rates of the file that are better: beside other programs"
    )
    parser.add_argument(
        "--only", metavar="GLOB", help="measure these kinds of layers in the kernels, or memory, and keep the rest"
    )
    arguments = parser.parse_args()
    if arguments.only:
        write(renewed(rates.read_table(), arguments))
        return
    kernels, onnxruntime = [], []
    for threads in arguments.threads:
        print(f"onnxruntime, {threads} threads", flush=True)
        isa = _kernels.detected_isa()
        peak = Kernels(isa, threads, arguments.seconds).peak_gflops
        onnxruntime.append(onnxruntime_entry(isa, threads, peak, arguments.seconds))
        for isa in arguments.isa:
            print(f"{isa}, {threads} threads", flush=True)
            kernels.append(kernels_entry(Kernels(isa, threads, arguments.seconds)))
    table = Table(
        host()["cpu"], version("onnxruntime"), dt.date.today().isoformat(), tuple(kernels), tuple(onnxruntime)
    )
    if arguments.improve:
        table = improved(table, rates.read_table())
    write(table)


if __name__ == "__main__":
    main()
