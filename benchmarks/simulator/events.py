"""How far the fast model is from the event-driven one, on random products on small grids.

    python benchmarks/simulator/events.py [--cases 1000]

Cases are those of ``tests/backends/dataflow/cycles/test_event.py``: every eighth on one core, where both must agree.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))
from dataflow_cases import random_cases

from sift_onnx.backends.dataflow.cycles.event import simulate_product_by_events
from sift_onnx.backends.dataflow.cycles.fast import simulate_product


def main() -> None:
    """Print the distribution of cycles of events over those of the fast model, less 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    groups: dict[str, list[float]] = {}
    for task, machine in random_cases(parser.parse_args().cases):
        fast = simulate_product(task, machine)
        error = simulate_product_by_events(task, machine).cycles / fast.cycles - 1
        names = ["one core"]
        if machine.cores > 1:
            names = ["all larger grids", f"of them bound by {fast.bound}", f"window of {machine.window_rows:g} rows"]
        for name in names:
            groups.setdefault(name, []).append(error)
    print("| cases | number | lowest | 5 % | 25 % | median | 75 % | 95 % | highest |\n|---" + "|---" * 8 + "|")
    for name, errors in groups.items():
        parts = np.percentile(errors, (0, 5, 25, 50, 75, 95, 100))
        print(f"| {name} | {len(errors)} | " + " | ".join(f"{part:.1%}" for part in parts) + " |")


if __name__ == "__main__":
    main()
