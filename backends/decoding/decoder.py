"""``Decoder``: tokens from a model that has its cache as inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.base import Backend, CompileOptions, Program, get_backend, refuse_copies
from sift_onnx.backends.decoding.cache import Cache
from sift_onnx.backends.decoding.last_logits import with_last_logits
from sift_onnx.backends.decoding.sampling import Sampler
from sift_onnx.backends.decoding.signature import DecoderSignature, read_decoder
from sift_onnx.backends.decoding.step_inputs import Progress
from sift_onnx.errors import UsageError
from sift_onnx.model import ModelLike

__all__ = ["Decoder"]

Array = npt.NDArray[Any]
Ids = Sequence[int] | Sequence[Sequence[int]] | Array


class Decoder:
    """A decoder that generates; one batch at a time.

    The model takes token ids and its cache, and gives logits and the cache after the step, as exporters write it. What
    it reads of another text, as of an encoder, stays the same in all steps.
    """

    def __init__(self, model: ModelLike, threads: int | None = None, *, backend: str | Backend = "cpu") -> None:
        """Read and compile ``model``.

        Args:
            model: a path, an ``onnx.ModelProto``, its bytes, or anything else that :func:`sift_onnx.load` takes.
            threads: worker threads; None is one per processor that the process may use.
            backend: by name, as the verbs take it, or a back end.

        Raises:
            ModelReadError: the file cannot be read.
            UnsupportedError: the model has no cache, or an input whose meaning is not known; the message names it.
            BackendError: the back end refused the model.
        """
        source, loaded = read_decoder(model)
        self._signature = DecoderSignature.of(loaded.skeleton())
        chosen = get_backend(backend) if isinstance(backend, str) else backend
        # A back end that reads files by itself runs them as they are.
        cut = with_last_logits(loaded, self._signature) if chosen.takes_models else None
        self._gives_last_only = cut is not None
        runs: Any = cut if cut is not None else source
        if runs is None:
            runs = loaded if chosen.takes_models else loaded.to_proto()
        self._program = chosen.compile(runs, CompileOptions(threads))

    @property
    def program(self) -> Program:
        """What runs the steps."""
        return self._program

    @property
    def threads(self) -> int:
        """Threads, the calling one included."""
        return self._program.threads

    @property
    def vocabulary(self) -> int | None:
        """How many tokens there are; None if the model does not say."""
        return self._signature.vocabulary

    @property
    def most_positions(self) -> int | None:
        """Tokens that a sequence may have, prompt and answer; None if the model does not say."""
        return self._signature.most_positions

    def generate(
        self,
        ids: Ids,
        max_new_tokens: int = 32,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        seed: int = 0,
        eos: int | Iterable[int] | None = None,
        inputs: Mapping[str, Array] | None = None,
    ) -> Iterator[Any]:
        """New tokens, each as soon as it is known.

        Args:
            ids: the prompt; or several, of any lengths, which are generated together.
            max_new_tokens: of each sequence.
            temperature: 0 takes the most likely token; otherwise one is drawn.
            top_k: how many of the most likely tokens to draw from; 0 draws from all.
            seed: of the random numbers; each sequence has its own.
            eos: a token that ends a sequence, or several; it is the last one that is given.
            inputs: what the model reads of another text, by name: states of an encoder, keys and values that are made
                of them, its mask; [sequences, ...].

        Yields:
            An int. For several prompts a list with one for each, None for those that have ended.

        Raises:
            UsageError: a prompt is empty, has unknown ids, or is longer than the model's positions; or the settings
                are wrong.
            BackendError: a step failed.
        """
        prompts, is_batch = _prompts(ids)
        if not isinstance(max_new_tokens, Integral) or max_new_tokens < 1:
            raise UsageError(f"`max_new_tokens` is {max_new_tokens!r}; it has to be 1 or more")
        self._check(prompts, int(max_new_tokens))
        given = self._checked(inputs or {}, len(prompts))
        sampler = Sampler(temperature, top_k, seed, len(prompts))
        ends = _ends(eos)
        return self._tokens(prompts, int(max_new_tokens), sampler, ends, is_batch, given)

    def _checked(self, inputs: Mapping[str, Array], sequences: int) -> dict[str, Array]:
        missing = next((name for name in self._signature.given if name not in inputs), None)
        if missing is not None:
            raise UsageError(f"the model reads {missing!r}, of another text; pass the array among `inputs`")
        for name, array in inputs.items():
            if name not in self._signature.given:
                listed = ", ".join(map(repr, self._signature.given)) or "none"
                raise UsageError(f"`inputs` has {name!r}; what the model reads of another text is {listed}")
            if np.shape(array)[:1] != (sequences,):
                raise UsageError(f"the input {name!r} is {list(np.shape(array))}, for {sequences} sequences")
        return dict(inputs)

    def _check(self, prompts: Sequence[npt.NDArray[np.int64]], new: int) -> None:
        lengths = {len(prompt) for prompt in prompts}
        highest = max(int(prompt.max()) for prompt in prompts)
        if self.vocabulary is not None and highest >= self.vocabulary:
            raise UsageError(f"a prompt has the token id {highest}; the model's vocabulary has {self.vocabulary}")
        if len(lengths) > 1 and not self._signature.tells_padding:
            raise UsageError(
                f"the prompts have {min(lengths)} to {max(lengths)} tokens, and the model has no attention_mask that "
                "tells padding from tokens, or does not use it; generate them one by one"
            )
        self._signature.check_length(max(lengths), new, "`max_new_tokens`")

    def _tokens(
        self,
        prompts: Sequence[npt.NDArray[np.int64]],
        new: int,
        sampler: Sampler,
        ends: frozenset[Any],
        is_batch: bool,
        given: Mapping[str, Array],
    ) -> Iterator[Any]:
        lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        progress = Progress(lengths, int(lengths.max()), self._signature.pads_left)
        cache = Cache(self._signature.pairs, len(prompts), self._program)
        has_ended = np.zeros(len(prompts), bool)
        # Where padding comes last, the last position is not each sequence's last token.
        ends_apart = not progress.pads_left and int(lengths.min()) < progress.width
        if ends_apart and self._gives_last_only:
            progress = self._without_last_tokens(prompts, cache, progress, given)
            tokens = np.array([[prompt[-1]] for prompt in prompts], np.int64)
        else:
            tokens = _padded(prompts, progress)
        for count in range(new):
            if count == 1 and progress.width > 1:
                # What a whole prompt takes is many times what a token takes.
                self._program.release_idle()
            logits = self._step(tokens, cache, progress, given)
            if not count and ends_apart and not self._gives_last_only:
                rows = np.minimum(lengths - 1, logits.shape[1] - 1)
                chosen = sampler.choose(logits[np.arange(len(prompts)), rows])
            else:
                chosen = sampler.choose(logits[:, -1])
            del logits
            row = [None if ended else int(token) for token, ended in zip(chosen, has_ended, strict=True)]
            if ends:
                has_ended |= [token in ends for token in chosen.tolist()]
            yield row if is_batch else row[0]
            if has_ended.all():
                return
            tokens = chosen[:, None]

    def _without_last_tokens(
        self,
        prompts: Sequence[npt.NDArray[np.int64]],
        cache: Cache,
        progress: Progress,
        given: Mapping[str, Array],
    ) -> Progress:
        """Run all of each prompt but its last token, with padding last; how far the sequences are then.

        A step with the last tokens gives their logits, each at its own place. Of a prompt of one token, this runs that
        token, whose step then writes over it.
        """
        lengths = progress.prompts - 1
        begins = [prompt[: max(len(prompt) - 1, 1)] for prompt in prompts]
        begun = Progress(np.maximum(lengths, 1), progress.width - 1, progress.pads_left)
        self._step(_padded(begins, begun), cache, begun, given)
        return Progress(lengths, begun.width, progress.pads_left, done=begun.done)

    def _step(
        self, tokens: npt.NDArray[np.int64], cache: Cache, progress: Progress, given: Mapping[str, Array]
    ) -> Array:
        """Logits, [sequences, tokens, vocabulary]; the cache and the progress go on."""
        feeds = {**self._signature.inputs.feeds(tokens, progress), **given}
        length = progress.done + tokens.shape[1]
        results = cache.run(feeds, progress.done, length)
        progress.done = length
        logits = results[self._signature.logits]
        return logits if logits.ndim == 3 else logits[:, None]

    def __reduce__(self) -> Any:
        refuse_copies("a decoder")


def _ends(eos: int | Iterable[int] | None) -> frozenset[int]:
    """The tokens that end a sequence."""
    if eos is None:
        return frozenset()
    listed = np.asarray(list(eos) if isinstance(eos, Iterable) and not isinstance(eos, np.ndarray) else eos)
    if listed.size and listed.dtype.kind not in "iu":
        raise UsageError(f"`eos` is {eos!r}; pass a token id, or several")
    return frozenset(listed.reshape(-1).tolist())


def _prompts(ids: Ids) -> tuple[list[npt.NDArray[np.int64]], bool]:
    """Each prompt as an array, and whether several were asked for."""
    if not isinstance(ids, Iterable) or (isinstance(ids, np.ndarray) and ids.ndim == 0):
        raise UsageError(f"the prompt is {ids!r}; pass a list of token ids")
    items: list[Any] = list(ids)
    is_batch = bool(items) and not all(isinstance(token, (Integral, float)) for token in items)
    listed = items if is_batch else [items]
    prompts = []
    for number, prompt in enumerate(listed):
        where = f"prompt {number}" if is_batch else "the prompt"
        try:
            array = np.asarray(prompt)
        except ValueError as error:
            raise UsageError(f"{where} is no list of token ids") from error
        if array.size == 0:
            raise UsageError(f"{where} is empty; a decoder needs a token to begin with")
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise UsageError(f"{where} is {array.dtype} of shape {list(array.shape)}; pass a list of token ids")
        if int(array.min()) < 0:
            raise UsageError(f"{where} has the token id {int(array.min())}; ids are 0 or more")
        prompts.append(array.astype(np.int64))
    return prompts, is_batch


def _padded(prompts: Sequence[npt.NDArray[np.int64]], progress: Progress) -> npt.NDArray[np.int64]:
    tokens = np.zeros((len(prompts), progress.width), np.int64)
    for row, prompt in zip(tokens, prompts, strict=True):
        if progress.pads_left:
            row[progress.width - len(prompt) :] = prompt
        else:
            row[: len(prompt)] = prompt
    return tokens
