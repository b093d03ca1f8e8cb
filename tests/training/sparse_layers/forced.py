"""Each node of a graph in lanes by itself, on the same inputs and the same gradient of its result.

A whole model cannot be compared strictly: where the input of a ReLU lies within rounding of zero, either sign is right,
and one element whose gradient passes or not changes all gradients before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from sift_onnx.training.sparse_layers import dense_layer, layer
from sift_onnx.training.sparse_layers.lanes import (
    activations,
    average_pool,
    batch_norm,
    batch_norm_pool,
    layer_norm,
    max_pool,
)  # fmt: skip
from sift_onnx.training.sparse_layers.lanes.batch_norm import normalize
from sift_onnx.training.sparse_layers.lanes.batch_norm_pool import normalize_and_pool
from sift_onnx.training.sparse_layers.lanes.tensors import LANES, Lanes, combined, from_lanes

# Of single precision.
EPSILON = 2.0**-24
# What idle lanes hold in inputs: anything finite may be there.
IDLE = 1000.0


@dataclass(frozen=True)
class Call:
    """A node that was run: what it was called with, and its result, whose gradient comes with a backward pass."""

    node: fx.Node
    args: tuple[Any, ...]
    result: Lanes

    @property
    def gradient(self) -> Lanes:
        """Of the result."""
        assert self.result.data.grad is not None
        return replace(self.result, data=self.result.data.grad)


class Recorder(fx.Interpreter):
    """Runs a graph and keeps each call that has a result in lanes."""

    def __init__(self, module: Any) -> None:
        """Of a module in lanes."""
        super().__init__(module)
        self.calls: list[Call] = []

    def run_node(self, node: fx.Node) -> Any:
        """Run a node, and keep the call."""
        args = self.fetch_args_kwargs_from_env(node)[0]
        # Running statistics change in the call.
        args = tuple(a.clone() if isinstance(a, Tensor) and not a.requires_grad else a for a in args)
        result = super().run_node(node)
        if node.op == "call_function" and isinstance(result, Lanes) and result.data.requires_grad:
            result.data.retain_grad()
            self.calls.append(Call(node, args, result))
        return result


def results(call: Call, dtype: torch.dtype, *, idle: float = 0.0, jitter: float = 0.0) -> dict[str, Tensor]:
    """Output, gradients and statistics of one call, on inputs that are rounded to single precision.

    Args:
        call: what to compute.
        dtype: in which precision.
        idle: what idle lanes of inputs hold.
        jitter: by which share of its size each element of inputs and of the gradient is moved, up or down by chance.
    """
    draw = torch.Generator().manual_seed(0)
    args = [_argument(arg, dtype, idle, jitter, draw) for arg in call.args]
    out = call.node.target(*args, **call.node.kwargs)  # type: ignore[operator]
    gradient = _moved(_away_from_the_kink(call).detach().float().to(dtype, copy=True), jitter, draw)
    if out.n % LANES:
        gradient[-1, ..., out.n % LANES :] = 0
    out.data.backward(gradient)
    found = {"output": from_lanes(out).detach()}
    for i, arg in enumerate(args):
        if isinstance(arg, Lanes) and arg.data.grad is not None:
            assert not arg.n % LANES or not arg.data.grad[-1, ..., arg.n % LANES :].any(), "idle lanes have gradients"
            found[f"gradient of argument {i}"] = from_lanes(replace(arg, data=arg.data.grad))
        elif isinstance(arg, Tensor):
            found[f"gradient of argument {i}" if arg.requires_grad else f"argument {i}"] = (
                arg.detach() if arg.grad is None else arg.grad
            )
    return found


@contextmanager
def on_torch(patch: Any) -> Iterator[None]:
    """Layers and normalizations by torch's kernels."""
    with patch.context() as patched:
        for module in (layer, dense_layer):
            patched.setattr(module, "fits", lambda *tensors: False)
        for module in (activations, average_pool, batch_norm, batch_norm_pool, layer_norm, max_pool):
            patched.setattr(module, "runs_on_kernels", lambda x: False)
        yield


def assert_each_node_as_exact_as_torch(module: Any, batch: Tensor, patch: Any) -> int:
    """Run a module in lanes in double precision, and each of its nodes on either kernels.

    The error of each tensor, against double precision on the same inputs, is at most twice that of torch's kernels.
    These may be exact by chance, so what comes of inputs that are off by sixteen roundings is allowed besides: that is
    the error of some 256 numbers that are added one after the other, of either sign perhaps, and of a result of any
    condition. The last rounding is that of the result.

    Returns:
        The nodes that were compared.
    """
    recorder = Recorder(module)
    y = recorder.run(batch)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).mean().backward()
    calls = [call for call in recorder.calls if call.result.data.grad is not None]
    for call in calls:
        ours = results(call, torch.float32, idle=IDLE)
        with on_torch(patch):
            theirs = results(call, torch.float32)
        exact, moved = results(call, torch.float64), results(call, torch.float64, jitter=16 * EPSILON)
        assert ours.keys() == theirs.keys() == exact.keys()
        for name, wanted in exact.items():
            error, of_torch, floor = (float((x[name] - wanted).abs().max()) for x in (ours, theirs, moved))
            allowed = 2 * of_torch + floor + EPSILON * float(wanted.abs().max())
            assert error <= allowed, f"{name} of {call.node.format_node()}: {error}, torch's {of_torch}, floor {floor}"
    return len(calls)


def _argument(arg: Any, dtype: torch.dtype, idle: float, jitter: float, draw: torch.Generator) -> Any:
    if isinstance(arg, Lanes):
        data = _moved(arg.data.detach().float().to(dtype, copy=True), jitter, draw)
        if arg.n % LANES:
            data[-1, ..., arg.n % LANES :] = idle
        return replace(arg, data=data.requires_grad_())
    if isinstance(arg, Tensor):
        return _moved(arg.detach().float().to(dtype, copy=True), jitter, draw).requires_grad_(arg.requires_grad)
    return arg


def _moved(x: Tensor, jitter: float, draw: torch.Generator) -> Tensor:
    if not jitter:
        return x
    return x * (1 + jitter * (2 * torch.randint(0, 2, x.shape, generator=draw) - 1))


def _away_from_the_kink(call: Call) -> Tensor:
    """The result's gradient, zero where rounding decides whether the ReLU of a normalization passes it."""
    gradient = call.gradient.data
    if call.node.target not in (normalize, normalize_and_pool) or not call.node.kwargs.get("relu"):
        return gradient
    exact, moved = (_before_relu(call, jitter) for jitter in (0.0, 64 * EPSILON))
    rounding = (exact - moved).abs().amax((0, 2, 3, 4), keepdim=True)
    return gradient * (exact.abs() > rounding)


def _before_relu(call: Call, jitter: float) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    args = [_argument(arg, torch.float64, 0.0, jitter, draw) for arg in call.args]
    normalized = normalize(*args[:6])
    if call.node.target is normalize_and_pool:
        return max_pool.max_pool(normalized, attributes=call.node.kwargs["attributes"]).data.detach()  # type: ignore[arg-type]
    return (combined(torch.add, normalized, args[6]) if len(args) > 6 else normalized).data.detach()
