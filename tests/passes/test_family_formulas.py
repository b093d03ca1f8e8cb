"""The members of the family by the numbers of the paper: sections 2.4 and 2.5, appendices A.1 and B.3.2."""

from __future__ import annotations

import pytest
from nets import Net

from sift_onnx.analysis.cost import inspect
from sift_onnx.errors import UsageError
from sift_onnx.passes import Doped, Factorized, LowRank, Parallel, Wide

# A fully connected layer of 64 x 96, and a 3x3 convolution of 16 channels to 24: a matrix of 24 x 144.
DENSE = 64 * 96
CONV = 24 * 16 * 9


def dense_model():
    net = Net()
    x = net.dense(net.input("x", 2, 4), 4, 64, name="stem")
    net.output(net.dense(net.op("Relu", net.dense(net.op("Relu", x), 64, 96, name="layer")), 96, 3, name="head"))
    return net.model()


def conv_model(groups=1, inputs=16, outputs=24):
    net = Net()
    x = net.conv(net.input("x", 1, 3, 8, 8), 3, inputs, 3, name="stem")
    y = net.conv(net.op("Relu", x), inputs, outputs, 3, name="layer", group=groups)
    net.output(net.conv(net.op("Relu", y), outputs, 2, name="head"))
    return net.model()


def layer_of(report):
    return next(layer for layer in report["layers"] if layer["name"] == "layer.weight")


def parts(pass_, model):
    """Shape and non-zeros of each part, the layer's entry, and what `inspect` finds in the result."""
    result = pass_(model)
    entry = layer_of(result.report)
    assert entry["nnz"] == sum(part["nnz"] for part in entry["parts"])
    assert entry["macs_after"] == entry["macs_before"]
    stored = {layer.name: layer for layer in inspect(result.model).layers}
    for part in entry["parts"]:
        assert (stored[part["name"]].shape, stored[part["name"]].nnz) == (tuple(part["shape"]), part["nnz"])
    assert sum(stored[part["name"]].search_space for part in entry["parts"]) == entry["search_space"]
    return [(tuple(part["shape"]), part["nnz"]) for part in entry["parts"]], entry


@pytest.mark.parametrize(
    ("sparsity", "branches", "nnz"),
    [
        ("0.5", 2, [3072, 3072]),
        ("0.75", 4, [1536] * 4),
        # 6144 = 10 * 614 + 4
        ("0.9", 10, [615] * 4 + [614] * 6),
        # k = 1.67 is 2, with s solved again: a half
        ("0.4", 2, [3072, 3072]),
        # k = 2.5 is 2: half to even
        ("0.6", 2, [3072, 3072]),
        ("2/3", 3, [2048] * 3),
    ],
)
def test_parallel_has_the_nearest_whole_number_of_branches(sparsity, branches, nnz):
    found, entry = parts(Parallel(sparsity), dense_model())
    assert found == [((64, 96), n) for n in nnz]
    assert entry["search_space"] == branches * DENSE
    assert entry["sparsity"] == pytest.approx(1 - 1 / branches)


