"""Single layers on sparse kernels: outputs and all gradients, as exact as torch's."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from nets import Net
from torch.func import functional_call
from training.sparse_layers.masked_models import assert_as_exact_as_torch, run, sparsified, with_masks

from sift_onnx.training import ImportedModule, to_torch
from sift_onnx.training.sparse_layers.layer import SparseLayer

BATCHES = (16, 5, 33, 1)


def conv(
    shape: tuple[int, ...] = (6, 9, 8), *, kernel: int = 3, bias: bool = False, **attributes: Any
) -> ImportedModule:
    net = Net()
    channels, spatial = shape[0], len(shape) - 1
    x = net.input("x", 2, *shape, declared=["n", *shape])
    weight = net.weight(10, channels // attributes.get("group", 1), *(kernel,) * spatial, name="w")
    operands = [x, weight, net.constant([0.1 * i for i in range(10)], "b")] if bias else [x, weight]
    net.output(net.op("Conv", *operands, name="y", **attributes))
    return with_masks(to_torch(net.model()))


def matrix(*, kind: str = "MatMul", bias: bool = False, **attributes: Any) -> ImportedModule:
    net = Net()
    x = net.input("x", 2, 12, declared=["n", 12]) if kind == "Gemm" else net.input("x", 2, 3, 12, declared=["n", 3, 12])
    weight = net.weight(*((7, 12) if attributes.get("transB") else (12, 7)), name="w")
    operands = [x, weight, net.constant([0.1 * i for i in range(7)], "b")] if bias else [x, weight]
    net.output(net.op(kind, *operands, name="y", **attributes))
    return with_masks(to_torch(net.model()))


def batches(module: ImportedModule, *sizes: int) -> list[torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"conv": (6, 9, 8)}
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(size, *shapes["conv"], generator=draw) for size in sizes]


@pytest.mark.parametrize(
    "settings",
    [
        {"pads": [1, 1, 1, 1]},
        {"pads": [1, 1, 1, 1], "bias": True},
        {"strides": [2, 2], "pads": [0, 1, 2, 1]},
        {"dilations": [2, 1], "pads": [2, 1, 2, 1], "bias": True},
        {"kernel": 1, "strides": [2, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"group": 2, "strides": [2, 1], "pads": [1, 1, 1, 1], "bias": True},
    ],
    ids=str,
)
def test_a_convolution_trains_as_exactly_as_torch(settings: dict[str, Any]) -> None:
    assert_as_exact_as_torch(conv(**settings), batches(conv(), *BATCHES))


def test_a_convolution_of_one_axis_trains_as_exactly_as_torch() -> None:
    module = conv((6, 11), strides=[2], pads=[1, 0])
    assert_as_exact_as_torch(module, [torch.randn(n, 6, 11) for n in BATCHES])


def test_images_of_other_sizes_follow_each_other() -> None:
    net = Net()
    x = net.input("x", 2, 6, 9, 9, declared=["n", 6, "h", "w"])
    net.output(net.op("Conv", x, net.weight(10, 6, 3, 3, name="w"), auto_pad="SAME_LOWER", strides=[2, 2], name="y"))
    module = with_masks(to_torch(net.model()))
    assert_as_exact_as_torch(module, [torch.randn(3, 6, *size) for size in ((8, 8), (9, 7), (8, 8), (5, 6))])


@pytest.mark.parametrize("settings", [{}, {"bias": True}, {"transB": 1}, {"transB": 1, "bias": True}], ids=str)
def test_a_gemm_trains_as_exactly_as_torch(settings: dict[str, Any]) -> None:
    assert_as_exact_as_torch(matrix(kind="Gemm", **settings), [torch.randn(n, 12) for n in BATCHES])


def test_a_product_of_tokens_trains_as_exactly_as_torch() -> None:
    assert_as_exact_as_torch(matrix(), [torch.randn(n, 3, 12) for n in BATCHES])


def test_an_empty_batch_gives_an_empty_output() -> None:
    twin, _ = sparsified(matrix())
    assert twin(torch.randn(0, 3, 12)).shape == (0, 3, 7)


def test_an_active_weight_that_is_zero_stays_in_the_layer() -> None:
    module = matrix()
    with torch.no_grad():
        module.get_parameter("w").zero_()
    assert_as_exact_as_torch(module, [torch.randn(n, 3, 12) for n in BATCHES])
    twin, _ = sparsified(module)
    assert torch.equal(run(twin, [torch.randn(4, 3, 12)]).state["w"] != 0, module.masks["w"])


def test_the_input_of_the_first_layer_gets_no_gradient_that_nothing_asks_for() -> None:
    twin, _ = sparsified(conv())
    x = torch.randn(2, 6, 9, 8)
    twin(x).sum().backward()
    assert x.grad is None
    assert twin.get_parameter("w").grad.abs().sum() > 0


def test_a_frozen_weight_gets_no_gradient_and_hands_on_that_of_its_input() -> None:
    module = conv(pads=[1, 1, 1, 1])
    twin, _ = sparsified(module)
    twin.get_parameter("w").requires_grad_(False)
    x, other = (torch.ones(2, 6, 9, 8, requires_grad=True) for _ in range(2))
    twin(x).sum().backward()
    module(other).sum().backward()
    assert twin.get_parameter("w").grad is None
    torch.testing.assert_close(x.grad, other.grad)


def test_values_that_an_optimizer_writes_behind_autograd_are_seen() -> None:
    twin, _ = sparsified(matrix())
    x = torch.randn(2, 3, 12)
    before = twin(x)
    before.sum().backward()
    for factor in (2, 4):  # the second time without a backward pass between, as evaluations with averaged weights
        twin.get_parameter("w").data.mul_(2)
        torch.testing.assert_close(twin(x), factor * before)


def test_other_values_given_for_a_call_are_those_of_this_call() -> None:
    twin, _ = sparsified(matrix())
    x, values = torch.randn(2, 3, 12), twin.get_parameter("w").detach()
    with torch.no_grad():
        wanted = twin(x)
        for factor in (2, 3, 5):  # each may get the memory of the one before
            torch.testing.assert_close(functional_call(twin, {"w": factor * values}, (x,)), factor * wanted)


def test_values_that_change_between_forward_and_backward_are_refused() -> None:
    twin, _ = sparsified(matrix())
    y = twin(torch.randn(2, 3, 12))
    with torch.no_grad():
        twin.get_parameter("w").mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_second_derivative_is_refused() -> None:
    twin, _ = sparsified(matrix())
    x = torch.randn(2, 3, 12, requires_grad=True)
    (gradient,) = torch.autograd.grad(twin(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_autocast_computes_in_single_precision() -> None:
    twin, _ = sparsified(matrix())
    x = torch.randn(2, 3, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = twin(x.bfloat16())
        assert y.dtype == torch.float32
        y.sum().backward()
    torch.testing.assert_close(y, twin(x.bfloat16().float()))


def test_a_module_in_double_precision_computes_by_torch_and_warns_once() -> None:
    module = conv(pads=[1, 1, 1, 1])
    twin, _ = sparsified(module)
    x = torch.randn(2, 6, 9, 8)
    wanted = twin(x)
    twin.double()
    with pytest.warns(UserWarning, match="moved to float64; its sparse layers compute by torch's kernels"):
        found = twin(x.double())
    assert torch.equal(found, module.double()(x.double()))
    with warnings.catch_warnings(action="error"):
        twin(x.double())
    assert torch.equal(twin.float()(x), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_module_in_half_precision_computes_by_torch_and_warns(dtype: torch.dtype) -> None:
    module = conv(pads=[1, 1, 1, 1])
    twin, _ = sparsified(module)
    x = torch.randn(2, 6, 9, 8).to(dtype)
    with pytest.warns(UserWarning, match=f"moved to {str(dtype).removeprefix('torch.')}; its sparse layers compute by"):
        found = twin.to(dtype)(x)
    assert torch.equal(found, module.to(dtype)(x))
    found.sum().backward()
    assert twin.get_parameter("w").grad.dtype == dtype


def test_a_compiled_imported_module_computes_its_layers_outside_of_the_graphs() -> None:
    twin, _ = sparsified(conv(pads=[1, 1, 1, 1]))
    x = torch.randn(2, 6, 9, 8)
    found = torch.compile(twin, backend="aot_eager")(x)
    assert torch.equal(found, twin(x))
    found.sum().backward()
    assert twin.get_parameter("w").grad.dim() == 1


def test_a_module_on_another_device_computes_there_and_warns() -> None:
    twin, _ = sparsified(conv(pads=[1, 1, 1, 1]))
    with pytest.warns(UserWarning, match="moved to meta"):
        assert twin.to("meta")(torch.empty(2, 6, 9, 8, device="meta")).shape == (2, 10, 9, 8)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    module, found = conv(pads=[1, 1, 1, 1]), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(run(sparsified(module)[0], batches(module, 20, 3)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0].state[name], found[1].state[name]) for name in found[0].state)


def test_copies_and_pickles_run_and_train_apart() -> None:
    twin, _ = sparsified(conv(pads=[1, 1, 1, 1]))
    x = torch.randn(2, 6, 9, 8)
    wanted = twin(x)
    for other in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        assert torch.equal(other(x), wanted)
        with torch.no_grad():
            other.get_parameter("w").zero_()
        assert not other(x).any()
    assert torch.equal(twin(x), wanted)


def test_a_pickle_has_no_kernels() -> None:
    twin, _ = sparsified(conv())
    twin(torch.randn(2, 6, 9, 8))
    (layer,) = (value for value in vars(twin.layers).values() if isinstance(value, SparseLayer))
    assert layer._kernels
    assert not pickle.loads(pickle.dumps(layer))._kernels
