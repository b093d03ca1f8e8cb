import json

import pytest
from dataflow_cases import convolution, grid, linear, sparse_integers

import sift_onnx
from sift_onnx.backends.dataflow.machines.preset_files import load_machine
from sift_onnx.backends.dataflow.simulation.heat import heat_maps
from sift_onnx.backends.dataflow.simulation.sweep import sparsity_sweep
from sift_onnx.backends.dataflow.simulation.trace import trace_document, write_trace
from sift_onnx.backends.dataflow.workloads.lowering import lower
from sift_onnx.errors import OutputError

MODEL = convolution(sparse_integers(12, 8, 3, 3), size=12, batch=1, pads=[1] * 4)


def test_busy_time_in_the_trace_is_the_reported_one():
    for fidelity in ("fast", "event"):
        simulation = sift_onnx.simulate(MODEL, grid(4, 3), fidelity=fidelity)
        events = trace_document(simulation, 10**6)["traceEvents"]
        for number, layer in enumerate(simulation.layers, 1):
            if layer.storage == "none":
                continue
            busy = {}
            for event in events:
                if event["pid"] == number and event.get("cat") == "busy":
                    busy[event["tid"]] = busy.get(event["tid"], 0) + event["dur"]
            assert max(busy.values()) == pytest.approx(layer.busy_cycles)


def test_a_trace_says_what_it_dropped(tmp_path):
    simulation = sift_onnx.simulate(MODEL, grid(4, 3), fidelity="event")
    everything = trace_document(simulation, 10**6)["otherData"]
    written = write_trace(tmp_path / "t.json", simulation, 50)
    document = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert written.events == 50 == document["otherData"]["events"]
    assert written.dropped == everything["events"] - 50 == document["otherData"]["dropped"]
    kinds = {event["ph"] for event in trace_document(simulation, 10**6)["traceEvents"]}
    assert kinds == {"M", "X", "C"}
    with pytest.raises(OutputError, match="cannot write the trace"):
        write_trace(tmp_path / "gone" / "t.json", simulation)


def test_heat_maps_add_up_to_the_busy_cycles():
    simulation = sift_onnx.simulate(MODEL, "wse2", 64)
    busy, wavelets = heat_maps(simulation)
    mean = sum(layer.mean_busy_cycles for layer in simulation.layers) / simulation.cycles
    assert busy.values.mean() == pytest.approx(mean, rel=0.01)
    assert busy.values.min() >= 0
    assert busy.values.max() <= 1
    assert wavelets.values.max() > 0
    assert len(heat_maps(sift_onnx.simulate(MODEL, grid(4, 4), fidelity="event"))) == 3
    assert heat_maps(sift_onnx.simulate(MODEL, "ideal")) == ()


def test_a_sweep_is_near_a_real_mask_of_that_sparsity():
    weight = sparse_integers(512, 512, density=0.1)
    workload = lower(linear(weight), batch=4096)
    machine = load_machine("wse2")
    points = sparsity_sweep(workload, machine, sparsities=(0.5, 0.9))
    real = sift_onnx.simulate(workload, machine).vs_dense_wide
    assert points[1].value == pytest.approx(real.value, rel=0.05)
    assert points[0].value < points[1].value
    assert all(p.low <= p.value <= p.high for p in points)
    assert sparsity_sweep(workload, load_machine("ideal")) == ()
