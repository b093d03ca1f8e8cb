"""Operators that move values between images and rows, between sparse layers, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_at_batches, places

from sift_onnx.backends.cpu.run.schedules import slabs, tensor_copies
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

BATCHES = [1, 3, 16, 17]
TOKENS, WIDTH = 12, 6


def integers(net: SparseNet, *values: int) -> str:
    return net.constant(values, dtype=np.int64)


def tokens(net: SparseNet, count: int = TOKENS, width: int = WIDTH) -> str:
    return str(net.dense(net.input("x", 2, count, 5, declared=["n", count, 5]), 5, width, name="before"))


def images(net: SparseNet, channels: int = WIDTH, size: int = 5) -> str:
    return str(net.conv(net.input("x", 2, 4, size, size, declared=["n", 4, size, size]), 4, channels, 3, name="before"))


def tokens_first(net: SparseNet) -> str:
    x = net.op("Transpose", tokens(net), perm=[1, 0, 2])
    return str(net.op("Transpose", net.dense(net.op("Relu", x), WIDTH, WIDTH), perm=[1, 0, 2]))


def token_mixing(net: SparseNet) -> str:
    x = tokens(net)
    mixed = net.dense(net.op("Transpose", x, perm=[0, 2, 1]), TOKENS, TOKENS)
    return str(net.op("Add", x, net.op("Transpose", mixed, perm=[0, 2, 1])))


def channels_last(net: SparseNet) -> str:
    """A block of ConvNeXt."""
    x = images(net)
    y = net.op("LayerNormalization", net.op("Transpose", x, perm=[0, 2, 3, 1]), net.constant(np.linspace(1, 2, WIDTH)))
    y = net.op("Transpose", net.dense(y, WIDTH, WIDTH), perm=[0, 3, 1, 2])
    y = net.op("Mul", y, net.constant(np.linspace(0.1, 2, WIDTH).reshape(WIDTH, 1, 1)))
    return str(net.conv(net.op("Add", x, y), WIDTH, WIDTH, 3))


def class_token(net: SparseNet) -> str:
    """A vision transformer's: images to tokens, one more in front, a table of positions, and the first token."""
    x = net.op("Reshape", images(net), integers(net, 0, WIDTH, 25))
    x = net.op("Transpose", x, perm=[0, 2, 1])
    batch = net.op("Gather", net.op("Shape", x), integers(net, 0), axis=0)
    token = net.op("Expand", net.weight(1, 1, WIDTH), net.op("Concat", batch, integers(net, 1, WIDTH), axis=0))
    x = net.op("Add", net.op("Concat", token, x, axis=1), net.weight(1, 26, WIDTH))
    return str(net.op("Gather", net.dense(net.op("Relu", x), WIDTH, WIDTH), net.constant(0, dtype=np.int64), axis=1))


def windows(net: SparseNet) -> str:
    """Swin's, of 2 x 2 of 4 x 6 pixels, rolled by one before and back after the layer."""
    x = net.op("Reshape", tokens(net, 24), integers(net, -1, 4, 6, WIDTH))
    one, end = integers(net, 1), integers(net, 2**62)
    x = net.op("Concat", net.op("Slice", x, one, end, one), net.op("Slice", x, integers(net, 0), one, one), axis=1)
    x = net.op("Reshape", x, integers(net, -1, 2, 2, 3, 2, WIDTH))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5]), integers(net, -1, 4, WIDTH))
    x = net.op("Reshape", net.op("Relu", net.dense(x, WIDTH, WIDTH)), integers(net, -1, 2, 3, 2, 2, WIDTH))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5]), integers(net, -1, 4, 6, WIDTH))
    last = integers(net, -1)
    x = net.op("Concat", net.op("Slice", x, last, end, one), net.op("Slice", x, integers(net, 0), last, one), axis=1)
    return str(net.op("Reshape", x, integers(net, 0, 24, WIDTH)))


