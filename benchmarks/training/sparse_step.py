"""Training steps on sparse kernels compared with masked ones, with the dense original, and with other libraries.

    python benchmarks/training/sparse_step.py [--only REGEX] [--threads 2] [--rounds 5] [--peers] [--out FILE.json]
    python benchmarks/training/page.py        # README.md from sparse_step.json and the other results

All that is compared takes turns in one process, or, of other libraries, in processes that wait meanwhile; a ratio is
the median over rounds of ours divided by the other's, and stands beside the bound that it should meet. A step is
forward, backward and SGD with momentum and weight decay, all conversions of layout included. "Masked" is the same model
through ``to_torch`` with its zeros multiplied, "original" the dense model with as many multiply-accumulates in plain
torch, in the faster of its two memory formats, "same width" the wide model without masks.
"""

from __future__ import annotations

import argparse
import gc
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from sparse_step_cases import CONVOLUTIONS, LINEARS, Convolution, Linear, Step, TrainedModel, decoder, resnet18
from sparse_step_memory import memory_of
from sparse_step_peers import SPARSELAB, SPARSEPROP, Peer, missing_peer
from tables import pages, steps_table

_LAYER_BATCH, _ROWS = 64, 2048
_UPDATE_FREQUENCY = 100

Timings = dict[str, list[float]]


@dataclass(frozen=True)
class Row:
    """A ratio.

    Attributes:
        case: what ran.
        against: what it is divided by.
        ratio: ours over the other's.
        ours: in ``unit``.
        theirs: in ``unit``.
        unit: of both.
        at_most: what the ratio should not exceed, if anything.
    """

    case: str
    against: str
    ratio: float
    ours: float
    theirs: float
    unit: str = "ms"
    at_most: float | None = None


def in_turns(runs: Mapping[str, Callable[[], Any]], rounds: int) -> Timings:
    """Milliseconds of each run in each round, after one that warms up; the run of a peer says how many."""
    found: Timings = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            answer = run()
            taken = answer if name.startswith("peer") else 1e3 * (time.perf_counter() - start)
            if number:
                found[name].append(taken)
    return found


def row(case: str, against: str, timings: Timings, ours: str, theirs: str, at_most: float | None = None) -> Row:
    """The ratio of two of the timings."""
    ratio = statistics.median(a / b for a, b in zip(timings[ours], timings[theirs], strict=True))
    medians = [statistics.median(timings[name]) for name in (ours, theirs)]
    return Row(case, against, ratio, *medians, at_most=at_most)


