"""What the inputs and outputs of a decoder with a cache mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from sift_onnx.backends.decoding.cache_pairs import CachePair, find_cache_pairs
from sift_onnx.backends.decoding.merged_branches import with_cache_branch
from sift_onnx.backends.decoding.position_limits import most_positions
from sift_onnx.backends.decoding.step_inputs import Progress, StepInputs, is_of_another_text
from sift_onnx.backends.lowering.graph import is_standard_op, names_read
from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.files.data_types import is_float
from sift_onnx.model import Model, ModelLike
from sift_onnx.operators.domains import MICROSOFT
from sift_onnx.shapes.input_binding import BoundInputs
from sift_onnx.shapes.open_axes import declared_shape
from sift_onnx.shapes.tensor_specs import TensorSpec, graph_inputs

__all__ = ["DecoderSignature", "read_decoder"]


def read_decoder(model: ModelLike) -> tuple[str | os.PathLike[str] | onnx.ModelProto | None, Model]:
    """A decoder as it is run: of a merged one, the branch for a cache.

    Returns:
        What a back end reads, a path or a proto; None where only the loaded model is. And the loaded model.

    Raises:
        ModelReadError: the file cannot be read.
    """
    loaded = Model.load(os.fspath(model) if isinstance(model, os.PathLike) else model)
    branch = with_cache_branch(loaded)
    if branch is not None:
        return None, branch
    return (model if isinstance(model, (str, os.PathLike, onnx.ModelProto)) else None), loaded


@dataclass(frozen=True)
class DecoderSignature:
    """Inputs and outputs of a decoder by what they mean.

    Attributes:
        given: inputs that are of another text, as of an encoder, and stay the same in all steps.
        inputs: tokens, and what a step fills in.
        pairs: the cache.
        logits: name of the output.
        vocabulary: how many tokens there are; None if the model does not say.
        most_positions: tokens that a sequence may have; None if the model does not say.
        pads_left: whether shorter sequences of a batch have their padding first.
        tells_padding: whether logits depend on what tells padding from tokens.
    """

    given: tuple[str, ...]
    inputs: StepInputs
    pairs: tuple[CachePair, ...]
    logits: str
    vocabulary: int | None
    most_positions: int | None
    pads_left: bool
    tells_padding: bool

    @classmethod
    def of(cls, skeleton: onnx.ModelProto) -> DecoderSignature:
        """Read off a model, whose tensors need no data.

        Raises:
            UnsupportedError: the model has no cache, or an input whose meaning is not known; the message names it.
        """
        given = tuple(spec.name for spec in graph_inputs(skeleton) if is_of_another_text(spec.name))
        inputs = [spec for spec in graph_inputs(skeleton) if spec.name not in given]
        outputs = [_output_spec(info) for info in skeleton.graph.output if not is_of_another_text(info.name)]
        plain = [spec for spec in inputs if not is_float(spec.dtype)]
        step_inputs = StepInputs.of(plain)
        symbol = step_inputs.tokens.extents[0] if step_inputs.tokens.extents else None
        pairs = find_cache_pairs(inputs, outputs, symbol)
        _refuse_others(inputs, plain, pairs)
        logits = _logits_of(outputs, pairs)
        vocabulary = next(spec.extents[-1] if spec.extents else None for spec in outputs if spec.name == logits)
        # It counts the tokens of a sequence, and takes the first keys of its cache.
        pads_left = not any(
            node.op_type == "GroupQueryAttention" and node.domain == MICROSOFT for node in skeleton.graph.node
        )
        return cls(
            given=given,
            inputs=step_inputs,
            pairs=pairs,
            logits=logits,
            vocabulary=vocabulary if isinstance(vocabulary, int) else None,
            most_positions=most_positions(skeleton.graph),
            pads_left=pads_left,
            tells_padding=_depends_on(skeleton.graph, logits, step_inputs.masks),
        )

    @property
    def own_batch(self) -> int | None:
        """Sequences that the model was exported for; None if it takes any number."""
        size = self.inputs.tokens.extents[0] if self.inputs.tokens.extents else None
        return size if isinstance(size, int) else None

    def check_length(self, prompt: int, new: int, setting: str) -> None:
        """Check that a prompt and what is generated after it have positions; ``setting`` says how many that is.

        Raises:
            UsageError: the model has fewer.
        """
        # The last token is not fed again.
        needed, most = prompt + new - 1, self.most_positions
        if most is not None and needed > most:
            raise UsageError(
                f"a prompt of {prompt} tokens and {new} new ones need {needed} positions, and the model has "
                f"{most}; shorten the prompt or {setting}"
            )

    def bound(self, sequences: int, new: int, past: int) -> BoundInputs:
        """Shapes of all inputs but those of another text, and values of those that are lengths.

        Args:
            sequences: that are generated together, all of the same length.
            new: tokens of each sequence in this run.
            past: tokens of each sequence in the cache; without any, the new ones are the prompt.

        Raises:
            UsageError: the model fixes another number of tokens or sequences.
            UnsupportedError: the cache has an axis without a size.
        """
        width = past or new
        progress = Progress(np.full(sequences, width), width, self.pads_left, done=past)
        feeds = self.inputs.feeds(np.zeros((sequences, new), np.int64), progress)
        shapes = {name: array.shape for name, array in feeds.items()}
        lengths = {name: array for name, array in feeds.items() if array.ndim < 2 and array.dtype.kind in "iu"}
        return BoundInputs(
            shapes | {pair.past: pair.sizes(sequences, past) for pair in self.pairs},
            values={name: tuple(map(int, array.reshape(-1))) for name, array in lengths.items()},
        )


def _output_spec(info: onnx.ValueInfoProto) -> TensorSpec:
    tensor = info.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type or onnx.TensorProto.FLOAT))
    return TensorSpec(info.name, dtype, declared_shape(tensor))


def _refuse_others(inputs: Sequence[TensorSpec], plain: Sequence[TensorSpec], pairs: Sequence[CachePair]) -> None:
    if not pairs:
        raise UnsupportedError(
            "the model has no cache among its inputs; export it with past keys and values as inputs and outputs"
        )
    known = {spec.name for spec in plain} | {pair.past for pair in pairs}
    other = next((spec for spec in inputs if spec.name not in known), None)
    if other is not None:
        raise UnsupportedError(f"the input {other.name!r} is neither a cache nor anything that a step fills in")


def _logits_of(outputs: Sequence[TensorSpec], pairs: Sequence[CachePair]) -> str:
    presents = {pair.present for pair in pairs}
    others = [spec.name for spec in outputs if spec.name not in presents and is_float(spec.dtype)]
    named = [name for name in others if "logits" in name.lower()]
    if len(named or others) != 1:
        listed = ", ".join(map(repr, others)) or "none"
        raise UnsupportedError(f"which output has the logits? name one of them logits; there are {listed}")
    return (named or others)[0]


def _depends_on(graph: onnx.GraphProto, result: str, inputs: Sequence[str]) -> bool:
    """Whether a value depends on numbers in some inputs, and not on their sizes alone."""
    reached = set(inputs)
    for node in graph.node:
        if not is_standard_op(node, "Shape", "Size") and not reached.isdisjoint(names_read(node)):
            reached.update(node.output)
    return result in reached
