"""Decoders that are too large to store, as workloads: layers by shape, masks sampled, no weight ever made.

Sparse Wide at sparsity ``s`` scales every hidden size by ``k = sqrt(1 / (1 - s))`` (Sparse-IFT, section 2); each matrix
keeps as many non-zeros as the original had weights. Embedding and head stay dense. Layers of one shape share one
sampled mask: a sum over thousands of rows does not tell one draw from another.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from sift_onnx.backends.dataflow.workloads.decoding import DecodeWorkload, check_decode, decode_workload
from sift_onnx.backends.dataflow.workloads.matrix_maps import IndexMap, matrix_maps
from sift_onnx.backends.dataflow.workloads.pattern import FullPattern, Pattern, SampledPattern
from sift_onnx.backends.dataflow.workloads.workload import SparseProduct, WeightlessOp, Workload
from sift_onnx.errors import UsageError
from sift_onnx.settings.convert import convert

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Decoder", "available_decoders", "decoder_steps", "decoder_workload", "load_decoder"]

Count = Annotated[int, Meta(ge=1)]
_FOLDER = Path(__file__).parent / "decoders"
# Steps of a SIMD lane per element, as weightless_costs.py has them.
_NORM, _SOFTMAX, _GELU = 8, 8, 10
# Which of the three shapes each matrix of a layer has.
_MATRICES = dict.fromkeys(("q", "k", "v", "proj"), "attention") | {"up": "up", "down": "down"}


@dataclass(frozen=True)
class Published:
    """A published speed-up, printed beside the simulated one.

    Attributes:
        wide: sparsity of Sparse Wide.
        preset: of the machine.
        speedup: over the same model executed dense.
        source: of it.
        remark: what it must not be taken for.
    """

    wide: float
    preset: str
    speedup: float
    source: str
    remark: str


@dataclass(frozen=True)
class Decoder:
    """The sizes of a GPT.

    Attributes:
        name: of the model.
        source: where the sizes come from.
        layers: how many.
        hidden: features between layers.
        feed_forward: features inside a feed-forward block.
        heads: of attention.
        vocabulary: rows of the embedding and of the head.
        sequence: tokens per item.
        batch: items per step.
        published: measured speed-ups of training steps.
    """

    name: str
    source: str
    layers: Count
    hidden: Count
    feed_forward: Count
    heads: Count
    vocabulary: Count
    sequence: Count
    batch: Count
    published: tuple[Published, ...] = ()


def available_decoders() -> tuple[str, ...]:
    """The descriptions that come with the package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def load_decoder(name: str | Path) -> Decoder:
    """A decoder by name, or from a file that ends in ``.toml``.

    Raises:
        UsageError: there is no such decoder, or a size is missing, unknown or below 1.
    """
    path = Path(name) if str(name).endswith(".toml") else _FOLDER / f"{name}.toml"
    if path.parent == _FOLDER and path.stem not in available_decoders():
        raise UsageError(f"no decoder {str(name)!r}; there are {', '.join(available_decoders())}")
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read the decoder {path}: {getattr(error, 'strerror', None) or error}") from error
    return convert(document, Decoder, where=str(path))


def decoder_workload(decoder: Decoder, wide: float = 0.0, batch: int | None = None, *, seed: int = 0) -> Workload:
    """What a step of training ``decoder``, or a run on whole sequences, asks of a machine.

    Args:
        decoder: the original.
        wide: sparsity of Sparse Wide; 0 is the original.
        batch: items per step; the decoder's own by default.
        seed: of the sampled masks.

    Raises:
        UsageError: ``wide`` outside of ``[0, 1)``, or ``batch`` below 1.
    """
    return _Sized.of(decoder, wide, batch, seed).at(decoder.sequence, 0)


def decoder_steps(
    decoder: Decoder, decode: tuple[int, int], wide: float = 0.0, batch: int | None = None, *, seed: int = 0
) -> DecodeWorkload:
    """What ``decoder`` asks of a machine when it generates, with a cache.

    Args:
        decoder: the original.
        decode: tokens of each prompt, and new ones of each sequence.
        wide: see :func:`decoder_workload`.
        batch: sequences that are generated together; 1 by default, since the decoder's own is one of training.
        seed: see :func:`decoder_workload`.

    Raises:
        UsageError: as of :func:`decoder_workload`, or ``decode`` is out of range.
    """
    prompt, tokens = check_decode(decode)
    sized = _Sized.of(decoder, wide, 1 if batch is None else batch, seed)
    return decode_workload(sized.at, prompt, tokens, 2 * decoder.layers * sized.items * sized.hidden)


