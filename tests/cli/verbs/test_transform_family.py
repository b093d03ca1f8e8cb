"""``transform`` with the members of the family and with recipes, and ``inspect --save-recipe``, as called by a user."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from nets import Net

from sift_onnx.cli import main

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Call a verb in a folder with ``in.onnx``: exit code, stdout, stderr."""
    net = Net(opset=17)
    x = net.conv(net.input("x", 1, 3, 8, 8), 3, 16, 3, name="stem")
    for name in "abcd":
        x = net.conv(net.op("Relu", x), 16, 16, 3, name=name)
    net.output(net.conv(net.op("Relu", x), 16, 4, name="head"))
    onnx.save(net.model(), tmp_path / "in.onnx")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(args=list(arguments))
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return int(stop.value.code or 0), out, err

    return run


RECIPE = """\
version: 1
passes:
  - wide: {sparsity: 0.75, only: ["a.*", "b.*"]}
  - parallel: {sparsity: 0.75, only: ["c.*"]}
  - factorized: {sparsity: 0.5, only: ["d.*"], init: svd}
"""


@pytest.mark.parametrize(
    ("options", "title", "parts"),
    [
        (["--parallel", "0.75"], "Sparse Parallel at sparsity 0.75", ["4 x 16x16x3x3"]),
        (["--factorized", "0.5"], "Sparse Factorized at sparsity 0.5", ["U 29x16x3x3", "V 16x29x1x1"]),
        (["--doped", "0.5"], "Sparse Doped at sparsity 0.5", ["U 7x16x3x3", "V 16x7x1x1", "sparse 16x16x3x3"]),
    ],
)
def test_a_member_says_what_became_of_each_layer(call: Call, options: list[str], title: str, parts: list[str]) -> None:
    code, out, err = call("transform", "in.onnx", "out.onnx", *options)
    assert (code, err) == (0, "")
    assert title in out
    for part in parts:
        assert part in out
    assert "(ratio 1.000000)" in out
    assert "widths times" not in out
    assert "unchanged: first layer" in " ".join(out.replace("│", " ").split())
    assert "untrained" in out.splitlines()[-1]
    onnx.checker.check_model("out.onnx", full_check=True)
    assert call("check", "out.onnx")[0] == 0


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        (["--parallel", "0.5", "--init", "embed", "--activation", "none"], "computes what in.onnx computes"),
        (["--doped", "0.5", "--init", "svd", "--activation", "none"], "approximates in.onnx layer by layer"),
        (["--doped", "0.5", "--init", "svd"], "starts from the weights of in.onnx, but its new non-linearities"),
        (["--factorized", "0.5"], "holds an untrained model"),
    ],
)
def test_the_last_line_says_what_the_file_is_worth(call: Call, options: list[str], ending: str) -> None:
    last = call("transform", "in.onnx", "out.onnx", *options)[1].splitlines()[-1]
    assert f"out.onnx {ending}" in last
    command = last.partition("Next: sift-onnx ")[2].split()
    # What is said to be the same can be checked to be.
    assert call(*command)[0] == 0
    assert (command[-1] == "in.onnx") == ("computes what in.onnx computes" in last)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parallel", "0.5", "--budget", "layer"], "--budget is for --wide; --parallel replaces each layer"),
        (["--doped", "0.5", "--attention", "heads"], "--attention is for --wide"),
        (["--factorized", "0.5", "--round-to", "8"], "--round-to is for --wide"),
        (["--factorized", "0.5", "--resize-output", "y"], "--resize-output is for --wide"),
        (["--factorized", "0.5", "--distribution", "erk"], "--distribution is for --wide"),
        (["--parallel", "0.5", "--strict"], "--strict is for --wide"),
        (["--wide", "0.5", "--activation", "relu"], "--activation is for --parallel, --factorized and --doped"),
        (["--recipe", "r.yaml", "--seed", "3"], "--seed belongs into the recipe"),
        (["--recipe", "r.yaml", "--only", "a.*"], "--only belongs into the recipe"),
        (["--recipe", "r.yaml", "--activation", "none"], "--activation belongs into the recipe"),
        (["--recipe", "r.yaml", "--budget", "layer"], "--budget belongs into the recipe"),
        (["--recipe", "none.yaml"], "cannot read none.yaml"),
        (["--parallel", "0.5", "--wide", "0.5"], "name exactly one transform"),
        (["--parallel", "0.5", "--recipe", "r.yaml"], "name exactly one transform"),
        ([], "name exactly one transform"),
        (["--parallel", "1"], "out of range"),
        (["--wide", "1e-999999999"], "is not a number"),
        (["--wide", "50%"], "sparsity '50%' is not a number; write 0.5"),
        (["--wide", "0,9"], "sparsity '0,9' is not a number; write 0.9"),
        (["--wide", "0.5", "--init", "svd"], "init 'svd' is unknown"),
        (["--doped", "0.5", "--init", "embed"], "init 'embed' is not for doped; choose one of random, svd"),
        (["--parallel", "0.5", "--init", "embed"], "add --activation none"),
        (["--parallel", "0.5", "--pattern", "2:5x"], "pattern"),
        (["--parallel", "0.5", "--only", "zzz"], "--only 'zzz' matches no weight"),
    ],
)
def test_what_does_not_apply_is_refused_in_one_line(call: Call, options: list[str], message: str) -> None:
    Path("r.yaml").write_text(RECIPE)
    code, out, err = call("transform", "in.onnx", "out.onnx", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not Path("out.onnx").exists()


def test_a_dry_run_of_a_member_writes_nothing(call: Call) -> None:
    code, out, _ = call("transform", "in.onnx", "out.onnx", "--doped", "0.5", "--dry-run", "--json", "report.json")
    assert code == 0
    assert out.splitlines()[-1] == "Dry run: nothing was written to out.onnx."
    assert not Path("out.onnx").exists()
    assert json.loads(Path("report.json").read_text())["pass"] == "doped"


def test_json_of_a_member(call: Call) -> None:
    arguments = ("--factorized", "0.5", "--init", "svd", "--activation", "gelu", "--seed", "7", "--pattern", "2:4")
    document = json.loads(call("transform", "in.onnx", "out.onnx", *arguments, "--json", "-")[1])
    assert (document["schema"], document["pass"], document["sparsity"], document["width_factor"]) == (
        1,
        "factorized",
        0.5,
        1,
    )
    assert (document["init"], document["activation"], document["pattern"]) == ("svd", "gelu", "2:4")
    layer = document["layers"][1]
    assert {"name", "node", "op", "kind", "shape_before", "shape_after", "macs_before", "macs_after", "nnz", "sparsity",
            "status", "reason", "search_space", "parts", "weight_error"} <= layer.keys()  # fmt: skip
    assert [part["name"] for part in layer["parts"]] == ["a.U.weight", "a.V.weight"]
    assert 0 < layer["weight_error"] < 1
    wide = json.loads(call("transform", "in.onnx", "wide.onnx", "--wide", "0.75", "--json", "-")[1])
    assert [layer["search_space"] for layer in wide["layers"]] == [0, *[32 * 32 * 9] * 4, 0]


def test_a_recipe_is_saved_and_repeated(call: Call) -> None:
    Path("r.yaml").write_text(RECIPE)
    code, out, _ = call("transform", "in.onnx", "out.onnx", "--recipe", "r.yaml")
    assert code == 0
    assert [line.strip() for line in out.splitlines() if "at sparsity" in line] == [
        "Sparse Wide at sparsity 0.75", "Sparse Parallel at sparsity 0.75", "Sparse Factorized at sparsity 0.5"
    ]  # fmt: skip
    assert "All passes together:" in out
    code, out, err = call("inspect", "out.onnx", "--save-recipe", "saved.yaml", "--json", "-")
    assert (code, err) == (0, "")
    totals = json.loads(out)["totals"]
    assert call("transform", "in.onnx", "again.onnx", "--recipe", "saved.yaml")[0] == 0
    assert Path("again.onnx").read_bytes() == Path("out.onnx").read_bytes()
    _, out, _ = call("transform", "out.onnx", "same.onnx", "--recipe", "r.yaml", "--json", "report.json")
    assert out.splitlines()[-1] == "same.onnx is out.onnx as it was: the recipe changes no weight of it."
    assert Path("same.onnx").read_bytes() == Path("out.onnx").read_bytes()
    assert json.loads(Path("report.json").read_text())["totals"]["search_space"] == totals["search_space"]


def test_no_recipe_is_saved_of_nothing_nor_over_something(call: Call) -> None:
    code, out, err = call("inspect", "in.onnx", "--save-recipe", "r.yaml")
    assert (code, out) == (2, "")
    assert "in.onnx has been through no transform" in err
    assert not Path("r.yaml").exists()
    call("transform", "in.onnx", "out.onnx", "--doped", "0.5")
    Path("r.yaml").write_text("mine")
    code, _, err = call("inspect", "out.onnx", "--save-recipe", "r.yaml")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "use --force" in err
    assert Path("r.yaml").read_text() == "mine"
    assert call("inspect", "out.onnx", "--save-recipe", "r.yaml", "--force")[0] == 0
    assert Path("r.yaml").read_text().startswith("version: 1\n")
    assert "does not exist" in call("inspect", "out.onnx", "--save-recipe", "none/r.yaml")[2]


def test_a_bad_recipe_is_told_with_file_and_pass(call: Call) -> None:
    Path("bad.yaml").write_text(RECIPE + "  - doped: {sparsity: 0.5, actvation: none}\n")
    code, out, err = call("transform", "in.onnx", "out.onnx", "--recipe", "bad.yaml")
    assert (code, out) == (2, "")
    assert err.startswith(
        "Error: bad.yaml, pass 4, doped: doped has no setting 'actvation'; its settings are sparsity,"
    )
    assert len(err.splitlines()) == 1


def test_a_recipe_of_masks_alone_is_no_untrained_model(call: Call) -> None:
    Path("r.yaml").write_text("version: 1\npasses: [unshare-initializers, prune: {sparsity: 0.5, pattern: 2:4}]")
    code, out, _ = call("transform", "in.onnx", "out.onnx", "--recipe", "r.yaml")
    assert code == 0
    assert "Prune" in out
    assert out.splitlines()[-1].startswith("out.onnx has the weights of in.onnx, as far as its masks let them through.")


def test_inspect_shows_the_search_space(call: Call) -> None:
    call("transform", "in.onnx", "out.onnx", "--doped", "0.5", "--only", "b.*")
    out = call("inspect", "out.onnx")[1]
    assert "search space" in out
    rows = {line.split()[1]: line for line in out.splitlines() if line.startswith("│")}
    assert rows["b.S.weight"].split()[-2] == "2,304"
    assert rows["a.weight"].split()[-2] != "2,304"
    assert rows["b.U.weight"].split("│")[-2].strip() == ""
    document = json.loads(call("inspect", "out.onnx", "--json", "-")[1])
    spaces = {layer["name"]: layer["search_space"] for layer in document["layers"]}
    assert {name for name, space in spaces.items() if space} == {"b.S.weight"}
    assert document["totals"]["search_space"] == 2304


def test_names_that_look_like_markup_are_printed_as_they_are(call: Call) -> None:
    net = Net(opset=17)
    x = net.conv(net.input("x", 1, 3, 8, 8), 3, 16, name="stem")
    net.output(net.conv(net.conv(x, 16, 16, name="[red]a[/x]"), 16, 4, name="head"))
    onnx.save(net.model(), "odd.onnx")
    code, out, _ = call("transform", "odd.onnx", "out.onnx", "--parallel", "0.5", "--only", "*a*x*weight")
    assert code == 0
    assert "[red]a[/x].weight" in out
