"""Arrays that stay bound from run to run, as onnxruntime binds them."""

from __future__ import annotations

import weakref

import numpy as np
import onnxruntime as ort
import pytest
from decoder_nets import DEPTH, KV_HEADS, LAYERS, POSITIONS, SPELLINGS
from half_nets import halved
from sparse_nets import SparseNet

from sift_onnx.backends.cpu.run.session import InferenceSession
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")


@pytest.fixture(scope="module")
def model():
    net = SparseNet()
    x = net.input("x", 2, 24)
    net.output("y", "n", 8)
    net.output("z", "n", 16)
    hidden = net.op("Relu", net.op("MatMul", x, net.weight(24, 16)), name="z")
    net.op("MatMul", hidden, net.weight(16, 8), name="y")
    return net.model()


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal((2, 24)).astype(np.float32)


def session_of(model) -> InferenceSession:
    options = ort.SessionOptions()
    options.use_deterministic_compute = True
    return InferenceSession(model, options, threads=1)


def bindings_of(model):
    other = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session_of(model), other


def test_outputs_that_are_bound_come_in_the_order_of_their_names(model, x):
    results = []
    for session in bindings_of(model):
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("z")
        binding.bind_output("y", "cpu")
        session.run_with_iobinding(binding)
        assert [value.shape() for value in binding.get_outputs()] == [[2, 16], [2, 8]]
        results.append(binding.copy_outputs_to_cpu())
    for own, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=0, atol=1e-5)


def test_memory_of_the_caller_is_written_at_every_run(model, x):
    for session in bindings_of(model):
        binding = session.io_binding()
        own, value = x.copy(), ort.OrtValue.ortvalue_from_shape_and_type([2, 16], np.float32)
        y = np.zeros((2, 8), np.float32)
        binding.bind_input("x", "cpu", 0, np.float32, own.shape, own.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        binding.bind_ortvalue_output("z", value)
        for factor in (1, 2):
            own[...] = factor * x
            session.run_with_iobinding(binding)
            wanted = session.run(["y", "z"], {"x": own})
            np.testing.assert_array_equal(y, wanted[0])
            np.testing.assert_array_equal(value.numpy(), wanted[1])


def test_values_of_onnxruntime_are_read_where_they_lie(model, x):
    session = session_of(model)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x.copy()))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], session.run(["y"], {"x": x})[0])
    binding.clear_binding_inputs()
    with pytest.raises(UsageError, match="'x'"):
        session.run_with_iobinding(binding)


def test_results_keep_the_memory_that_they_are_in(model, x):
    session = session_of(model)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    first, second = (ort.OrtValue.ortvalue_from_shape_and_type([2, 8], np.float32, "cpu") for _ in range(2))
    binding.bind_ortvalue_output("y", first)
    session.run_with_iobinding(binding)
    results, first_lives = binding.get_outputs(), weakref.ref(first)
    del first
    binding.bind_ortvalue_output("y", second)
    binding.clear_binding_outputs()
    assert first_lives() is not None
    np.testing.assert_array_equal(results[0].numpy(), session.run(["y"], {"x": x})[0])
    del results
    assert first_lives() is None


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        (lambda b: b.bind_cpu_input("w", np.zeros(1)), "unknown input 'w'; the model's inputs are 'x'"),
        (lambda b: b.bind_cpu_input("x", [1.0]), "input 'x' is a list"),
        (lambda b: b.bind_output("w"), "unknown output 'w'; the model's outputs are 'y', 'z'"),
        (lambda b: b.bind_output("y", "cuda"), "the device is 'cuda'"),
        (lambda b: b.bind_output("y", buffer_ptr=64), "output 'y': memory needs"),
        (lambda b: b.bind_ortvalue_output("y", np.zeros(1)), "output 'y' is a ndarray"),
    ],
)
def test_what_cannot_be_bound_is_named(model, bind, said):
    with pytest.raises(UsageError, match=said):
        bind(session_of(model).io_binding())


def test_memory_of_another_shape_is_named(model, x):
    session = session_of(model)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    with pytest.raises(UsageError, match="no output is bound"):
        session.run_with_iobinding(binding)
    y = np.zeros((2, 9), np.float32)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    with pytest.raises(UsageError, match=r"output 'y' is float32 of \[2, 8\], and float32 of \[2, 9\] is bound"):
        session.run_with_iobinding(binding)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_cache_with_room_for_all_positions_grows_where_it_is_bound(dtype):
    """As onnxruntime-genai keeps it: past and present are one memory from the first token on."""
    model = SPELLINGS["genai"]().model()
    model = halved(model) if dtype == np.float16 else model
    tokens, caches = [], []
    for session in bindings_of(model):
        values = {
            f"{layer}.{kind}": ort.OrtValue.ortvalue_from_numpy(np.zeros((1, KV_HEADS, POSITIONS, DEPTH), dtype))
            for layer in range(LAYERS)
            for kind in ("key", "value")
        }
        ids, length, chosen = np.array([[3, 5, 7]]), 0, []
        for _ in range(6):
            length += ids.shape[1]
            binding = session.io_binding()
            binding.bind_cpu_input("input_ids", ids)
            binding.bind_cpu_input("attention_mask", np.ones((1, length), np.int64))
            for name, value in values.items():
                binding.bind_ortvalue_input(f"past_key_values.{name}", value)
                binding.bind_ortvalue_output(f"present.{name}", value)
            binding.bind_output("logits")
            session.run_with_iobinding(binding)
            chosen.append(int(binding.copy_outputs_to_cpu()[-1][0, -1].argmax()))
            ids = np.array([chosen[-1:]])
        tokens.append(chosen)
        caches.append([value.numpy()[:, :, :length].copy() for value in values.values()])
        assert all(not value.numpy()[:, :, length:].any() for value in values.values())
    assert tokens[0] == tokens[1]
    for own, wanted in zip(*caches, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=0, atol=1e-5 if dtype == np.float32 else 1e-2)