def merged_patches(net: SparseNet) -> str:
    x = net.op("Reshape", tokens(net, 24), integers(net, -1, 4, 6, WIDTH))
    axes, end, steps = integers(net, 1, 2), integers(net, 99, 99), integers(net, 2, 2)
    parts = [net.op("Slice", x, integers(net, i, j), end, axes, steps) for j in range(2) for i in range(2)]
    x = net.op("Reshape", net.op("Concat", *parts, axis=-1), integers(net, 0, -1, 4 * WIDTH))
    return str(net.dense(x, 4 * WIDTH, WIDTH))


def gated_halves(net: SparseNet) -> str:
    x = tokens(net, width=2 * WIDTH)
    first, second = net.op("Split", x, integers(net, WIDTH, WIDTH), outputs=2, axis=-1)
    return str(net.op("Mul", first, net.op("Sigmoid", second)))


def uneven_parts(net: SparseNet) -> str:
    parts = net.op("Split", tokens(net, 13), outputs=3, axis=1, num_outputs=3)
    return str(net.op("Add", parts[0], parts[1]))


def mean_of_tokens(net: SparseNet) -> str:
    return str(net.op("ReduceMean", net.op("Relu", tokens(net)), integers(net, 1), keepdims=0))


def mean_of_turned_tokens(net: SparseNet) -> str:
    x = net.op("Transpose", tokens(net), perm=[0, 2, 1])
    return str(net.op("Squeeze", net.op("ReduceMean", x, integers(net, -1)), integers(net, 2)))


def patches_of_images(net: SparseNet) -> str:
    """MobileViT's: pixels of 2 x 2 patches as sequences, and back to images."""
    x = net.op("Reshape", images(net, size=4), integers(net, -1, 2, 2, 2))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1, 3]), integers(net, -1, WIDTH, 4, 4))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 3, 2, 1]), integers(net, -1, 4, WIDTH))
    x = net.op("Relu", net.dense(x, WIDTH, WIDTH))
    x = net.op("Transpose", net.op("Reshape", x, integers(net, -1, 4, 4, WIDTH)), perm=[0, 3, 2, 1])
    x = net.op("Reshape", x, integers(net, -1, 2, 2, 2))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1, 3]), integers(net, -1, WIDTH, 4, 4))
    return str(net.conv(x, WIDTH, WIDTH, 3))


def shuffled_channels(net: SparseNet) -> str:
    x = net.op("Reshape", images(net), integers(net, 0, 2, 3, 5, 5))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1, 3, 4]), integers(net, 0, WIDTH, 5, 5))
    return str(net.conv(x, WIDTH, WIDTH, 3))


def unrelated_axes(net: SparseNet) -> str:
    """Sizes after a reshape that no products of those before it are, behind a transpose."""
    x = net.op("Transpose", tokens(net, 10), perm=[0, 2, 1])
    return str(net.op("Relu", net.op("Reshape", x, integers(net, 0, 4, 15))))


def unsqueezed(net: SparseNet) -> str:
    x = net.op("Unsqueeze", tokens(net), integers(net, 0, 3))
    return str(net.op("Squeeze", net.op("Relu", x), integers(net, 0, 3)))


NETS: dict[str, Callable[[SparseNet], str]] = {
    function.__name__: function
    for function in (
        tokens_first, token_mixing, channels_last, class_token, windows, merged_patches, gated_halves, uneven_parts,
        mean_of_tokens, mean_of_turned_tokens, patches_of_images, shuffled_channels, unrelated_axes, unsqueezed,
    )
}  # fmt: skip


def model_of(name: str) -> SparseNet:
    net = SparseNet(opset=18)
    out = NETS[name](net)
    is_image = name in ("channels_last", "patches_of_images", "shuffled_channels")
    width = 15 if name == "unrelated_axes" else WIDTH
    net.output(net.conv(out, WIDTH, 4, 1, name="after") if is_image else net.dense(out, width, 4, name="after"))
    return net


@pytest.mark.parametrize("name", NETS)
def test_moved_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of the sizes here, none would be copied by runs.
    monkeypatch.setattr(tensor_copies, "_LONG_RUN", 3)
    program = assert_same_at_batches(model_of(name).model(), BATCHES)
    assert set(places(program).values()) <= {"kernels", "folded"}
    assert len(program.parts) == 1


