from pathlib import Path

import pytest

from sift_onnx.backends import dataflow
from sift_onnx.backends.dataflow.machines.machine import GridMachine, with_grid
from sift_onnx.backends.dataflow.machines.preset_files import available_presets, load_machine
from sift_onnx.errors import UsageError

PRESETS = Path(dataflow.__file__).parent / "presets"


def edited(tmp_path, old, new, preset="wse2"):
    text = (PRESETS / f"{preset}.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def test_the_presets_are_there():
    assert available_presets() == ("ideal", "stonne-1ms", "systolic-16", "wse2", "wse2-sdk", "wse3")


@pytest.mark.parametrize("name", available_presets())
def test_each_value_of_a_preset_has_a_source_and_a_confidence(name):
    machine = load_machine(name)
    assert machine.parameters
    for parameter in machine.parameters.values():
        assert len(parameter.source) > 3
        assert parameter.confidence in ("H", "M", "L", "assumed")
        assert parameter.low <= parameter.value <= parameter.high


def test_a_file_of_ones_own_is_a_machine(tmp_path):
    path = edited(tmp_path, "value = 750", "value = 12")
    assert load_machine(path).columns == 12


def test_wse2_is_the_published_grid():
    machine = load_machine("wse2")
    assert isinstance(machine, GridMachine)
    assert machine.cores == 745_500
    assert machine.window_rows == 5
    assert "Fitted" in machine.parameters["window_rows"].source


def test_a_missing_value_is_named(tmp_path):
    path = edited(tmp_path, "[parameters.simd_lanes]\nvalue", "[parameters.simd_lanes]\nnumber")
    with pytest.raises(UsageError, match=r"mine\.toml: simd_lanes needs 'value'; write 'value: "):
        load_machine(path)
    path = edited(tmp_path, "[parameters.simd_lanes]", "[parameters.simd_lane]")
    with pytest.raises(UsageError, match="no parameter 'simd_lane'"):
        load_machine(path)


def test_a_parameter_that_is_not_there_is_named(tmp_path):
    text = (PRESETS / "ideal.toml").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text[: text.index("[parameters.mac_pj]")], encoding="utf-8")
    with pytest.raises(UsageError, match="'mac_pj' is missing"):
        load_machine(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value = 750", "value = -750", "columns is -750; write a whole number, above 0"),
        ("value = 750", "value = 0", "columns is 0; write a whole number, above 0"),
        ("value = 750", "value = 7.5", "columns is 7.5; write a whole number, above 0"),
        ("value = 750", 'value = "many"', "columns: value is 'many'; write a number"),
        ("value = 750", "value = nan", "columns: value is nan; write a number"),
        ("value = 750", "value = inf", "columns is inf; write a whole number, above 0"),
        ("value = 750", "value = true", "columns: value is True; write a number"),
        ("low = 4\n", "low = 6\n", "window_rows: 5 lies outside of its range, 6 to 64"),
        ("low = 4\n", "low = 4.5\n", "window_rows is 4.5; write a whole number, or inf"),
        ("low = 4\n", "low = nan\n", "window_rows, low is nan; write a number, above 0"),
        ("value = 1.1e9", "value = inf", r"clock_hz: inf lies outside of its range, 8\.5e\+08 to 1\.1e\+09"),
        ("value = 1.0\n", "value = inf\n", "cycles_per_vector is inf; write a finite number above 0"),
        ("value = 0.3", "value = -0.1", "idle_fraction: -0.1 lies outside of its range, 0.1 to 0.6"),
        ("value = 27\n", "value = -27\n", "core_cycle_pj is -27; write a finite number, 0 or more"),
        ('confidence = "H"', 'confidence = "sure"', "confidence is 'sure'"),
        ('kind = "grid"', 'kind = "quantum"', "kind is 'quantum'"),
        ('kind = "grid"', "kind = [1]", r"kind is \[1\]"),
        ('kind = "grid"\n', "", "kind is None"),
        ('kind = "grid"', "kind = ", "is not TOML"),
        ('confidence = "M"\n', "", "clock_hz needs 'confidence'"),
        ("value = 8192", "value = 99999", "leaves nothing of sram_bytes"),
    ],
)
def test_a_bad_value_is_named(tmp_path, old, new, message):
    with pytest.raises(UsageError, match=message):
        load_machine(edited(tmp_path, old, new))


def test_a_value_without_a_source_is_refused(tmp_path):
    path = edited(tmp_path, 'source = "SDK white paper: 8 fp16 operations per cycle and core"\n', "")
    with pytest.raises(UsageError, match="simd_lanes: source is missing"):
        load_machine(path)


def test_an_unknown_preset_lists_the_others():
    with pytest.raises(UsageError, match="choose ideal, stonne-1ms"):
        load_machine("wse9")


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        load_machine(tmp_path / "gone.toml")


def test_a_grid_needs_cores():
    with pytest.raises(UsageError, match="0x4"):
        with_grid(load_machine("wse2"), 0, 4)
