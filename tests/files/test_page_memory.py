from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sift_onnx.files.file_bytes import FileBytes, FileSlice
from sift_onnx.files.page_memory import page_array

STATUS = Path("/proc/self/status")


@pytest.mark.parametrize("nbytes", [0, 1, 4096, (1 << 20) + 3, (6 << 20) + 1])
def test_arrays_have_their_size_and_can_be_written(nbytes: int) -> None:
    array = page_array(nbytes)
    assert (array.shape, array.dtype) == ((nbytes,), np.uint8)
    array[:] = 7
    assert (array == 7).all()


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_memory_of_what_threads_have_read_goes_back_to_the_system(tmp_path: Path) -> None:
    def anonymous() -> int:
        return int(re.search(r"RssAnon:\s*(\d+)", STATUS.read_text("ascii"))[1]) << 10

    size, path = 6 << 20, tmp_path / "values"
    path.write_bytes(bytes(size))
    whole = FileSlice(FileBytes(path), 0, size, "no values")
    # Once memory as large as this has been freed, the allocator takes smaller one from what it keeps.
    np.ones(24 << 20, np.uint8)
    before = anonymous()

    def read(_: int) -> int:
        return int(np.concatenate([whole()[:1], whole()[-1:]]).sum())

    with ThreadPoolExecutor(2) as threads:
        assert sum(threads.map(read, range(4))) == 0
        assert anonymous() - before < size // 2