@pytest.mark.parametrize("isa", ["avx2", "portable"])
@pytest.mark.parametrize("name", ["channels_last", "class_token", "windows", "token_mixing"])
def test_moved_values_on_other_instruction_sets(name: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIFT_ISA", isa)
    assert assert_same_at_batches(model_of(name).model(), [2, 17]).isa == isa


@pytest.mark.parametrize("name", ["tokens_first", "token_mixing", "windows", "gated_halves"])
def test_moved_values_are_outputs(name: str) -> None:
    net = SparseNet(opset=18)
    net.output(NETS[name](net))
    assert len(assert_same_at_batches(net.model(), BATCHES).parts) == 1


def test_names_of_sizes_stand_for_those_of_the_run() -> None:
    """As torch exports an encoder: rows are parted again into a batch and a length that only a run knows."""
    net = SparseNet(opset=18)
    x = net.dense(net.input("x", 2, 7, 5, declared=["n", "t", 5]), 5, WIDTH)
    sizes = net.op("Shape", x)
    flat = net.dense(net.op("Reshape", net.op("Transpose", x, perm=[1, 0, 2]), integers(net, -1, WIDTH)), WIDTH, WIDTH)
    turned = net.op("Concat", *(net.op("Gather", sizes, integers(net, i), axis=0) for i in (1, 0, 2)), axis=0)
    x = net.op("Add", x, net.op("Transpose", net.op("Reshape", flat, turned), perm=[1, 0, 2]))
    net.output(net.dense(x, WIDTH, 4))
    for shape in ((1, 1, 5), (2, 7, 5), (3, 17, 5), (16, 5, 5)):
        program = assert_same_at_batches(net.model(), [shape[0]], {"x": shape})
        assert len(program.parts) == 1


def test_a_length_that_an_export_fixes_is_required_by_the_run() -> None:
    net = SparseNet(opset=18)
    x = net.dense(net.input("x", 2, 8, 5, declared=["n", "t", 5]), 5, WIDTH)
    batch = net.op("Gather", net.op("Shape", x), integers(net, 0), axis=0)
    y = net.op("Reshape", x, net.op("Concat", batch, integers(net, 8, WIDTH), axis=0))
    net.output(net.dense(net.op("Add", x, y), WIDTH, 4))
    program = assert_same_at_batches(net.model(), [1, 3], {"x": (1, 8, 5)})
    assert len(program.parts) == 1
    with pytest.raises(UsageError, match=r"cannot make \[2, 8, 6\] of \[2, 9, 6\]"):
        program.run({"x": np.zeros((2, 9, 5), np.float32)})


def test_a_table_that_is_too_short_is_refused_in_the_run() -> None:
    net = SparseNet(opset=18)
    x = net.dense(net.input("x", 2, 7, 5, declared=["n", "t", 5]), 5, WIDTH)
    length = net.op("Gather", net.op("Shape", x), integers(net, 1), axis=0)
    table = net.op("Slice", net.weight(1, 9, WIDTH), integers(net, 0), length, integers(net, 1))
    net.output(net.dense(net.op("Add", x, table), WIDTH, 4))
    program = assert_same_at_batches(net.model(), [2], {"x": (2, 9, 5)})
    assert_same_at_batches(net.model(), [2], {"x": (2, 4, 5)})
    with pytest.raises(UsageError, match=r"cannot make \[2, 10, 6\] of .* and \[1, 9, 6\]"):
        program.run({"x": np.zeros((2, 10, 5), np.float32)})


def test_values_are_not_moved_for_onnxruntime() -> None:
    net = SparseNet(opset=18)
    x = net.op("Atan", net.op("Transpose", tokens(net), perm=[1, 0, 2], name="turned"))
    net.output(net.dense(x, WIDTH, 4, name="after"))
    program = assert_same_at_batches(net.model(), [1, 3])
    assert places(program)["before"] == places(program)["after"] == "kernels"
    assert places(program)["turned"] == "onnxruntime"


def test_sizes_are_read_off_the_inputs_where_kernels_make_the_value() -> None:
    """A mask whose sizes are those of a value of the kernels does not part them."""
    net = SparseNet(opset=18)
    x = net.dense(net.input("x", 2, 7, 5, declared=["n", "t", 5]), 5, WIDTH, name="before")
    mask = net.op("Atan", net.op("ConstantOfShape", net.op("Shape", x)))
    net.output(net.dense(net.op("Add", x, mask), WIDTH, 4, name="after"))
    program = assert_same_at_batches(net.model(), [1, 3], {"x": (1, 7, 5)})
    assert len(program.parts) == 2


def slabs_of(net: SparseNet, batch: int) -> list[tuple[int, str]]:
    program = assert_same_at_batches(net.model(), [batch])
    (part,) = program.parts
    (prepared,) = part._whole.schedules.kept
    return [(slab.count, slab.layout) for slab, _ in prepared.slabs]


@pytest.mark.parametrize("name", ["channels_last", "class_token", "patches_of_images"])
def test_images_with_their_rows_are_cut_into_slabs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slabs, "_SLAB_BYTES", 1)
    assert slabs_of(model_of(name), 35) == [(16, "images16"), (16, "images16"), (3, "planes")]