def test_parallel_branches_of_a_convolution():
    found, entry = parts(Parallel("0.75"), conv_model())
    assert found == [((24, 16, 3, 3), CONV // 4)] * 4
    assert entry["search_space"] == 4 * CONV == 13824


@pytest.mark.parametrize(
    ("sparsity", "more"),
    [("0", ""), *((s, ": it makes one branch, which is the layer, and 1/3 makes two") for s in ("0.2", "0.33"))],
)
def test_parallel_of_one_branch_is_the_layer(sparsity, more):
    result = Parallel(sparsity)(dense_model())
    assert not result.changed
    assert layer_of(result.report)["reason"] == f"a sparsity of {sparsity} changes nothing{more}"


@pytest.mark.parametrize(
    ("sparsity", "rank"),
    # 64 * 96 / (160 * (1 - s)) = 38.4, 76.8, 153.6, 384
    [("0", 39), ("0.5", 77), ("0.75", 154), ("0.9", 384)],
)
def test_factorized_rank_of_a_fully_connected_layer(sparsity, rank):
    found, entry = parts(Factorized(sparsity), dense_model())
    # The non-zeros are shared like the weights: 6144 * 64 / 160 and 6144 * 96 / 160, rounded.
    assert found == [((64, rank), 2458), ((rank, 96), 3686)]
    assert entry["search_space"] == rank * (64 + 96)
    assert entry["sparsity"] >= float(sparsity)


@pytest.mark.parametrize(
    ("sparsity", "rank"),
    # 24 * 144 / (168 * (1 - s)) = 41.1, 82.3, 205.7
    [("0.5", 42), ("0.75", 83), ("0.9", 206)],
)
def test_factorized_rank_of_a_convolution(sparsity, rank):
    found, entry = parts(Factorized(sparsity), conv_model())
    # 3456 * 144 / 168 = 2962.3 and 3456 * 24 / 168 = 493.7
    assert found == [((rank, 16, 3, 3), 2962), ((24, rank, 1, 1), 494)]
    assert entry["search_space"] == rank * (144 + 24)


@pytest.mark.parametrize(
    ("sparsity", "rank", "nnz"),
    # s * 64 * 96 / 160 = 19.2, 28.8, 34.56, rounded down; the sparse matrix gets the rest of 6144.
    [("0.5", 19, 3104), ("0.75", 28, 1664), ("0.9", 34, 704)],
)
def test_doped_rank_of_a_fully_connected_layer(sparsity, rank, nnz):
    found, entry = parts(Doped(sparsity), dense_model())
    assert found == [((64, rank), 64 * rank), ((rank, 96), 96 * rank), ((64, 96), nnz)]
    assert entry["search_space"] == DENSE  # whatever the sparsity (Table 1)


@pytest.mark.parametrize(
    ("sparsity", "rank", "nnz"),
    # s * 24 * 144 / 168 = 10.3, 15.4, 18.5
    [("0.5", 10, 1776), ("0.75", 15, 936), ("0.9", 18, 432)],
)
def test_doped_rank_of_a_convolution(sparsity, rank, nnz):
    found, entry = parts(Doped(sparsity), conv_model())
    assert found == [((rank, 16, 3, 3), 144 * rank), ((24, rank, 1, 1), 24 * rank), ((24, 16, 3, 3), nnz)]
    assert entry["search_space"] == CONV


def test_doped_without_sparsity_is_the_layer():
    assert not Doped(0)(dense_model()).changed


def test_ranks_of_a_grouped_convolution_are_whole_in_each_group():
    # 4 groups of 4 inputs: a matrix of 24 x 36, 864 weights; 864 / 60 / 0.5 = 28.8 is 32, 0.5 * 864 / 60 = 7.2 is 4.
    (u, v), entry = parts(Factorized("0.5"), conv_model(groups=4))
    assert (u[0], v[0]) == ((32, 4, 3, 3), (24, 32, 1, 1))
    assert entry["search_space"] == 32 * (36 + 24)
    (u, v, s), _ = parts(Doped("0.5"), conv_model(groups=4))
    assert (u[0], v[0], s[0]) == ((4, 4, 3, 3), (24, 4, 1, 1), (24, 4, 3, 3))
    assert s[1] == 864 - 4 * 60


def depthwise_model():
    net = Net()
    x = net.op("Relu", net.conv(net.input("x", 1, 3, 8, 8), 3, 16, name="stem"))
    x = net.conv(net.conv(x, 16, 16, 3, name="depthwise", group=16), 16, 24, name="layer")
    net.output(net.conv(x, 24, 2, name="head"))
    return net.model()


@pytest.mark.parametrize("pass_", [Parallel("0.75"), Factorized("0.75"), Doped("0.75"), LowRank(1)])
def test_depthwise_layers_are_left_as_they_are(pass_):
    report = pass_(depthwise_model()).report
    entry = next(layer for layer in report["layers"] if layer["name"] == "depthwise.weight")
    assert (entry["status"], entry["reason"]) == ("unchanged", "depthwise (paper, appendix A.1.1)")
    assert layer_of(report)["status"] != "unchanged"


@pytest.mark.parametrize(("sparsity", "widths"), [("0.75", (128, 192)), ("0.5", (91, 136))])
def test_search_space_of_wide_is_the_wide_layer(sparsity, widths):
    entry = layer_of(Wide(sparsity, budget="layer")(dense_model()).report)
    assert entry["shape_after"] == list(widths)
    assert entry["search_space"] == widths[0] * widths[1]
    assert entry["nnz"] == DENSE


def test_search_space_of_layers_without_a_mask_is_empty():
    report = Wide("0.75")(dense_model()).report
    assert [layer["search_space"] for layer in report["layers"]] == [0, 128 * 192, 0]
    assert report["totals"]["search_space"] == 128 * 192
    local = Doped("0.75")(dense_model()).report
    assert [layer["search_space"] for layer in local["layers"]] == [0, DENSE, 0]
    assert local["totals"]["search_space"] == DENSE


def test_rank_of_the_structured_ablation():
    """``D_in D_out / (k_lr (D_in + D_out))``: the FLOPs of a layer whose sides are ``k_lr`` times as long."""
    result = LowRank(1)(dense_model())
    entry = layer_of(result.report)
    assert [part["shape"] for part in entry["parts"]] == [[64, 38], [38, 96]]  # 38.4
    assert (entry["status"], entry["search_space"]) == ("dense", 0)
    wide = layer_of(LowRank(2, keep_dense=[])(conv_model(inputs=32, outputs=32)).report)
    # 64 x 576, 32 x 288 before: 14.4 on its own; first and last layer, twice as wide, are paid for by it.
    assert wide["shape_after"] == [64, 64, 3, 3]
    u, v = (part["shape"] for part in wide["parts"])
    assert (u, v) == ([u[0], 64, 3, 3], [64, u[0], 1, 1])
    assert 9 <= u[0] <= 14
    assert wide["macs_after"] <= wide["macs_before"]


def test_search_space_of_low_rank_is_that_of_the_depthwise_layers():
    result = LowRank(2, keep_dense=[])(depthwise_model())
    entries = {layer["name"]: layer for layer in result.report["layers"]}

    assert entries["depthwise.weight"]["status"] == "sparse"
    assert entries["layer.weight"]["search_space"] == 0
    assert result.report["totals"]["search_space"] == inspect(result.model).totals.search_space > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Parallel(1), "out of range"),
        (lambda: Parallel("half"), "is not a number"),
        (lambda: Parallel("1e-999999999"), "is not a number"),
        (lambda: Factorized(-0.1), "out of range"),
        (lambda: LowRank("0.9"), "at least 1"),
        (lambda: LowRank("wide"), "is not a number"),
        (lambda: LowRank(2, init="svd"), "use a width of 1"),
        (lambda: Factorized("0.5", init="embed"), "choose one of random, svd"),
        (lambda: Doped("0.5", init="embed"), "choose one of random, svd"),
        (lambda: Parallel("0.5", init="svd"), "choose one of random, embed"),
        (lambda: Parallel("0.5", init="embed"), "add `activation='none'`"),
        (lambda: Parallel("0.5", init="embed", activation="none", pattern="2:4"), "drop `pattern`"),
        (lambda: Doped("0.5", activation="swish"), "is unknown"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("asked", "made", "branches"), [("0.6", 0.5, "2.5"), ("0.85", 6 / 7, "6.667"), ("0.4", 0.5, "1.667")]
)
def test_parallel_reports_the_sparsity_that_its_branches_have(asked, made, branches):
    report = Parallel(asked)(dense_model()).report
    assert (report["sparsity"], report["sparsity_requested"]) == (pytest.approx(made), float(asked))
    assert layer_of(report)["sparsity"] == pytest.approx(made)
    (warning,) = report["warnings"]
    assert f"{branches} branches" in warning
    assert f"sparsity of {made:.4g}" in warning


@pytest.mark.parametrize("asked", ["0.5", "0.75", "0.9", "2/3"])
def test_parallel_says_nothing_of_a_sparsity_that_it_meets(asked):
    report = Parallel(asked)(dense_model()).report
    assert report["sparsity"] == report["sparsity_requested"] == pytest.approx(layer_of(report)["sparsity"])
    assert report["warnings"] == []


def test_parallel_names_the_smallest_sparsity_that_makes_a_second_branch():
    result = Parallel("0.33")(dense_model())
    assert not result.changed
    assert result.report["sparsity"] == 0
    assert "1/3" in layer_of(result.report)["reason"]
    assert Parallel("1/3")(dense_model()).changed


@pytest.mark.parametrize("make", [Factorized, Doped, Wide])
def test_the_others_report_what_was_asked_for_and_each_layer_what_it_has(make):
    settings = {"budget": "layer"} if make is Wide else {}
    report = make("0.6", **settings)(dense_model()).report
    assert report["sparsity"] == report["sparsity_requested"] == 0.6
