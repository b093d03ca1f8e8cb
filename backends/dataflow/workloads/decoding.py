"""A decoder with a cache as workloads: a prompt, and then one token after the other, whose attention grows.

Weights meet one token of each sequence in every step, so that all steps have the same products. What grows with the
cache are scores, masks and what is made of them. Such counts are polynomials in the length of the cache, of the second
degree at most: the first three steps say what they are, and the last one whether they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from numbers import Integral

import numpy as np
import numpy.typing as npt

from sift_onnx.analysis.computed_parameters import store_computed_parameters
from sift_onnx.analysis.inlining import inline_bodies
from sift_onnx.backends.dataflow.workloads.lowering import KnownWeights, lower_at
from sift_onnx.backends.dataflow.workloads.workload import WeightlessOp, Workload
from sift_onnx.backends.decoding.signature import DecoderSignature, read_decoder
from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.model import ModelLike
from sift_onnx.shapes.input_binding import BoundInputs, bind
from sift_onnx.shapes.tensor_specs import model_inputs

__all__ = ["MOST_TOKENS", "DecodeWorkload", "GrowingOp", "check_decode", "decode_workload", "lower_decoding"]

Counts = npt.NDArray[np.int64]
# Makes a workload from two numbers: of new tokens of each sequence, and of tokens that its cache has already.
WorkloadAt = Callable[[int, int], Workload]
# Steps that decide a polynomial of the second degree.
_DECIDING = 3
# Each takes some microseconds for each operator that counts differently.
MOST_TOKENS = 2**16


@dataclass(frozen=True, eq=False)
class GrowingOp:
    """Work without weights, in every step.

    Attributes:
        op: in the first step.
        counts: operations, elements read and elements written by step, ``[steps, 3]``.
    """

    op: WeightlessOp
    counts: Counts

    def at(self, step: int) -> WeightlessOp:
        """In a step, the first of which is 0."""
        operations, read, written = map(int, self.counts[step])
        return replace(self.op, operations=operations, elements_in=read, elements_out=written)


@dataclass(frozen=True, eq=False)
class DecodeWorkload:
    """A prompt and the tokens that are generated after it.

    The run on the prompt gives the first token. Each of the others takes a step; the last one is not fed again.

    Attributes:
        prompt: tokens of each prompt.
        tokens: new ones of each sequence.
        prefill: the run on the prompt.
        first: the first step, whose products are those of every step.
        growing: work without weights of all steps, in the order of ``first``.
        cache_per_token: elements of the cache that a token of each sequence adds.
    """

    prompt: int
    tokens: int
    prefill: Workload
    first: Workload
    growing: tuple[GrowingOp, ...]
    cache_per_token: int

    @property
    def name(self) -> str:
        """Of the model."""
        return self.prefill.name

    @property
    def inputs(self) -> BoundInputs:
        """Shapes of the model's inputs in the run on the prompt."""
        return self.prefill.inputs

    @property
    def steps(self) -> int:
        """How many follow the prompt."""
        return self.tokens - 1

    @property
    def batch(self) -> int:
        """Sequences that are generated together."""
        return self.prefill.batch

    @property
    def cache_elements(self) -> int:
        """Keys and values in the end."""
        return (self.prompt + self.steps) * self.cache_per_token

    @property
    def cache_read_elements(self) -> int:
        """Keys and values that all steps read, those of their own token included."""
        return (self.steps * self.prompt + self.steps * (self.steps + 1) // 2) * self.cache_per_token


def check_decode(decode: tuple[int, int]) -> tuple[int, int]:
    """Tokens of a prompt, and new ones.

    Raises:
        UsageError: these are not two whole numbers, or leave no step to be counted.
    """
    try:
        prompt, tokens = decode
    except (TypeError, ValueError):
        raise UsageError(f"`decode` is {decode!r}; give the tokens of a prompt and new ones, as (128, 32)") from None
    if not all(isinstance(count, Integral) for count in (prompt, tokens)) or prompt < 1 or tokens < 2:
        raise UsageError(f"`decode` is {decode!r}; give a prompt of 1 token or more, and 2 new ones or more")
    if tokens > MOST_TOKENS:
        raise UsageError(f"`decode` asks for {tokens} new tokens; up to {MOST_TOKENS} are counted one by one")
    return int(prompt), int(tokens)


def lower_decoding(
    model: ModelLike,
    decode: tuple[int, int],
    batch: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> DecodeWorkload:
    """What ``model`` asks of a machine when it generates.

    Args:
        model: a decoder with its cache among inputs and outputs; anything that :meth:`Model.load` takes.
        decode: tokens of each prompt, and new ones of each sequence.
        batch: sequences that are generated together; the model's own, or 1, by default.
        input_shapes: of inputs of another text, as of an encoder; all others follow from ``decode``.

    Raises:
        UsageError: ``decode`` or ``batch`` is out of range, longer than the model's positions, or contradicts it; or a
            shape is given that follows from them.
        ModelReadError: the model cannot be read.
        UnsupportedError: the model has no cache, or does not do alike in all steps.
    """
    prompt, tokens = check_decode(decode)
    if batch is not None and (not isinstance(batch, Integral) or batch < 1):
        raise UsageError(f"batch is {batch!r}; it must be a whole number, 1 or more")
    loaded, _ = store_computed_parameters(inline_bodies(read_decoder(model)[1]))
    signature = DecoderSignature.of(loaded.skeleton())
    signature.check_length(prompt, tokens, "the answer")
    sequences = int(batch) if batch is not None else signature.own_batch or 1
    specs = [spec for spec in model_inputs(loaded) if spec.name in signature.given]
    for name in input_shapes or ():
        if name not in signature.given:
            raise UsageError(f"`input_shapes` gives {name!r} a shape, which follows from `decode`; leave it out")
    others = bind(specs, input_shapes, sequences) if specs else BoundInputs()
    caches = frozenset(pair.past for pair in signature.pairs)
    known = KnownWeights()

    def at(new: int, past: int) -> Workload:
        own = signature.bound(sequences, new, past)
        bound = replace(others, shapes={**others.shapes, **own.shapes}, values=own.values)
        return replace(lower_at(loaded, bound, known=known, caches=caches), batch=sequences)

    per_token = sum(int(np.prod(pair.sizes(sequences, 1))) for pair in signature.pairs)
    return decode_workload(at, prompt, tokens, per_token)


def decode_workload(at: WorkloadAt, prompt: int, tokens: int, cache_per_token: int) -> DecodeWorkload:
    """The workloads of a prompt and of all steps after it.

    Args:
        at: makes the workload for a number of new tokens and a number of tokens in the cache.
        prompt: tokens of each prompt.
        tokens: new ones of each sequence, 2 or more.
        cache_per_token: elements of the cache that a token of each sequence adds.

    Raises:
        UnsupportedError: steps differ by more than how much is read and written.
    """
    steps = tokens - 1
    looked_at = dict.fromkeys((*range(min(steps, _DECIDING)), steps - 1))
    known = {step: at(1, prompt + step) for step in looked_at}
    first = known[0]
    for workload in known.values():
        _check_alike(first, workload)
    deciding = np.stack([_counts(known[step]) for step in sorted(known)[:_DECIDING]])
    if np.array_equal(_at(deciding, steps - 1), _counts(known[steps - 1])):
        # Layers do the same: few counts are different ones.
        extended: dict[bytes, Counts] = {}
        by_op = [_extended(deciding[:, place], steps, extended) for place in range(len(first.weightless))]
    else:
        every = (known.get(step) or at(1, prompt + step) for step in range(steps))
        by_op = list(np.stack([_counts(workload) for workload in _alike(first, every)], axis=1))
    elements = (prompt + steps) * cache_per_token
    return DecodeWorkload(
        prompt=prompt,
        tokens=tokens,
        prefill=replace(at(prompt, 0), cache_elements=elements),
        first=replace(first, cache_elements=elements),
        growing=tuple(GrowingOp(op, counts) for op, counts in zip(first.weightless, by_op, strict=True)),
        cache_per_token=cache_per_token,
    )


def _counts(workload: Workload) -> Counts:
    """Operations, elements read and elements written, ``[operators, 3]``."""
    rows = [(op.operations, op.elements_in, op.elements_out) for op in workload.weightless]
    return np.array(rows, np.int64).reshape(-1, 3)


def _at(deciding: Counts, step: int | Counts) -> Counts:
    """Counts of a step from those of the first ones, ``[up to 3, ...]``; differences of whole numbers are whole."""
    value: Counts = deciding[0] + 0 * step
    if len(deciding) > 1:
        value = value + step * (deciding[1] - deciding[0])
    if len(deciding) > 2:
        value = value + step * (step - 1) // 2 * (deciding[2] - 2 * deciding[1] + deciding[0])
    return value


def _extended(deciding: Counts, steps: int, known: dict[bytes, Counts]) -> Counts:
    """``[steps, 3]`` of an operator; one array for all that count alike."""
    key = deciding.tobytes()
    if key not in known:
        known[key] = _at(deciding, np.arange(steps).reshape(-1, 1))
    return known[key]


def _alike(first: Workload, others: Iterable[Workload]) -> Iterable[Workload]:
    for workload in others:
        _check_alike(first, workload)
        yield workload


def _check_alike(first: Workload, other: Workload) -> None:
    for before, after in zip(first.products, other.products, strict=True):
        if (before.tokens, before.sequential) != (after.tokens, after.sequential):
            raise UnsupportedError(
                f"steps cannot be counted: {before.name!r} (node {before.node!r}) multiplies {before.tokens} tokens in "
                f"the first step and {after.tokens} in a later one; a step of a decoder with a cache has as many in all"
            )
    ops = [[(op.node, op.op, op.kind) for op in workload.weightless] for workload in (first, other)]
    if ops[0] != ops[1]:
        node = next((a or b for a, b in zip_longest(*ops) if a != b), ("", "", ""))[0]
        raise UnsupportedError(f"steps cannot be counted: what node {node!r} does is not the same in all of them")
