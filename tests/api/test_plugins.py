"""Plug-ins: what is found, when it is imported, and what is said of those that cannot be used."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner
from nets import Net
from plugin_packages import installed, make_package

from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.analysis.rule_registry import rule_for
from sift_onnx.backends.base import available_backends, get_backend
from sift_onnx.cli.app import main
from sift_onnx.errors import BackendError, PluginError, UsageError
from sift_onnx.model import Model
from sift_onnx.passes import Wide, get_pass, register_pass

PASS = """
from sift_onnx.passes import Pass, PassResult

class Nothing(Pass):
    name = "nothing"

    def call(self, model):
        return PassResult(model, False)

class Wide(Nothing):
    name = "wide"
"""
TWIST = '"Twist", domain="com.example"'
RULE = """
from sift_onnx.analysis.rule_registry import axis_rule

@axis_rule("Twist", domain="com.example")
def twist(ctx):
    ctx.set_axes(0, ctx.axes(0))
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder for packages; a broken one is there already, so that every test has one beside its own."""
    folder = tmp_path / "packages"
    groups = ("sift_onnx.passes", "sift_onnx.backends", "sift_onnx.axis_rules", "sift_onnx.sparsity")
    make_package(
        folder, "sift_broken", {g: {"broken": "sift_broken:Broken"} for g in groups}, "raise OSError('no\\nluck')"
    )
    return folder


def twisted() -> Model:
    """Two layers with an operator between them that no rule of this package covers."""
    net = Net()
    x = net.conv(net.input("x", 1, 3, 8, 8), 3, 8, 3, name="a")
    x = net.op("Twist", net.conv(x, 8, 8, 3, name="b"), domain="com.example", name="twist")
    net.output(net.conv(x, 8, 4, name="c"), 1, 4, 8, 8)
    return Model.load(net.model())


def test_nothing_is_imported_before_it_is_asked_for(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(packages, "sift_more", {"sift_onnx.passes": {"nothing": "sift_more:Nothing"}}, PASS)
    with installed(packages, monkeypatch):
        result = CliRunner().invoke(main, ["--help"])
        assert "pass nothing" in result.stdout
        assert "sift_more 1.0" in result.stdout
        assert "back end broken" in result.stdout
        assert get_pass("wide") is Wide
        assert not {"sift_more", "sift_broken"} & set(sys.modules)
        assert get_pass("nothing").name == "nothing"
        assert "sift_broken" not in sys.modules


def test_a_broken_plugin_is_named_with_its_error_where_it_is_asked_for(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = r"'broken' of sift_broken 1.0 \(sift_broken:Broken\) does not load: OSError: no luck; repair or uninstall"
    with installed(packages, monkeypatch):
        for ask in (get_pass, get_backend):
            with pytest.raises(PluginError, match=message) as caught:
                ask("broken")
            assert caught.value.exit_code == 4


def test_a_broken_plugin_does_not_stop_another(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(packages, "sift_twist", {"sift_onnx.axis_rules": {"twist": "sift_twist"}}, RULE)
    assert analyze(twisted()).unknown
    with installed(packages, monkeypatch):
        with pytest.warns(UserWarning, match="axis rules 'broken' of sift_broken 1.0"):
            analysis = analyze(twisted())
        assert not analysis.unknown
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not analyze(twisted()).unknown
    assert analyze(twisted()).unknown


def test_plugins_of_rules_are_left_alone_while_every_operator_has_one(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(packages, monkeypatch), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rule_for("Conv", "") is not None


@pytest.mark.parametrize(
    ("source", "value", "complaint"),
    [
        (
            RULE.replace(TWIST, '"Conv", "Twist"'),
            "sift_rules",
            "has a rule for ai.onnx::Conv",
        ),
        (
            RULE + "from sift_onnx.feature_maps.registry import feature_map_rule\nfeature_map_rule('Relu')(print)",
            "sift_rules",
            "has a rule for ai.onnx::Relu",
        ),
        (RULE + "def register(): raise KeyError('x')", "sift_rules:register", r"does not load: KeyError: 'x'"),
        (RULE + "rules = 3", "sift_rules:rules", "neither a module nor a function"),
        (RULE + "1 / 0", "sift_rules", "ZeroDivisionError"),
    ],
)
def test_of_a_plugin_that_fails_no_rule_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, value: str, complaint: str
) -> None:
    make_package(tmp_path, "sift_rules", {"sift_onnx.axis_rules": {"mine": value}}, source)
    conv = rule_for("Conv", "")
    with installed(tmp_path, monkeypatch):
        with pytest.warns(UserWarning, match=complaint):
            assert rule_for("Twist", "com.example") is None
        assert rule_for("Twist", "") is None
        assert rule_for("Conv", "") is conv


def test_a_function_may_register_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def register():\n" + RULE.replace("\n", "\n    ")
    make_package(tmp_path, "sift_rules", {"sift_onnx.axis_rules": {"mine": "sift_rules:register"}}, source)
    with installed(tmp_path, monkeypatch):
        assert not analyze(twisted()).unknown


def test_the_command_line_says_in_one_line_that_rules_do_not_load(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twisted().save(tmp_path / "twisted.onnx")
    with installed(packages, monkeypatch):
        result = CliRunner().invoke(main, ["inspect", str(tmp_path / "twisted.onnx")])
    assert result.exit_code == 0
    rules, left_out = result.stderr.splitlines()
    assert rules == (
        "Warning: axis rules 'broken' of sift_broken 1.0 (sift_broken:Broken) does not load: OSError: no luck; "
        "repair or uninstall sift_broken"
    )
    assert "inference stops at node 'twist' (com.example::Twist)" in left_out


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ({"nothing": "sift_more:missing"}, "AttributeError"),
        ({"nothing": "sift_nowhere:Nothing"}, "ModuleNotFoundError: No module named 'sift_nowhere'"),
        ({"nothing": "sift_more:Pass"}, "does not define call"),
        ({"nothing": "sift_more:PassResult"}, r"is not a subclass of sift_onnx.passes.base.Pass"),
        ({"other": "sift_more:Nothing"}, "is named 'nothing' by its class"),
        ({"wide": "sift_more:Wide"}, "is never used: sift_onnx has its own 'wide'"),
        ({"nothing": "not a value!"}, "does not load|Invalid object reference"),
    ],
)
def test_doctor_names_what_cannot_be_used_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: dict[str, str], complaint: str
) -> None:
    make_package(tmp_path, "sift_more", {"sift_onnx.passes": entries}, PASS)
    make_package(tmp_path, "sift_fine", {"sift_onnx.axis_rules": {"twist": "sift_fine"}}, RULE)
    with installed(tmp_path, monkeypatch):
        result = CliRunner().invoke(main, ["doctor", "--json", "-"])
        table = CliRunner().invoke(main, ["doctor"]).stdout
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["ok"] is True
    entry = next(e for e in document["plugins"] if e["package"] == "sift_more")
    assert (entry["ok"], entry["version"]) == (False, "1.0")
    with pytest.raises(PluginError, match=complaint):
        raise PluginError(entry["error"])
    fine = next(e for e in document["plugins"] if e["package"] == "sift_fine")
    assert (fine["ok"], fine["error"], fine["group"], fine["name"]) == (True, None, "sift_onnx.axis_rules", "twist")
    assert "broken: " in table
    assert "axis rules twist" in table


def test_of_two_packages_that_offer_one_name_neither_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sift_one", "sift_two"):
        make_package(tmp_path, name, {"sift_onnx.passes": {"nothing": f"{name}:Nothing"}}, PASS)
    with installed(tmp_path, monkeypatch):
        with pytest.raises(PluginError, match=r"of sift_one 1.0 is offered by sift_two 1.0 too; uninstall all but one"):
            get_pass("nothing")
        with pytest.raises(UsageError, match=r"the passes are .*nothing"):
            get_pass("something")


def test_entry_points_that_cannot_be_read_hide_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(tmp_path, "sift_more", {"sift_onnx.passes": {"nothing": "sift_more:Nothing"}}, PASS)
    make_package(tmp_path, "sift_damaged", {"sift_onnx.passes": {"a": "b"}})
    (tmp_path / "sift_damaged-1.0.dist-info" / "entry_points.txt").write_text("[sift_onnx.passes]\nno equals sign\n")
    make_package(tmp_path, "sift_binary", {})
    (tmp_path / "sift_binary-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe\x00")
    with installed(tmp_path, monkeypatch):
        assert get_pass("nothing").name == "nothing"
        assert "pass nothing" in CliRunner().invoke(main, ["--help"]).stdout
        result = CliRunner().invoke(main, ["doctor", "--json", "-"])
    assert result.exit_code == 0
    entries = json.loads(result.stdout)["plugins"]
    assert [entry["ok"] for entry in entries] == [True, False]
    assert "sift_damaged-1.0.dist-info" in entries[1]["package"]


def test_back_ends_of_plugins_are_offered_after_our_own(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(packages, "sift_cpu", {"sift_onnx.backends": {"cpu": "sift_cpu:Cpu"}}, "raise RuntimeError")
    with installed(packages, monkeypatch):
        assert available_backends() == ("onnxruntime", "cpu", "dataflow", "broken")
        assert get_backend("cpu").name == "cpu"
        with pytest.raises(BackendError, match="there are onnxruntime, cpu, dataflow, broken, and FILE"):
            get_backend("gpu")


def test_nobody_takes_the_name_of_a_pass_of_ours() -> None:
    mine = type("Mine", (Wide,), {"__module__": "sift_more"})
    with pytest.raises(UsageError, match="has a pass 'wide' of its own"):
        register_pass(mine)
    assert get_pass("wide") is Wide
