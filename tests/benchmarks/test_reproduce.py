"""The reproduction's own logic: what counts as a difference, that nothing is run twice, and the page it writes."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reproduce():
    """Modules of benchmarks/reproduce, by name."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "reproduce"))
    try:
        yield importlib.import_module
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize(
    ("first", "second", "above"),
    [
        ([3.0, 4.0, 5.1], [1.0, 2.0, 3.0], True),
        ([1.0, 2.0, 3.0], [3.0, 4.0, 5.1], False),
        ([1.0, 9.0, 2.0], [3.0, 2.0, 4.0], None),
        # One seed has no spread that a difference could be held against.
        ([5.0], [1.0], None),
    ],
)
def test_a_difference_counts_beyond_two_standard_errors(reproduce, first, second, above):
    difference = reproduce("compare").Difference.of(first, second)
    assert difference.is_above is above
    assert math.isclose(difference.mean, sum(first) / len(first) - sum(second) / len(second))


def test_standard_error_is_that_of_paired_differences(reproduce):
    difference = reproduce("compare").Difference.of([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (difference.mean, difference.error) == (2.0, 1 / math.sqrt(3))
    assert str(difference) == "+2.00 ± 0.58"


@pytest.mark.parametrize(
    ("found", "says"),
    [([True, True], True), ([True, None], None), ([None], None), ([True, False, None], False), ([], None)],
)
def test_a_sentence_holds_if_every_comparison_does_and_fails_if_one_does(reproduce, found, says):
    assert reproduce("compare").verdict(found) is says


def test_jobs_run_once_and_come_back_in_order(reproduce, tmp_path):
    jobs = reproduce("jobs").Jobs(tmp_path, 2)
    arguments = [{"a": [n, 2], "b": [1, n]} for n in (3, 1, 3)]
    found = jobs.run(_dot, arguments, "products")
    assert found == [9, 3, 9]
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 2
    for path in kept:
        path.write_text(path.read_text().replace('"result": 9', '"result": 90'))
    again = reproduce("jobs").Jobs(tmp_path, 2)
    assert again.processor_seconds is None
    assert again.run(_dot, arguments[:1], "products") == [90]
    assert again.run(_dot, arguments, "products") == [90, 3, 90]
    # Each run counts once, whenever it ran.
    documents = [json.loads(path.read_text()) for path in kept]
    assert again.processor_seconds == jobs.processor_seconds == sum(document.pop("seconds") for document in documents)
    # Nothing is said of a run that was kept without its time.
    kept[0].write_text(json.dumps(documents[0]))
    again.run(_dot, arguments, "products")
    assert again.processor_seconds is None


def test_a_job_that_fails_ends_the_run_and_what_is_done_stays(reproduce, tmp_path):
    jobs = reproduce("jobs").Jobs(tmp_path, 1)
    with pytest.raises(TypeError):
        jobs.run(_dot, [{"a": [1], "b": [1]}, {"a": 1, "b": 1}], "products")
    assert [json.loads(path.read_text())["result"] for path in tmp_path.glob("*.json")] == [1]


def _dot(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_the_page_sorts_sentences_by_whether_they_hold(reproduce, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = reproduce("outcome")
    claims = [
        outcome.Claim("One holds.", True, "2 is 2.", "not said"),
        outcome.Claim("One does not.", False, "3 is not 4.", "It is odd."),
        outcome.Claim("One is open.", None, "0 ± 1."),
    ]

    def draw(figure: Any) -> None:
        figure.subplots().plot([1, 2])

    found = outcome.Outcome("tableX", "Table X", "Measured.", ("a", "b"), [["1", "2"]], claims, draw)
    how = {"setting": "small", "command": "python run.py tableX", "device": "cpu", "seconds": 3.21}
    measured = outcome.document_of("tableX", {"x": (1, 2)}, **how, processor_seconds=12.34)
    outcome.write(measured, found, tmp_path)
    page = (tmp_path / "tableX" / "README.md").read_text()
    places = [
        page.index(text) for text in ("## What agrees", "One holds", "## What does not", "It is odd", "told", "open")
    ]
    assert places == sorted(places)
    assert "not said" not in page
    document = json.loads((tmp_path / "tableX" / "results.json").read_text())
    assert [claim["agrees"] for claim in document["claims"]] == [True, False, None]
    assert document["values"] == measured["values"] == {"x": [1, 2]}
    assert (document["seconds"], document["processor_seconds"], document["setting"]) == (3.2, 12.3, "small")
    assert "Measured in 3 s (its trainings took 12 s of processor time) on " in page
    before = (tmp_path / "tableX" / "chart.svg").read_bytes()
    # Of what was written, the same is made again.
    outcome.write(document, found, tmp_path)
    assert (tmp_path / "tableX" / "README.md").read_text() == page
    assert json.loads((tmp_path / "tableX" / "results.json").read_text()) == document
    assert (tmp_path / "tableX" / "chart.svg").read_bytes() == before


def _point(reproduce, accuracies: list[float], seconds: float):
    study = reproduce("image_study")
    found = study.Found(0.1, tuple(accuracies), 1, 0.0)
    return reproduce("figure1_page").Point(study.DENSE, found, 1.0, seconds, 1.0)


def test_the_dense_rival_is_the_best_that_takes_no_longer(reproduce):
    points = [_point(reproduce, [80.0], 10.0), _point(reproduce, [82.0], 20.0), _point(reproduce, [90.0], 30.0)]
    best = reproduce("figure1_page").best_dense_within
    assert best(points, 19.9) is points[1]
    assert best(points, 12.0) is points[0]
    assert best(points, 5.0) is None


def test_the_dense_rival_of_a_gpt_has_the_lowest_perplexity_in_that_time(reproduce):
    text_seconds = reproduce("text_seconds")
    run = text_seconds.TextRun
    seconds = {run(): 10.0, run(length=2.0): 20.0, run(scale=1.5): 30.0, run("0.75"): 20.0}
    perplexities = dict(zip(seconds, ([9.0], [8.0], [5.0], [4.0]), strict=True))
    assert text_seconds.best_dense(perplexities, seconds, 20.0) == run(length=2.0)
    assert text_seconds.best_dense(perplexities, seconds, 12.0) == run()
    with pytest.raises(ValueError, match="empty"):
        text_seconds.best_dense(perplexities, seconds, 5.0)


def test_the_dense_network_is_also_trained_for_as_long_as_each_rigl_training(reproduce):
    figure1 = reproduce("figure1")
    dense = {4: figure1.Configuration(), 8: figure1.Configuration(width=8)}
    sparse = {
        (width, algorithm, s): figure1.Configuration((("wide", s),), algorithm, dense[width].width)
        for width in dense
        for algorithm in ("static", "rigl")
        for s in ("0.5", "0.9")
    }
    ms = {dense[4]: 10.0, dense[8]: 20.0} | dict.fromkeys(sparse.values(), 20.0)
    ms[sparse[4, "rigl", "0.9"]] = 8.0
    # Shorter, where sparse steps are faster. At width 8 the usual training takes as long as it is.
    own = [figure1.Configuration(length=length) for length in (2.0, 0.8)]
    assert figure1._as_long(dense, sparse, ms, every_width=False) == own
    assert figure1._as_long(dense, sparse, ms, every_width=True) == [*own, figure1.Configuration(width=8, length=0.4)]


def test_at_equal_seconds_the_rival_costs_as_much_to_run_or_has_any_width(reproduce, tmp_path):
    study = reproduce("image_study").ImageStudy("small", "cpu", reproduce("jobs").Jobs(tmp_path, 1))

    def point(accuracies: list[float], seconds: float, **configuration: Any) -> dict[str, Any]:
        usual = {"transform": [], "algorithm": "static", "width": None, "length": 1.0, "network": ""}
        found = {"rate": 0.1, "accuracies": accuracies, "macs": 100, "dense": 0.1}
        return {"configuration": {**usual, **configuration}, "found": found, "ms": 1, "seconds": seconds, "flops": 1.0}

    wide = {s: {"transform": [["wide", s]], "algorithm": "rigl"} for s in ("0.75", "0.9")}
    points = [
        point([80.0, 81.0, 82.0], 10),
        point([81.0, 82.0, 83.1], 13, length=1.3),
        point([99.0, 99.0, 99.0], 20, length=2.0),
        point([85.0, 86.0, 87.0], 12, width=6),
        point([83.0, 84.0, 85.0], 13, **wide["0.75"]),
        point([83.0, 84.0, 85.0], 9, **wide["0.9"]),
    ]
    outcome = reproduce("figure1").plain_seconds(study).tell({"points": points, "times": []})
    told = [claim for claim in outcome.claims if "seconds" in claim.text]
    assert [claim.agrees for claim in told] == [True, None, False, None]
    assert told[0].evidence == (
        "+1.97 ± 0.03 at width 3 (13.0 s; dense, width 3, x1.3: 13.0 s; spreads over seeds 1.00 and 1.05)."
    )
    assert "dense, width 6: 12.0 s" in told[2].evidence
    assert told[1].evidence == "No dense training was as short."


def test_rigl_pays_for_dense_gradients_once_in_an_interval(reproduce):
    flops = reproduce("figure1").training_flops
    assert flops(100, 1000, "static", 10) == flops(100, 1000, "set", 10) == 600
    # Between updates 3 sparse products of each layer; at one of ten steps the gradient of all weights instead.
    assert flops(100, 1000, "rigl", 10) == (9 * 600 + 2 * (2 * 100 + 1000)) / 10


def _idx(path: Path, magic: int, array: np.ndarray) -> None:
    path.write_bytes(struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes())


@pytest.fixture
def fashion(reproduce, tmp_path, monkeypatch):
    """Images of the standard setting, made up."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 10_300), ("t10k", 40)):
        _idx(tmp_path / f"{part}-images-idx3-ubyte", 2051, rng.integers(0, 256, (count, 28, 28)))
        _idx(tmp_path / f"{part}-labels-idx1-ubyte", 2049, rng.integers(0, 10, count))
    sets = reproduce("image_sets")
    monkeypatch.setenv(sets.IMAGES, str(tmp_path))
    return sets


def test_validation_images_are_drawn_by_seed_and_never_trained_on(fashion):
    train, validation, test = fashion.splits("fashion-mnist", 3)
    assert [len(labels) for _, labels in (train, validation, test)] == [300, 10_000, 40]
    assert train[0].shape[1:] == (1, 14, 14)
    rows = {image.numpy().tobytes() for image in train[0]}
    assert len(rows) == 300
    assert rows.isdisjoint(image.numpy().tobytes() for image in validation[0])
    assert rows != {image.numpy().tobytes() for image in fashion.splits("fashion-mnist", 4)[0][0]}


def test_missing_images_are_said_with_how_to_get_them(reproduce, tmp_path, monkeypatch):
    sets = reproduce("image_sets")
    monkeypatch.setenv(sets.IMAGES, str(tmp_path / "nowhere"))
    with pytest.raises(click.ClickException, match="apt-get download dataset-fashion-mnist"):
        sets.check_images("fashion-mnist")


def test_dense_and_sparse_networks_of_the_standard_setting_compute_as_much(reproduce, fashion):
    sizes = reproduce("images").sizes
    dense = sizes("standard", {}, 4)
    wide = sizes("standard", {"wide": "0.75"}, 4)
    assert dense.macs == dense.dense_macs
    assert wide.macs == pytest.approx(dense.macs, rel=1e-3)
    assert wide.dense_macs > 3 * wide.macs


NETWORKS = ("plain", "resnet10", "resnet18", "mobilenet", "mobilevit", "botnet")


@pytest.mark.parametrize("name", NETWORKS)
def test_narrow_networks_tell_classes_of_small_gray_images_apart(reproduce, name):
    torch = pytest.importorskip("torch")
    network = reproduce("networks").NETWORKS[name].narrow(4, 10).eval()
    assert network(torch.zeros(2, 1, 14, 14)).shape == (2, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS[3:])
def test_sparse_members_of_other_networks_compute_as_much(reproduce, fashion, name):
    sizes = reproduce("images").sizes
    dense = sizes("standard", {}, 4, name)
    for member in ("wide", "parallel"):
        made = sizes("standard", {member: "0.75"}, 4, name)
        assert made.macs == pytest.approx(dense.macs, rel=0.01)
        assert made.dense_macs > 2 * made.macs


@pytest.mark.slow
@pytest.mark.parametrize("network", ["", "mobilevit", "botnet"])
def test_the_large_setting_trains_on_images_of_ones_own(reproduce, tmp_path, monkeypatch, network):
    images, sets = reproduce("images"), reproduce("image_sets")
    rng = np.random.default_rng(0)
    parts = {
        f"{part}{name}": values
        for part in ("", "val_", "test_")
        for name, values in (
            ("input", rng.standard_normal((8, 3, 32, 32), dtype=np.float32)),
            ("target", np.arange(8) % 5),
        )
    }
    np.savez(tmp_path / "own.npz", **parts)
    monkeypatch.setenv(sets.IMAGES, str(tmp_path / "own.npz"))
    short = dataclasses.replace(images.SETTINGS["large"], batch=4, epochs=1.0, update=1)
    monkeypatch.setitem(images.SETTINGS, "large", short)
    found = images.train_images("large", {"wide": "0.5"}, "rigl", 0.1, 1.0, 0.1, 3, "test", "cpu", network)
    assert 0 <= found <= 100


class _Scores:
    """Jobs that find what a function says, and are kept."""

    def __init__(self, score) -> None:
        self.score, self.asked = score, []

    def run(self, function, jobs, what):
        self.asked += jobs
        return [self.score(job) for job in jobs]


def test_each_network_has_the_rate_that_suits_its_dense_form(reproduce, monkeypatch):
    module = reproduce("image_study")
    best = {"": 0.1, "botnet": 0.4}
    jobs = _Scores(lambda job: -abs(job["rate"] - best[job.get("network", "")]))
    study = module.ImageStudy("standard", "cpu", jobs)
    size = reproduce("images").Sizes(100, 100, 1.0)
    monkeypatch.setattr(study, "sizes", lambda configurations: dict.fromkeys(configurations, size))
    sparse = [module.Configuration((("wide", "0.5"),), "rigl", network=network) for network in best]
    found = study.find([module.DENSE, *sparse], "a table", 2)
    assert [own.rate for own in found.values()] == [0.1, 0.1, 0.4]
    tests = [job for job in jobs.asked if job["part"] == "test"]
    assert {(job.get("network", ""), job["rate"]) for job in tests} == set(best.items())
    # What is kept of the setting's own network in earlier runs is found again: it has no entry for a name.
    assert all(set(job) == {*tests[0]} for job in jobs.asked if "network" not in job)


def _found(*accuracies: float) -> dict[str, Any]:
    return {"rate": 0.1, "accuracies": list(accuracies), "macs": 100, "dense": 0.05}


def test_table_6_asks_whether_the_sparse_network_reaches_the_next_dense_one(reproduce, tmp_path):
    study = reproduce("image_study").ImageStudy("standard", "cpu", reproduce("jobs").Jobs(tmp_path, 1))
    better = {s: _found(82.0, 83.1, 84.0) for s in ("0.5", "0.75", "0.9")}
    small = {"dense": _found(80.0, 81.0, 82.0), "wide": better, "parallel": {**better, "0.9": None}}
    large = {"dense": {**_found(81.0, 82.0, 83.0), "macs": 217}, "wide": better}
    outcome = reproduce("network_tables").table_6(study).tell({"ResNet-10": small, "ResNet-18": large})
    told = {claim.text: claim for claim in outcome.claims}
    reached = next(claim for text, claim in told.items() if "2.2 times" in text)
    assert reached.agrees
    assert reached.evidence == "+1.03 ± 0.03 at 50%, +1.03 ± 0.03 at 75%, +1.03 ± 0.03 at 90%."
    assert told["Accuracy of ResNet-10, Sparse Wide grows with sparsity."].agrees is None
    assert told["ResNet-10, Sparse Parallel is above dense at every sparsity."].agrees
    assert outcome.rows[1][:2] == ["ResNet-10, Sparse Parallel", "100"]
    assert outcome.rows[1][-1] == "does not apply (74)"


def test_table_5_has_a_row_for_each_network(reproduce, tmp_path):
    study = reproduce("image_study").ImageStudy("standard", "cpu", reproduce("jobs").Jobs(tmp_path, 1))
    own = {"0.5": _found(80.0, 81.0, 82.1), "0.75": _found(82.0, 83.0, 84.1)}
    network = {"dense": _found(81.0, 82.0, 83.0), "wide": own}
    values = {title: network for title in ("MobileNetV2", "MobileViT", "BoTNet")}
    outcome = reproduce("network_tables").table_5(study).tell(values)
    assert [row[0] for row in outcome.rows] == [f"{title}, Sparse Wide" for title in values]
    told = {claim.text: claim.agrees for claim in outcome.claims}
    assert told["BoTNet, Sparse Wide is above dense at both sparsities."] is False
    assert told["Accuracy of MobileViT, Sparse Wide grows with sparsity."]


@pytest.mark.slow
def test_steps_are_timed_with_their_phases_for_dense_and_masked_networks(reproduce, fashion, monkeypatch):
    images, times = reproduce("images"), reproduce("step_times")
    short = dataclasses.replace(images.SETTINGS["pilot"], update=2)
    monkeypatch.setitem(images.SETTINGS, "pilot", short)
    networks = [{"transform": t, "algorithm": "rigl", "width": 4} for t in ({}, {"wide": "0.75"})]
    dense, masked = times.step_times("pilot", networks, 1)
    assert dense["format"] in ("contiguous", "channels last")
    for found in (dense, masked):
        assert found["spread"][0] <= found["ms"] <= found["spread"][1]
        assert all(ms > 0 for ms in found["phases"].values())
        assert 0 < sum(share for _, share in found["operations"]) <= 1


def test_the_front_page_has_a_line_for_each_sentence(reproduce, tmp_path):
    claims = [
        {"text": "One | two.", "agrees": True, "evidence": "1."},
        {"text": "Three.", "agrees": None, "evidence": "0 ± 1."},
    ]
    (tmp_path / "tableX").mkdir()
    document = {"name": "tableX", "title": "Table X: what", "setting": "small", "claims": claims}
    (tmp_path / "tableX" / "results.json").write_text(json.dumps(document))
    outcome = reproduce("outcome")
    page = outcome.front_page(outcome.read_results(tmp_path), "small").splitlines()
    assert "| [Table X](tableX/README.md) | One \\| two. | agrees | 1. |" in page
    assert "| [Table X](tableX/README.md) | Three. | cannot be told | 0 ± 1. |" in page


RESULTS = sorted((ROOT / "benchmarks" / "reproduce" / "results").glob("*/*/results.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_pages_are_made_of_the_committed_figures(reproduce, path):
    run, outcome = reproduce("run"), reproduce("outcome")
    document = json.loads(path.read_text(encoding="utf-8"))
    experiment, _ = run.make(document["name"], document["setting"], "cpu", 1)
    told = experiment.tell(document["values"])
    assert (path.parent / "README.md").read_text(encoding="utf-8") == outcome.page(document, told)
    assert (document["title"], document["claims"]) == (told.title, [dataclasses.asdict(c) for c in told.claims])
    assert outcome.pages.digest(document["values"]) in (path.parent / "chart.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("setting", sorted({path.parts[-3] for path in RESULTS}))
def test_front_pages_are_made_of_the_committed_figures(reproduce, setting):
    folder = ROOT / "benchmarks" / "reproduce" / "results" / setting
    outcome = reproduce("outcome")
    page = outcome.front_page(outcome.read_results(folder), setting)
    assert (folder / "README.md").read_text(encoding="utf-8") == page