@dataclass(frozen=True)
class _Sized:
    """A decoder with its widths and its masks.

    Attributes:
        decoder: the original.
        wide: sparsity of Sparse Wide.
        items: sequences.
        hidden: features between layers.
        inner: features inside a feed-forward block.
        patterns: of each matrix of a layer, and that of its gradient.
        head: likewise.
    """

    decoder: Decoder
    wide: float
    items: int
    hidden: int
    inner: int
    patterns: dict[str, tuple[Pattern, IndexMap]]
    head: tuple[Pattern, IndexMap]

    @classmethod
    def of(cls, decoder: Decoder, wide: float, batch: int | None, seed: int) -> _Sized:
        """Errors as :func:`decoder_workload` has them."""
        if not 0 <= wide < 1:
            raise UsageError(f"a sparsity of {wide}; it must be at least 0 and below 1")
        items = decoder.batch if batch is None else batch
        if items < 1:
            raise UsageError(f"batch is {items}; it must be at least 1")
        factor = (1 / (1 - wide)) ** 0.5
        hidden, inner = round(decoder.hidden * factor), round(decoder.feed_forward * factor)
        shapes = {
            "attention": ((hidden, hidden), decoder.hidden**2),
            "up": ((inner, hidden), decoder.hidden * decoder.feed_forward),
            "down": ((hidden, inner), decoder.hidden * decoder.feed_forward),
        }
        patterns: dict[str, tuple[Pattern, IndexMap]] = {}
        for key, (shape, nnz) in shapes.items():
            forward, backward = matrix_maps(shape, 0, 1)
            full = nnz == shape[0] * shape[1]
            patterns[key] = (FullPattern(forward) if full else SampledPattern(forward, nnz, seed, key), backward)
        head, head_gradient = matrix_maps((decoder.vocabulary, hidden), 0, 1)
        return cls(decoder, wide, items, hidden, inner, patterns, (FullPattern(head), head_gradient))

    def at(self, new: int, past: int) -> Workload:
        """A run on ``new`` tokens of each sequence, behind ``past`` in the cache."""
        decoder, hidden, tokens = self.decoder, self.hidden, self.items * new
        products: list[SparseProduct] = []
        table = decoder.vocabulary * hidden
        ops = [WeightlessOp("embedding", "Gather", "lookup", 0, tokens * hidden, tokens * hidden, 0, table)]
        for layer in range(decoder.layers):
            for name, key in _MATRICES.items():
                pattern, backward = self.patterns[key]
                label = f"layers.{layer}.{name}"
                products.append(SparseProduct(label, label, "MatMul", "matmul", pattern, backward, tokens))
            ops += self._weightless(f"layers.{layer}", new, new + past)
        ops.append(_norm("norm", tokens * hidden))
        head, head_gradient = self.head
        products.append(SparseProduct("head", "head", "MatMul", "matmul", head, head_gradient, tokens))
        return Workload(
            name=f"{decoder.name}, {f'Sparse Wide {self.wide:.0%}' if self.wide else 'original'}",
            batch=self.items,
            products=tuple(products),
            weightless=tuple(ops),
            assumptions=("layers of one shape share one sampled mask",) if self.wide else (),
        )

    def _weightless(self, layer: str, new: int, positions: int) -> list[WeightlessOp]:
        """Of a layer, for ``new`` tokens of each sequence, each of which attends to ``positions``."""
        tokens = self.items * new
        features, inner = tokens * self.hidden, tokens * self.inner
        keys = self.items * positions * self.hidden
        # Sparse Wide grows the size of a head, not their number: there are as many scores as in the original.
        scores, macs = tokens * positions * self.decoder.heads, tokens * positions * self.hidden
        return [
            _norm(f"{layer}.norm1", features),
            WeightlessOp(f"{layer}.scores", "MatMul", "product", macs, features + keys, scores),
            WeightlessOp(f"{layer}.softmax", "Softmax", "reduction", _SOFTMAX * scores, scores, scores, 2),
            WeightlessOp(f"{layer}.context", "MatMul", "product", macs, keys + scores, features),
            WeightlessOp(f"{layer}.add1", "Add", "elementwise", features, 2 * features, features),
            _norm(f"{layer}.norm2", features),
            WeightlessOp(f"{layer}.gelu", "Gelu", "elementwise", _GELU * inner, inner, inner),
            WeightlessOp(f"{layer}.add2", "Add", "elementwise", features, 2 * features, features),
        ]


def _norm(name: str, elements: int) -> WeightlessOp:
    return WeightlessOp(name, "LayerNormalization", "reduction", _NORM * elements, elements, elements, 2)
