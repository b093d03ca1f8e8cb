"""Weights of products in fewer bits: as a file has them, and as the caller asks for."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from nets import Net
from onnx.reference import ReferenceEvaluator
from sparse_nets import ONE_THREAD, assert_same_as_onnxruntime, places, reasons

from sift_onnx.backends.base import get_backend
from sift_onnx.backends.cpu.run import opening
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.errors import UsageError

COLUMNS, ROWS = 96, 40


def sparse(rng, shape, density=0.4, dtype=np.float32):
    values = rng.standard_normal(shape) if dtype != np.int8 else rng.integers(-128, 128, shape)
    return (values * (rng.random(shape) < density)).astype(dtype)


def product_of(make, rows=3, transposed=False):
    """x -> MatMul by what ``make(net, rng)`` returns; or, transposed, a Gemm by its transpose."""
    net, rng = Net(opset=21), np.random.default_rng(0)
    x = net.input("x", rows, COLUMNS, declared=["n", COLUMNS])
    weights = make(net, rng)
    net.output(net.op("Gemm", x, weights, transB=1) if transposed else net.op("MatMul", x, weights))
    return net


def quantized(zero=None, dtype=np.int8, scales=None, shape=(COLUMNS, ROWS), **attributes):
    def make(net, rng):
        values = sparse(rng, shape, dtype=np.int8).astype(np.int16) + (zero or 0)
        inputs = [net.constant(values.astype(dtype)), net.constant(np.asarray(scales(rng), np.float32))]
        if zero is not None:
            inputs.append(net.constant(np.full(np.shape(scales(rng)), zero, dtype)))
        return net.op("DequantizeLinear", *inputs, **attributes)

    return make


def halves(kind):
    def make(net, rng):
        stored = net.constant(sparse(rng, (COLUMNS, ROWS)).astype(kind))
        return net.op("Cast", stored, to=onnx.TensorProto.FLOAT)

    return make


def turned(net, rng):
    stored = net.constant(sparse(rng, (ROWS, COLUMNS)).astype(np.float16))
    return net.op("Transpose", net.op("Cast", stored, to=onnx.TensorProto.FLOAT), perm=[1, 0])


def per_row(rng):
    return rng.uniform(0.01, 0.02, ROWS)


SPELLINGS = {
    "float16": (product_of(halves(np.float16)), "float16"),
    "float16, transposed": (product_of(turned), "float16"),
    "one scale": (product_of(quantized(scales=lambda _: 0.01)), "int8"),
    "scales by output": (product_of(quantized(scales=per_row, axis=1)), "int8"),
    "zero points of 0": (product_of(quantized(zero=0, scales=per_row, axis=1)), "int8"),
    "uint8 about 128": (product_of(quantized(zero=128, dtype=np.uint8, scales=per_row, axis=-1)), "int8"),
    "transposed": (product_of(quantized(scales=per_row, shape=(ROWS, COLUMNS), axis=0), transposed=True), "int8"),
    "blocks of inputs": (
        product_of(quantized(scales=lambda rng: rng.uniform(0.01, 0.02, (3, ROWS)), axis=0, block_size=32)),
        "int8",
    ),
    "blocks of inputs, transposed": (
        product_of(
            quantized(scales=lambda rng: rng.uniform(0.01, 0.02, (ROWS, 6)), shape=(ROWS, COLUMNS), axis=1,
                      block_size=16),
            transposed=True,
        ),
        "int8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("name", SPELLINGS)
def test_stored_values_reach_the_kernels_as_they_are(every_region_pays, name, rows):
    net, values = SPELLINGS[name]
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    feeds = {"x": np.random.default_rng(1).standard_normal((rows, COLUMNS)).astype(np.float32)}
    # onnxruntime quantizes the operand of some of these.
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    (found,) = program.run(feeds).values()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    (region,) = program.parts
    assert isinstance(region, RegionProgram)
    (step,) = region.region.steps
    assert step.spec.weights.values == values
    assert f"values are held as {values}" in program.placements[-1].reason


def test_bfloat16_is_exact(every_region_pays):
    def make(net, rng):
        bits = sparse(rng, (COLUMNS, ROWS)).view(np.uint32) >> 16
        tensor = onnx.helper.make_tensor("halves", onnx.TensorProto.BFLOAT16, (COLUMNS, ROWS), bits.astype(np.uint16)
                                         .tobytes(), raw=True)  # fmt: skip
        net._initializers["halves"] = tensor
        return net.op("Cast", "halves", to=onnx.TensorProto.FLOAT)

    model = product_of(make).model()
    bits = np.frombuffer(model.graph.initializer[0].raw_data, np.uint16).astype(np.uint32) << 16
    weights = bits.view(np.float32).reshape(COLUMNS, ROWS)
    x = np.random.default_rng(1).standard_normal((2, COLUMNS)).astype(np.float32)
    program = CpuProgram(model, ONE_THREAD)
    (y,) = program.run({"x": x}).values()
    np.testing.assert_allclose(y, x.astype(np.float64) @ weights, atol=1e-4)
    assert "bfloat16" in program.placements[-1].reason


REFUSED = {
    "zero point": (quantized(zero=3, scales=lambda _: 0.01), "the zero points"),
    "scales along inputs": (
        quantized(scales=lambda rng: rng.uniform(0.01, 0.02, COLUMNS), axis=0),
        "scales along their inputs",
    ),
    "small blocks": (
        quantized(scales=lambda rng: rng.uniform(0.01, 0.02, (12, ROWS)), axis=0, block_size=8),
        "multiples of 16 inputs",
    ),
    "computed scales": (
        lambda net, rng: net.op(
            "DequantizeLinear",
            net.constant(sparse(rng, (COLUMNS, ROWS), dtype=np.int8)),
            net.input("s", values=np.ones(ROWS, np.float32)),
            axis=1,
        ),
        "no constants",
    ),
    "integers of 32 bits": (
        lambda net, rng: net.op(
            "DequantizeLinear", net.constant(np.ones((COLUMNS, ROWS), np.int32)), net.constant(np.float32(0.1))
        ),
        "are int32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_quantized_weights_stay_in_onnxruntime_by_name(every_region_pays, name):
    make, reason = REFUSED[name]
    net = product_of(make)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert any(reason in text for text in reasons(program).values()), reasons(program)


@pytest.mark.parametrize(("values", "tolerance"), [("bf16", 4e-3), ("fp16", 5e-4), ("int8", 1e-2)])
def test_callers_may_ask_for_fewer_bits(every_region_pays, values, tolerance):
    net = product_of(lambda net, rng: net.constant(sparse(rng, (COLUMNS, ROWS))))
    program = get_backend(f"cpu:{values}").compile(net.model(), ONE_THREAD)
    exact = CpuProgram(net.model(), ONE_THREAD).run(net.feeds)
    (found,), (wanted,) = program.run(net.feeds).values(), exact.values()
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert 0 < error < tolerance
    assert "kernels" in places(program).values()


KEPT = {
    "bf16": ("bf16", lambda net, rng: net.constant(sparse(rng, (COLUMNS, ROWS)))),
    "fp16": ("fp16", lambda net, rng: net.constant(sparse(rng, (COLUMNS, ROWS)))),
    "int8": ("int8", lambda net, rng: net.constant(sparse(rng, (COLUMNS, ROWS)))),
    "fp16 of the file": ("fp32", halves(np.float16)),
    "int8 of the file": ("fp32", quantized(zero=128, dtype=np.uint8, scales=per_row, axis=1)),
    "groups of the file": ("fp32", quantized(scales=lambda rng: rng.uniform(1, 2, (3, ROWS)), axis=0, block_size=32)),
}


@pytest.mark.parametrize("name", KEPT)
def test_weights_in_fewer_bits_are_kept_with_their_bits(every_region_pays, name, tmp_path, monkeypatch):
    values, make = KEPT[name]
    net = product_of(make)
    kept = replace(ONE_THREAD, packed_cache=tmp_path, weight_values=values)
    monkeypatch.setattr(opening._shared, "get", lambda *_: None)
    first = CpuProgram(net.model(), kept)
    assert any(isinstance(part, RegionProgram) for part in first.parts)
    monkeypatch.setattr(opening.Model, "load", lambda source: pytest.fail("the model was read"))
    second = CpuProgram(net.model(), kept)
    assert second.placements == first.placements
    for one, other in zip(first.run(net.feeds).values(), second.run(net.feeds).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_cache_of_plans_tells_values_apart(every_region_pays, tmp_path):
    net = product_of(lambda net, rng: net.constant(sparse(rng, (COLUMNS, ROWS))))
    kept = replace(ONE_THREAD, packed_cache=tmp_path)
    (exact,) = CpuProgram(net.model(), kept).run(net.feeds).values()
    (found,) = CpuProgram(net.model(), replace(kept, weight_values="bf16")).run(net.feeds).values()
    assert 0 < np.abs(found - exact).max() < 4e-3 * np.abs(exact).max()
    (again,) = CpuProgram(net.model(), kept).run(net.feeds).values()
    np.testing.assert_array_equal(again, exact)


def test_other_values_are_refused():
    with pytest.raises(UsageError, match="choose fp32, bf16, fp16, int8"):
        CpuProgram(product_of(halves(np.float16)).model(), replace(ONE_THREAD, weight_values="int4"))
    with pytest.raises(UsageError, match="no preset 'int4'"):
        get_backend("cpu:int4")


@pytest.mark.parametrize("density", [0.5, 0.1])
@pytest.mark.parametrize("order", [(1, 40, 2), (40, 1, 40)])
def test_large_products_have_one_form_for_few_and_many_rows(every_region_pays, monkeypatch, density, order):
    monkeypatch.setattr("sift_onnx.backends.cpu.run.region_operators._SHARED_CACHE_BYTES", 1 << 14)
    net, rng = Net(), np.random.default_rng(0)
    weights = sparse(rng, (256, 128), density)
    net.output(net.op("MatMul", net.input("x", 1, 256, declared=["n", 256]), net.constant(weights)))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for rows in order:
        assert_same_as_onnxruntime(model, {"x": rng.standard_normal((rows, 256)).astype(np.float32)}, program)
    table = weights.size / 8 + 4 * np.count_nonzero(weights)
    # Besides: where each row begins, biases, bounds of ranges. Lists may be a sixth larger.
    assert program.weight_bytes <= 1.2 * table + 2048


@pytest.mark.parametrize("density", [0.5, 0.1])
def test_results_do_not_depend_on_requests_before_where_that_is_asked_for(every_region_pays, monkeypatch, density):
    monkeypatch.setattr("sift_onnx.backends.cpu.run.region_operators._SHARED_CACHE_BYTES", 1 << 14)
    net, rng = Net(), np.random.default_rng(0)
    x = net.input("x", 128, 512, declared=["n", 512])
    x = net.op("Relu", net.op("MatMul", x, net.constant(sparse(rng, (512, 256), density))))
    net.output(net.op("MatMul", x, net.constant(sparse(rng, (256, 128), density))))
    program = CpuProgram(net.model(), replace(ONE_THREAD, deterministic=True))
    (first,) = program.run(net.feeds).values()
    program.run({"x": net.feeds["x"][:1]})
    (again,) = program.run(net.feeds).values()
    np.testing.assert_array_equal(again, first)
