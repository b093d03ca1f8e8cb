"""Time ArgMax and TopK of the kernels beside onnxruntime's, each as a call of its own from Python.

    python benchmarks/kernels/selection.py [--threads 1 2] [--isa avx512] [--seconds 2]

In turns: the least and the median time of both, and the median ratio of neighbouring runs. Places must be the same.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from sift_onnx.backends.cpu import _kernels

# Shape, axis and k; None is ArgMax.
CASES: tuple[tuple[tuple[int, ...], int, int | None], ...] = (
    *(((batch, 1000), -1, k) for batch in (1, 16) for k in (None, 5)),
    ((1, 21, 256, 256), 1, None),
    ((8400, 80), -1, None),
    ((8400, 80), -1, 10),
    ((128, 8), -1, 2),
    ((1, 8400), -1, 300),
    ((1, 300, 80), 1, 50),
)


def session_of(shape: tuple[int, ...], axis: int, k: int | None, threads: int) -> ort.InferenceSession:
    """One node in a session of onnxruntime whose workers do not spin into the turns of ours."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    found = helper.make_tensor_value_info("found", onnx.TensorProto.INT64, None)
    if k is None:
        node, constants = helper.make_node("ArgMax", ["x"], ["found"], axis=axis), []
    else:
        node = helper.make_node("TopK", ["x", "k"], ["values", "found"], axis=axis)
        constants = [onnx.numpy_helper.from_array(np.array([k]), "k")]
    graph = helper.make_graph([node], "selection", [x], [found], constants)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.spin_duration_us", "500")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def measure(case: tuple[tuple[int, ...], int, int | None], threads: int, isa: str, seconds: float) -> str:
    """One row of the table."""
    shape, axis, k = case
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    at = axis % len(shape)
    sizes = (math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :]), 1)
    op: Any = _kernels.ArgExtreme(isa=isa) if k is None else _kernels.TopK(k, isa=isa)
    found = np.empty((*shape[:at], k or 1, *shape[at + 1 :]), np.int64)
    step = (op, sizes, (0, 0), (None, None, None), (1, 0))
    sequence = _kernels.Sequence([step], 0, [x.size, 2 * found.size])
    pool, workspace = _kernels.ThreadPool(threads), _kernels.Workspace()
    session = session_of(shape, axis, k, threads)

    def ours() -> None:
        sequence.run(pool, workspace, [x, found])

    def theirs() -> Any:
        return session.run(["found"], {"x": x})[0]

    ours()
    np.testing.assert_array_equal(found, theirs())
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for run, own in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            run()
            own.append(1e6 * (time.perf_counter() - start))
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    name = "ArgMax" if k is None else f"TopK {k}"
    figures = " ".join(f"{kind(own):9.1f}" for kind in (min, statistics.median) for own in times)
    return f"{isa:8} {'x'.join(map(str, shape)):>13} {axis:4} {name:8} {threads:7} {figures} {ratio:6.2f}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", nargs="+", default=[_kernels.detected_isa()])
    parser.add_argument("--seconds", type=float, default=2.0, help="per row")
    arguments = parser.parse_args()
    print("isa              shape axis          threads  least us    of theirs  median of theirs  ratio")
    for isa in arguments.isa:
        for case in CASES:
            for threads in arguments.threads:
                print(measure(case, threads, isa, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
