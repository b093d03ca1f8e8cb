import json
import math
from dataclasses import replace

import numpy as np
import pytest
from dataflow_cases import convolution, grid, linear, sparse_integers
from onnx import TensorProto, helper

import sift_onnx
from sift_onnx.backends.dataflow.machines.preset_files import available_presets, load_machine
from sift_onnx.backends.dataflow.simulation.simulator import Settings, run
from sift_onnx.backends.dataflow.workloads.decoder import decoder_workload, load_decoder
from sift_onnx.backends.dataflow.workloads.training_step import MaskUpdates
from sift_onnx.backends.onnxruntime import OnnxRuntimeBackend
from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.shapes.random_inputs import random_feeds
from sift_onnx.shapes.tensor_specs import graph_inputs

MODEL = convolution(sparse_integers(12, 8, 3, 3), size=12, batch=1, pads=[1] * 4)


def finite(value):
    if isinstance(value, dict):
        return all(finite(v) for v in value.values())
    if isinstance(value, list):
        return all(finite(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("preset", available_presets())
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch", [1, 64])
def test_every_preset_gives_a_sound_report(preset, training, batch):
    simulation = sift_onnx.simulate(MODEL, preset, batch, training)
    document = simulation.to_dict()
    json.dumps(document, allow_nan=False)
    assert finite(document)
    assert 0 < document["totals"]["utilization"] <= 1
    for layer in document["layers"]:
        assert 0 < layer["utilization"] <= 1
        assert layer["stall_cycles"] >= 0
        assert layer["bound"] in ("compute", "reduce", "stream", "sram")
        assert sum(layer["limits"].values()) == pytest.approx(layer["cycles"])
    assert document["totals"]["cycles"] == sum(layer["cycles"] for layer in document["layers"])
    assert simulation.vs_dense_wide is not None


def test_the_dense_model_is_no_faster_than_itself():
    dense = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    assert sift_onnx.simulate(linear(dense), "wse2", 8).vs_dense_wide.value == 1


def test_the_band_holds_the_value_and_a_known_machine_has_none():
    sparse = linear(sparse_integers(64, 64))
    known = sift_onnx.simulate(sparse, "stonne-1ms", 8).vs_dense_wide
    assert known.low == known.value == known.high
    unknown = sift_onnx.simulate(sparse, "wse2", 2000).vs_dense_wide
    assert unknown.low < unknown.value <= unknown.high


def test_a_baseline_is_simulated_at_the_same_batch():
    wide, narrow = linear(sparse_integers(64, 64)), linear(np.ones((8, 8), np.float32))
    simulation = sift_onnx.simulate(wide, "stonne-1ms", 4, baseline=narrow)
    assert simulation.vs_dense_original.value == (8 * 8 * 5 + 5 * 8) / simulation.cycles


def test_weights_that_stay_do_not_cross_the_edge():
    streamed, resident = (sift_onnx.simulate(MODEL, weights=w) for w in ("streamed", "resident"))
    assert resident.cycles <= streamed.cycles
    assert sum(layer.edge_bytes for layer in resident.layers) == 0 < sum(layer.edge_bytes for layer in streamed.layers)


def test_weights_that_do_not_fit_cannot_stay():
    machine = grid(2, 2, sram_bytes=9000.0)
    with pytest.raises(UnsupportedError, match=r"take .* bytes in each of 4 cores.*`weights='streamed'`"):
        sift_onnx.simulate(linear(sparse_integers(128, 128)), machine, weights="resident")


def test_training_adds_both_gradients_and_mask_updates():
    simulation = sift_onnx.simulate(MODEL, training=True)
    steps = [(layer.name, layer.step) for layer in simulation.layers if layer.storage != "none"]
    assert steps == [
        ("stem", "forward"),
        ("w", "forward"),
        ("w", "input_gradient"),
        ("w", "weight_gradient"),
        ("w", "mask_update"),
        ("stem", "weight_gradient"),
    ]
    macs = {step: layer.macs for layer, (name, step) in zip(simulation.layers, steps, strict=False) if name == "w"}
    assert macs["forward"] == 144 * np.count_nonzero(sparse_integers(12, 8, 3, 3))
    by_step = {layer.step: layer.macs for layer in simulation.layers if layer.name == "w"}
    assert by_step["input_gradient"] == by_step["weight_gradient"] == by_step["forward"]
    assert any("at no cost" in note for note in simulation.notes)


def test_growing_by_gradient_costs_more_than_at_random():
    def edge(**updates):
        simulation = sift_onnx.simulate(MODEL, training=True, mask_updates=MaskUpdates(**updates))
        return sum(layer.edge_bytes for layer in simulation.layers if layer.step == "mask_update")

    assert edge(grow="gradient") > edge(grow="random") > 0
    assert edge(every=50) == pytest.approx(2 * edge(every=100))
    assert edge(drop_fraction=0.0) == 0


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ({"every": 0}, "at least 1"),
        ({"every": float("nan")}, "at least 1"),
        ({"drop_fraction": float("nan")}, "between 0 and 1"),
        ({"drop_fraction": 2.0}, "between 0 and 1"),
        ({"grow": "magic"}, "choose random"),
    ],
)
def test_bad_mask_updates_are_refused(updates, message):
    with pytest.raises(UsageError, match=message):
        MaskUpdates(**updates)


