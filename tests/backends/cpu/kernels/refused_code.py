"""A program in which the system refuses memory for code after it has given some: layers are packed as lists instead.

    python tests/backends/cpu/kernels/refused_code.py [protection|space] [before]

`protection`: pages may not become executable, as under some policies of SELinux. `space`: there is address space for
lists, not for code. `before`: code of another layer is there already.
"""

from __future__ import annotations

import ctypes
import resource
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sift_onnx.backends.cpu import _kernels

CHANNELS = 384
SHAPE = (16, CHANNELS, 6, 6)


def refuse_executable_pages() -> None:
    """A filter of system calls: mprotect with PROT_EXEC fails with EPERM."""
    load, equal, both, answer = 0x20, 0x15, 0x54, 0x06
    allow, refuse = 0x7FFF0000, 0x00050001
    program = [
        (load, 0, 0, 0),  # the number of the call
        (equal, 0, 4, 10),  # mprotect of x86-64
        (load, 0, 0, 32),  # its third argument
        (both, 0, 0, 4),  # PROT_EXEC
        (equal, 0, 1, 4),
        (answer, 0, 0, refuse),
        (answer, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    whole = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, whole, 0, 0) != 0:
        sys.exit("SKIP: the system takes no filter of system calls")


def refuse_space(left: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + left
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def conv(weights: Any, algorithm: str = "auto") -> Any:
    return _kernels.Conv(weights, kernel=(3, 3), pads=(1, 1, 1, 1), algorithm=algorithm)


def weight_gradient(dense: Any) -> Any:
    return _kernels.WeightGradient(*dense.shape, np.flatnonzero(dense), kernel=(3, 3), pads=(1, 1, 1, 1))


def aligned(array: Any) -> Any:
    buffer = np.empty(array.size + 16, np.float32)
    skip = -buffer.ctypes.data % 64 // 4
    buffer[skip : skip + array.size] = array.reshape(-1)
    return buffer[skip : skip + array.size]


def main(cause: str, before: bool) -> None:
    rng = np.random.default_rng(0)
    dense = (rng.standard_normal((CHANNELS, CHANNELS * 9)) * (rng.random((CHANNELS, CHANNELS * 9)) < 0.25)).astype("f4")
    weights = _kernels.SparseWeights.from_dense(*dense.shape, dense)
    x, wanted, y = (aligned(rng.standard_normal(np.prod(SHAPE)).astype("f4")) for _ in range(3))
    pool = _kernels.ThreadPool(1)
    listed, other = conv(weights, "single"), conv(weights)
    listed.run(pool, SHAPE, x, wanted)
    del listed
    code_bytes = 0
    if before:
        other.prepare(SHAPE, 1)
        assert other.describe(SHAPE, 1)["algorithm"] == "generated"
        code_bytes = other.describe(SHAPE, 1)["packed_bytes"]
    assert _kernels.may_execute_code()
    refused = conv(weights)
    gradients, of_lists = np.empty((2, np.count_nonzero(dense)), np.float32)
    if cause == "protection":
        weight_gradient(dense).run(pool, SHAPE, x, wanted, gradients)
        refuse_executable_pages()
        weight_gradient(dense).run(pool, SHAPE, x, wanted, of_lists)
        np.testing.assert_allclose(of_lists, gradients, rtol=1e-3, atol=1e-1)
    else:
        refuse_space(code_bytes * 4 // 5)
    refused.run(pool, SHAPE, x, y)
    try:
        conv(weights, "generated").prepare(SHAPE, 1)
    except RuntimeError as error:
        refusal = str(error)
    else:
        refusal = ""
    if cause == "space":
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert "SIFT_JIT=0 does without" in refusal, "code was asked for by name, and something else ran"
    told = refused.describe(SHAPE, 1)
    assert told["algorithm"] in ("single", "pair"), told
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-3)
    # Its source is given up, and another shape packed from what is there.
    assert refused.release_source()
    refused.prepare((16, CHANNELS, 9, 9), 1)
    if before:
        other.run(pool, SHAPE, x, y)
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-3)


if __name__ == "__main__":
    main(sys.argv[1], "before" in sys.argv)
