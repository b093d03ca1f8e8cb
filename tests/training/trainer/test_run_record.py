"""What a training leaves besides its weights."""

import itertools
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.shapes.tensor_specs import TensorSpec
from sift_onnx.training.trainer.run_record import RunHistory, example_cost


def linear(path: Path, *sizes: int | str) -> Path:
    weight = np.zeros((4, 3), np.float32)
    weight[0] = 1
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*sizes, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*sizes, 3])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_short_history_is_kept_whole() -> None:
    history = RunHistory()
    for event in ({"event": "start"}, {"event": "step", "step": 1, "loss": 2.0}, {"event": "validation", "step": 1}):
        history.note(event)
    assert history.record().to_dict() == {"steps": [{"step": 1, "loss": 2.0}], "validations": [{"step": 1}]}


def test_a_long_history_is_thinned_evenly() -> None:
    history = RunHistory()
    for step in range(5000):
        history.note({"event": "step", "step": step})
    steps = [entry.step for entry in history.record().steps]
    assert 500 <= len(steps) <= 1000
    assert len({b - a for a, b in itertools.pairwise(steps)}) == 1
    assert steps[0] == 0


def test_cost_is_that_of_one_example(tmp_path: Path) -> None:
    specs = {
        "dynamic": (("N",), (16,)),
        "fixed": ((16,), (16,)),
        "tokens": (("N", "T"), (16, 7)),
        "no examples": ((0,), (16,)),
    }
    for name, (declared, seen) in specs.items():
        model = linear(tmp_path / f"{name}.onnx", *declared)
        cost = example_cost(model, [TensorSpec("x", np.dtype(np.float32), (*declared, 4))], [(*seen, 4)])
        tokens = 7 if name == "tokens" else 1
        assert cost is not None
        assert (cost.macs, cost.params) == (12 * tokens, 12), name