class Benchmark:
    """Measures rows."""

    def __init__(self, folder: Path, threads: int, rounds: int, peers: bool) -> None:
        self.folder, self.threads, self.rounds, self.peers = folder, threads, rounds, peers

    def cases(self) -> Iterator[tuple[str, Callable[[], Iterator[Row]]]]:
        """Each case by its name."""
        for sparsity, bounds in ((0.9, (0.15, 1.25)), (0.75, (0.38, 1.25))):
            for batch in (16, 64):
                name = f"ResNet-18 {sparsity:.0%}, batch {batch}"
                yield name, lambda a=(name, sparsity, *bounds), b=batch: self.steps(resnet18(b), *a)
        for sparsity, bounds in ((0.9, (0.20, 1.6)), (0.75, (0.40, 1.4))):
            name = f"decoder {sparsity:.0%}"
            yield name, lambda a=(name, sparsity, *bounds): self.steps(decoder(), *a)
        for sparsity, bounds_of_products in ((0.9, (0.14, 0.15, 0.17)), (0.75, (0.32, 0.34, 0.38))):
            for layer in CONVOLUTIONS:
                name = f"{layer.title} {sparsity:.0%}"
                yield name, lambda a=(layer, name, sparsity, bounds_of_products): self.products(*a)
        for linear in LINEARS:
            name = f"{linear.title} 90%"
            yield name, lambda a=(linear, name, 0.9): self.linear(*a)
        yield "ResNet-18 95% of its own width", self.sparseprop
        yield "mask updates", self.updates
        yield "memory", self.memory

    def steps(self, model: TrainedModel, name: str, sparsity: float, masked: float, original: float) -> Iterator[Row]:
        """Whole steps."""
        runs: dict[str, Step] = {
            "ours": model.sparse(self.folder, sparsity),
            "masked": model.masked(self.folder, sparsity),
            "same width": model.same_width(self.folder, sparsity),
            "original": model.original(),
        }
        if model.inputs.dim() == 4:
            runs["original, channels last"] = model.original(channels_last=True)
        timings = in_turns(runs, self.rounds)
        best = min((n for n in runs if n.startswith("original")), key=lambda n: statistics.median(timings[n]))
        yield row(f"{name}, step", "masked", timings, "ours", "masked", masked)
        yield row(f"{name}, step", "original", timings, "ours", best, original)
        yield row(f"{name}, step", "same width", timings, "ours", "same width")

    def products(self, layer: Convolution, name: str, sparsity: float, bounds: Sequence[float]) -> Iterator[Row]:
        """The three products of a convolution."""
        products = layer.products(sparsity, _LAYER_BATCH, self.threads)
        for (product, (ours, masked, original)), bound in zip(products.items(), bounds, strict=True):
            timings = in_turns({"ours": ours, "masked": masked, "original": original}, self.rounds)
            yield row(f"{name}, {product}", "masked", timings, "ours", "masked", bound)
            yield row(f"{name}, {product}", "original", timings, "ours", "original")

    def linear(self, layer: Linear, name: str, sparsity: float) -> Iterator[Row]:
        """A linear layer, conversions included."""
        forward, both = layer.sparse(_ROWS, sparsity)
        dense_forward, dense_both = layer.dense(_ROWS)
        runs = {"forward": forward, "both": both, "dense forward": dense_forward, "dense both": dense_both}
        if self.peers:
            arguments = {"inputs": layer.inputs, "outputs": layer.outputs, "rows": _ROWS, "sparsity": sparsity}
            with Peer(SPARSELAB, threads=self.threads, **arguments) as peer:
                asked = {f"peer {case}": lambda c=case: peer.run(c) for case in ("forward", "both")}
                timings = in_turns(runs | asked, 2 * self.rounds)
            yield row(f"{name}, forward", SPARSELAB, timings, "forward", "peer forward", 0.35)
            yield row(f"{name}, forward and backward", SPARSELAB, timings, "both", "peer both", 0.35)
        else:
            timings = in_turns(runs, 2 * self.rounds)
        yield row(f"{name}, forward", "same width", timings, "forward", "dense forward", 0.25)
        yield row(f"{name}, forward and backward", "same width", timings, "both", "dense both", 0.25)

    def sparseprop(self) -> Iterator[Row]:
        """ResNet-18 of its own width at 95 %, as in SparseProp's example."""
        batch, sparsity = 16, 0.95
        name = f"ResNet-18 {sparsity:.0%} of its own width, batch {batch}, step"
        model = resnet18(batch)
        config = {"algorithm": "static", "sparsity": sparsity, "param_filter": "*layer*"}
        runs: dict[str, Callable[[], Any]] = {"ours": model.pruned(self.folder, config), "original": model.original()}
        if self.peers:
            with Peer(SPARSEPROP, threads=self.threads, rows=batch, sparsity=sparsity) as peer:
                timings = in_turns(runs | {"peer": lambda: peer.run("step")}, self.rounds)
            yield row(name, SPARSEPROP, timings, "ours", "peer", 0.4)
        else:
            timings = in_turns(runs, self.rounds)
        yield row(name, "original", timings, "ours", "original")

    def updates(self) -> Iterator[Row]:
        """What RigL's updates add to the mean step, repacking included."""
        config = {"algorithm": "rigl", "sparsity": "masks", "update": {"freq": 4}, "param_filter": "*"}
        step = resnet18(16).sparse(self.folder, 0.9, config)
        costs, plain = [], []
        for number in range(self.rounds + 1):
            times = []
            for _ in range(4):
                start = time.perf_counter()
                step()
                times.append(1e3 * (time.perf_counter() - start))
            if number:
                # The fourth step updates, and the first one after it packs the layers by the new masks.
                costs.append(times[3] + times[0] - times[1] - times[2])
                plain.append((times[1] + times[2]) / 2)
        share = [cost / (_UPDATE_FREQUENCY * other) for cost, other in zip(costs, plain, strict=True)]
        steps = _UPDATE_FREQUENCY * statistics.median(plain)
        case = f"ResNet-18 90%, batch 16, RigL's update of all masks : {_UPDATE_FREQUENCY} steps"
        yield Row(case, "itself", statistics.median(share), statistics.median(costs), steps, at_most=0.06)

    def memory(self) -> Iterator[Row]:
        """Bytes between steps, and the peak of a step."""
        ours, masked = (memory_of(kind, 64, 0.9, self.folder, self.threads) for kind in ("sparse", "masked"))
        for what, bound in (("state", 0.5), ("peak", 0.7)):
            sizes = [getattr(memory, what) / 2**20 for memory in (ours, masked)]
            yield Row(f"ResNet-18 90%, batch 64, {what}", "masked", sizes[0] / sizes[1], *sizes, "MiB", bound)


def main() -> None:
    """Measure, print the table, write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression; cases whose name it matches are run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", action="store_true", help="run SparseLab and SparseProp as well")
    parser.add_argument("--folder", type=Path, help="where models are kept; a temporary folder by default")
    parser.add_argument("--out", type=Path, help="rows as JSON; with --only, in the place of these rows in that file")
    options = parser.parse_args()
    for peer in (SPARSELAB, SPARSEPROP) if options.peers else ():
        if missing := missing_peer(peer):
            parser.exit(2, missing + "\n")
    torch.set_num_threads(options.threads)
    earlier = pages.read(options.out) if options.only and options.out and options.out.exists() else None
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, case in Benchmark(folder, options.threads, options.rounds, options.peers).cases():
            if re.search(options.only, name):
                for found in case():
                    rows.append(found)
                    print(f"{found.case} : {found.against}  {found.ratio:.3f}", flush=True)
                # A run of an hour that is cut off keeps what it has found.
                if options.out is not None:
                    pages.write_over(options.out, [asdict(r) for r in rows], earlier, ("case", "against"))
                # Modules hold each other; those of a batch of 64 leave no room for the next case's.
                gc.collect()
    print(steps_table([asdict(r) for r in rows]))


if __name__ == "__main__":
    main()
