"""What a decoder is fed besides its cache: tokens, masks and positions, for sequences of different lengths.

A batch of different lengths is padded. Where the graph masks keys by ``attention_mask``, padding lies to the left, so
that all sequences end together. com.microsoft's GroupQueryAttention counts the ones of the mask and takes the first
keys, so padding lies to the right of the prompt there, and each sequence goes on at its own place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec, shape_text

__all__ = ["Progress", "StepInputs", "is_of_another_text"]

Array = npt.NDArray[Any]


@dataclass
class Progress:
    """How far the sequences of a batch are.

    Attributes:
        prompts: tokens of each prompt.
        width: positions of the prompts with their padding.
        pads_left: whether padding comes first.
        done: positions that the cache has.
    """

    prompts: npt.NDArray[np.int64]
    width: int
    pads_left: bool
    done: int = 0

    @property
    def past_tokens(self) -> npt.NDArray[np.int64]:
        """Tokens in the cache of each sequence, padding left out."""
        generated = max(self.done - self.width, 0)
        return self.prompts + generated if self.done else np.zeros_like(self.prompts)

    def tokens_after(self, count: int) -> npt.NDArray[np.int64]:
        """As above, after ``count`` positions more."""
        generated = self.done + count - self.width
        return self.prompts + generated

    @cached_property
    def _has_padding(self) -> bool:
        return bool((self.prompts != self.width).any())

    def mask(self, count: int) -> npt.NDArray[np.int64]:
        """[sequences, positions]: which ones are tokens, after ``count`` positions more."""
        if not self._has_padding:
            return np.ones((len(self.prompts), self.done + count), np.int64)
        places = np.arange(self.done + count)
        if self.pads_left:
            return (places >= self.width - self.prompts[:, None]).astype(np.int64)
        return (places < self.tokens_after(count)[:, None]).astype(np.int64)

    def positions(self, count: int) -> npt.NDArray[np.int64]:
        """[sequences, count]: of the next tokens within their sequences; those of padding are 0."""
        if self.done:
            return self.past_tokens[:, None] + np.arange(count)
        offset = self.width - self.prompts[:, None] if self.pads_left else 0
        places = np.arange(count) - offset
        return np.where((places < 0) | (places >= self.prompts[:, None]), 0, places)


@dataclass(frozen=True)
class StepInputs:
    """The inputs of a decoder that are no cache, by what they mean.

    Attributes:
        tokens: the input of token ids.
        others: those that a step fills in.
    """

    tokens: TensorSpec
    others: tuple[TensorSpec, ...] = field(default_factory=tuple)

    @classmethod
    def of(cls, inputs: Sequence[TensorSpec]) -> StepInputs:
        """The inputs with a meaning.

        Raises:
            UnsupportedError: one has none that is known; the message names it.
        """
        tokens = [spec for spec in inputs if _meaning(spec) == "input_ids"]
        if len(tokens) != 1:
            listed = ", ".join(repr(spec.name) for spec in inputs)
            raise UnsupportedError(
                "the model is not a decoder: it has no input of token ids, such as input_ids; its integer inputs: "
                f"{listed or 'none'}"
            )
        others = tuple(spec for spec in inputs if spec is not tokens[0])
        for spec in others:
            if _meaning(spec) not in _FILLED:
                raise UnsupportedError(
                    f"the input {spec.name!r} ({spec.dtype}, {shape_text(spec.shape)}) is neither a cache nor one of "
                    f"input_ids, {', '.join(_FILLED)}; run the model with InferenceSession and feed it yourself"
                )
        return cls(tokens[0], others)

    @property
    def masks(self) -> list[str]:
        """Inputs that tell padding from tokens."""
        return [spec.name for spec in self.others if _meaning(spec) in ("attention_mask", "seqlens_k")]

    def feeds(self, tokens: npt.NDArray[np.int64], progress: Progress) -> dict[str, Array]:
        """Arrays for a step.

        Args:
            tokens: [sequences, count].
            progress: before the step.

        Raises:
            UsageError: the model fixes another number of tokens or sequences.
        """
        feeds = {self.tokens.name: _as_declared(tokens, self.tokens)}
        for spec, fill in self._fills:
            feeds[spec.name] = _as_declared(fill(progress, tokens.shape[1]), spec)
        return feeds

    @cached_property
    def _fills(self) -> tuple[tuple[TensorSpec, Callable[[Progress, int], Array]], ...]:
        return tuple((spec, _FILLED[_meaning(spec)]) for spec in self.others)


def is_of_another_text(name: str) -> bool:
    """Whether an input or output is of what an encoder has read, as its states, and keys and values made of them."""
    return not _OTHER_TEXT.isdisjoint(re.findall("[a-z]+", name.lower()))


# Words of their names: ``past_key_values.0.encoder.key``, ``encoder_hidden_states``, ``past_key_cross_0``.
_OTHER_TEXT = frozenset(("encoder", "cross"))


def _meaning(spec: TensorSpec) -> str:
    name = spec.name.rpartition(".")[2].rpartition("/")[2].lower()
    return _OTHER_NAMES.get(name, name)


_OTHER_NAMES = {
    "input_tokens": "input_ids", "tokens": "input_ids", "token_ids": "input_ids", "ids": "input_ids",
    "mask": "attention_mask", "positions": "position_ids", "past_seq_len": "past_sequence_length",
    "total_seq_len": "total_sequence_length", "past_length": "past_sequence_length",
}  # fmt: skip

# What a step fills in, of how far the sequences are and the number of new tokens.
_FILLED: dict[str, Callable[[Progress, int], Array]] = {
    "attention_mask": lambda progress, count: progress.mask(count),
    "position_ids": lambda progress, count: progress.positions(count),
    "cache_position": lambda progress, count: np.arange(progress.done, progress.done + count),
    "seqlens_k": lambda progress, count: progress.tokens_after(count) - 1,
    "total_sequence_length": lambda progress, count: np.array(progress.done + count),
    "past_sequence_length": lambda progress, count: np.array(progress.done),
    "token_type_ids": lambda progress, count: np.zeros((len(progress.prompts), count), np.int64),
    "use_cache_branch": lambda progress, count: np.array([True]),
    "num_logits_to_keep": lambda progress, count: np.array(count if not progress.done and progress.width > 1 else 1),
}


def _as_declared(values: Array, spec: TensorSpec) -> Array:
    rank = len(spec.shape or ())
    if rank == 1 and values.ndim == 0:
        values = values.reshape(1)
    if values.ndim != rank and spec.shape is not None:
        raise UsageError(
            f"the input {spec.name!r} is declared as {shape_text(spec.shape)}; a decoder's has {values.ndim} axes"
        )
    for axis, (size, declared) in enumerate(zip(values.shape, spec.extents, strict=False)):
        if isinstance(declared, int) and declared != size:
            raise UsageError(
                f"the input {spec.name!r} is fixed to {declared} along axis {axis}, and this step needs {size}; "
                "export the model with dynamic axes"
            )
    return np.asarray(values, spec.dtype, order="C")