def test_images_that_exchange_values_stay_together() -> None:
    net = SparseNet(opset=18)
    x = net.op("Transpose", images(net), perm=[2, 1, 0, 3])
    x = net.op("Transpose", net.op("Relu", x), perm=[2, 1, 0, 3])
    net.output(net.conv(x, WIDTH, 4, 1))
    assert slabs_of(net, 35) == [(35, "images16")]


def test_a_batch_that_sizes_are_made_for_stays_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the batch would have the sizes of a whole one whose images are half as large."""
    monkeypatch.setattr(slabs, "_SLAB_BYTES", 1)
    net = SparseNet(opset=18)
    x = net.op("Reshape", images(net), integers(net, 32, -1, WIDTH))
    x = net.op("Reshape", net.op("Relu", net.dense(x, WIDTH, WIDTH)), integers(net, 32, WIDTH, 5, 5))
    net.output(net.conv(x, WIDTH, 4, 1))
    assert slabs_of(net, 32) == [(32, "images16")]


def test_more_axes_than_rows_and_channels_are_no_flat_batch() -> None:
    """Here the first axis has as many values as there are rows: one."""
    net = SparseNet()
    x = net.input("x", 1, 1, 1, 8, declared=[1, 1, 1, 8])
    y = net.op("Transpose", net.dense(net.op("Atan", x), 8, 8), perm=[0, 2, 1, 3])
    net.output(net.dense(y, 8, 4))
    assert_same_at_batches(net.model(), [1], {"x": (1, 1, 1, 8)})


def test_rows_in_lanes_become_images_by_way_of_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value after the other would come from another image: that took twenty times as long as two reorders."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 4, 24, declared=["n", 4, 24])
    y = net.op("Transpose", net.op("Relu", x), perm=[0, 2, 1])
    scales = [net.constant(np.linspace(low, 1, 4, dtype=np.float32)) for low in (0.5, -1)]
    y = net.op("Transpose", net.op("LayerNormalization", y, *scales, axis=-1), perm=[0, 2, 1])
    net.output(net.op("Conv", net.op("Tanh", y), net.weight(6, 4, 3), pads=[1, 1]))
    targets: list[tuple[str, str]] = []
    rearrange = tensor_copies._kernels.Rearrange

    def recorded(*args: object, **options: object) -> object:
        targets.append((str(options["source_layout"]), str(options["target_layout"])))
        return rearrange(*args, **options)

    monkeypatch.setattr(tensor_copies._kernels, "Rearrange", recorded)
    assert_same_at_batches(net.model(), [16], {"x": (1, 4, 24)})
    assert targets.count(("planes", "images16")) == 2  # those of Transpose, whose values change places