def test_events_are_followed_on_a_small_grid():
    fast, event = (sift_onnx.simulate(MODEL, grid(4, 4), fidelity=f) for f in ("fast", "event"))
    assert event.cycles == pytest.approx(fast.cycles, rel=0.3)
    assert [layer.macs for layer in event.layers] == [layer.macs for layer in fast.layers]


def test_events_need_a_small_grid():
    with pytest.raises(UnsupportedError, match="up to 16x16"):
        sift_onnx.simulate(MODEL, fidelity="event")
    with pytest.raises(UnsupportedError, match="no grid"):
        sift_onnx.simulate(MODEL, "systolic-16", fidelity="event")


def test_unknown_settings_are_refused():
    with pytest.raises(UsageError, match="no fidelity 'exact'"):
        sift_onnx.simulate(MODEL, fidelity="exact")
    with pytest.raises(UsageError, match="cannot be 'borrowed'"):
        sift_onnx.simulate(MODEL, weights="borrowed")
    with pytest.raises(UsageError, match="no arithmetic 'int8'"):
        sift_onnx.simulate(MODEL, fidelity="functional", arithmetic="int8")
    with pytest.raises(UsageError, match="choose functional for float16"):
        sift_onnx.simulate(MODEL, arithmetic="float16")
    with pytest.raises(UsageError, match="runs the forward pass"):
        sift_onnx.simulate(MODEL, fidelity="functional", training=True)


def test_functional_fidelity_returns_outputs_equal_to_onnxruntime_s():
    simulation = sift_onnx.simulate(MODEL, grid(4, 4), fidelity="functional", seed=3)
    fast = sift_onnx.simulate(MODEL, grid(4, 4))
    assert simulation.layers == fast.layers
    assert fast.executed is None
    executed = simulation.executed
    assert executed.seed == 3
    feeds = random_feeds(graph_inputs(MODEL), seed=3)
    expected = OnnxRuntimeBackend().compile(MODEL).run(feeds)
    assert executed.arrays.keys() == expected.keys()
    for output in executed.outputs:
        error = np.abs(executed.arrays[output.name] - expected[output.name]).max()
        assert output.max_abs_error == error
        assert error <= 1e-5 * output.max_abs


def test_functional_fidelity_needs_weights():
    with pytest.raises(UsageError, match="only the sizes are known"):
        sift_onnx.simulate(decoder_workload(load_decoder("gpt3-1.3b")), fidelity="functional")


def test_layers_that_differ_in_name_only_are_simulated_once_and_named_apart():
    workload = decoder_workload(replace(load_decoder("gpt3-1.3b"), hidden=128, feed_forward=256, vocabulary=100), 0.5)
    layers = run(workload, load_machine("wse2"), Settings())
    names = [layer.name for layer in layers]
    assert len(names) == len(set(names))
    assert names[0] == "layers.0.q"


def test_a_baseline_without_work_has_no_speed_up():
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    empty = helper.make_model(helper.make_graph([], "empty", [info], [info]))
    simulation = sift_onnx.simulate(MODEL, baseline=empty)
    assert simulation.vs_dense_original is None
    assert "speed of the original model" not in str(simulation)
