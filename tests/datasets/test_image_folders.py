"""Folders of labelled images: IDX files, CIFAR's binary files, a folder for each class."""

from __future__ import annotations

import contextlib
import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from sift_onnx.datasets.folder import read_image_folder
from sift_onnx.datasets.idx import read_idx
from sift_onnx.errors import UsageError

PIXELS = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
LABELS = np.array([2, 0, 1, 1, 2], np.uint8)


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_folder(folder: Path, *, packed: bool = True) -> Path:
    for part, count in (("train", 5), ("t10k", 3)):
        for kind, array in (("images-idx3", PIXELS), ("labels-idx1", LABELS)):
            data, name = idx(array[:count]), f"{part}-{kind}-ubyte"
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    return folder


def rows(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, np.int64)


@given(arrays(np.uint8, array_shapes(max_dims=4)))
def test_an_idx_file_has_the_array_that_was_written(tmp_path_factory: pytest.TempPathFactory, array: object) -> None:
    assert isinstance(array, np.ndarray)
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(idx(array))
    np.testing.assert_array_equal(read_idx(path), array)


@given(st.binary(max_size=40))
def test_no_bytes_make_reading_an_idx_file_fail_otherwise_than_by_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("idx")
    for name in ("file", "file.gz"):
        (folder / name).write_bytes(data)
        with contextlib.suppress(UsageError):
            read_idx(folder / name)


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_found_by_their_published_names(tmp_path: Path, packed: bool) -> None:
    found = read_image_folder(idx_folder(tmp_path, packed=packed))
    assert found.held_out is not None
    assert found.train.labels.tolist() == LABELS.tolist()
    assert found.held_out.labels.tolist() == LABELS[:3].tolist()
    assert found.train.shape == (1, 4, 3)
    np.testing.assert_array_equal(found.train.pixels(rows(4, 1), (1, 4, 3)), PIXELS[[4, 1], None])
    gray = found.train.pixels(rows(4, 1), (3, 4, 3))
    np.testing.assert_array_equal(gray, PIXELS[[4, 4, 4, 1, 1, 1]].reshape(2, 3, 4, 3))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train-images-idx3-ubyte", idx(PIXELS)[:-1], "is cut off or damaged: 59 bytes for an array of [5, 4, 3]"),
        ("train-images-idx3-ubyte", b"\x89PNG....", "is not an IDX file of unsigned bytes"),
        ("train-images-idx3-ubyte", idx(PIXELS)[:9], "is cut off or damaged"),
        ("train-images-idx3-ubyte", idx(LABELS), "arrays of 1 and 1 axes; images have 3, labels 1"),
        ("train-labels-idx1-ubyte", idx(LABELS[:4]), "5 images have 4 labels"),
        ("letters-train-images-idx3-ubyte", idx(PIXELS), "are both images of the train part"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (idx_folder(tmp_path, packed=False) / name).write_bytes(data)
    with pytest.raises(UsageError) as error:
        read_image_folder(tmp_path)
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_missing_parts_of_idx_files_are_named(tmp_path: Path) -> None:
    idx_folder(tmp_path, packed=False)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(UsageError, match="train-labels-idx1-ubyte is missing"):
        read_image_folder(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    with pytest.raises(UsageError, match="no IDX file with 'train'"):
        read_image_folder(tmp_path)


@pytest.mark.parametrize(
    ("names", "labels"), [(("data_batch_1", "data_batch_2", "test_batch"), 1), (("train", "test"), 2)]
)
def test_cifar_has_its_fine_labels(tmp_path: Path, names: tuple[str, ...], labels: int) -> None:
    draw = np.random.default_rng(0)
    records = {name: draw.integers(0, 10, (4, labels + 3 * 32 * 32), np.uint8) for name in names}
    for name, record in records.items():
        (tmp_path / f"{name}.bin").write_bytes(record.tobytes())
    found = read_image_folder(tmp_path)
    train = np.concatenate([records[name] for name in names[:-1]])
    assert found.held_out is not None
    assert found.train.labels.tolist() == train[:, labels - 1].tolist()
    last = len(train) - 1
    np.testing.assert_array_equal(
        found.train.pixels(rows(last), (3, 32, 32))[0], train[last, labels:].reshape(3, 32, 32)
    )
    assert len(found.held_out.labels) == 4
    (tmp_path / f"{names[0]}.bin").write_bytes(b"\0" * 100)
    with pytest.raises(UsageError, match="is cut off or damaged: 100 bytes"):
        read_image_folder(tmp_path)


def test_pickled_cifar_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({}))
    with pytest.raises(UsageError, match="pickled files, which are not loaded; take CIFAR's binary version"):
        read_image_folder(tmp_path)


def class_folders(folder: Path) -> Path:
    from PIL import Image

    for part in ("train", "val"):
        for number, name in enumerate(("ants", "bees")):
            (folder / part / name).mkdir(parents=True)
            for index in range(2):
                color = (100 * number + 50 * index, 10, 20)
                Image.new("RGB", (40 + 10 * index, 30), color).save(folder / part / name / f"{index}.png")
    return folder


def test_a_folder_for_each_class_is_resized_to_the_models_size(tmp_path: Path) -> None:
    found = read_image_folder(class_folders(tmp_path))
    assert found.held_out is not None
    assert found.train.labels.tolist() == found.held_out.labels.tolist() == [0, 0, 1, 1]
    assert found.train.shape is None
    for shape in ((3, 20, 20), (3, 64, 24)):
        pixels = found.train.pixels(rows(0, 3), shape)
        assert pixels.shape == (2, *shape)
        assert pixels[:, 0].mean((1, 2)).tolist() == [0, 150]
    assert found.train.pixels(rows(1), (1, 8, 8)).shape == (1, 1, 8, 8)
    with pytest.raises(UsageError, match="1 or 3 channels, the model takes 4"):
        found.train.pixels(rows(0), (4, 8, 8))


def test_an_image_of_the_models_size_is_taken_as_it_is(tmp_path: Path) -> None:
    from PIL import Image

    draw = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    (tmp_path / "one").mkdir()
    Image.fromarray(draw).save(tmp_path / "one" / "a.png")
    found = read_image_folder(tmp_path)
    assert found.held_out is None
    np.testing.assert_array_equal(found.train.pixels(rows(0), (3, 9, 7))[0], draw.transpose(2, 0, 1))


def test_image_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    folder = class_folders(tmp_path)
    (folder / "train" / "ants" / "0.png").write_bytes(b"none")
    found = read_image_folder(folder)
    with pytest.raises(UsageError, match=r"ants/0.png: .*; take the file out"):
        found.train.pixels(rows(0), (3, 8, 8))
    (folder / "val" / "bees").rename(folder / "val" / "cows")
    with pytest.raises(UsageError, match="no image to train on is of class 'cows'"):
        read_image_folder(folder)


def test_other_folders_are_refused_with_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        read_image_folder(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(UsageError, match=r"has no images: IDX files .* or a folder of image files for each class"):
        read_image_folder(tmp_path)
