"""GPT-3 in torch: Small, Medium and 1.3B (called XL where it was published).

Brown et al., "Language Models are Few-Shot Learners" (2020), Table 2.1, with dense attention in every layer, as in
GPT-2 and in the paper's Table 14; GELU is the exact one. Table 2.1 gives 1.3B 24 heads of 128, which do not make up its
d_model of 2048; here it has 16 of them. The table of positions has 1024 rows, or as many as a longer sequence needs.

Parameters carry the names of GPT-2's checkpoints (``wte``, ``h.0.attn.c_attn``, ``ln_f``), whose weights are the
transposes of those of ``nn.Linear`` here. The LM head is the table of tokens: one parameter, and one initializer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from sift_onnx.models.attention import attend
from sift_onnx.models.sizes import check_size, scaled

__all__ = ["GPT", "gpt3_1_3b", "gpt3_medium", "gpt3_small"]

POSITIONS = 1024
# Added to a score, it leaves no weight after the softmax; unlike an infinity, it cannot become NaN.
MASKED = torch.finfo(torch.float32).min


class Attention(nn.Module):
    """Causal self-attention: ``[N, T, heads * head_size]`` in and out."""

    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads, self.head_size, self.size = heads, head_size, heads * head_size
        self.c_attn = nn.Linear(self.size, 3 * self.size)
        self.c_proj = nn.Linear(self.size, self.size)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        query, key, value = self.c_attn(x).split(self.size, dim=-1)
        out: Tensor = self.c_proj(attend(query, key, value, self.heads, self.head_size, bias))
        return out


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them: ``[N, T, size]`` in and out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(size, 4 * size)
        self.c_proj = nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(functional.gelu(self.c_fc(x)))
        return out


class Layer(nn.Module):
    """Attention and linear layers, each after a layer normalization and with a shortcut."""

    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        size = heads * head_size
        self.ln_1 = nn.LayerNorm(size)
        self.attn = Attention(heads, head_size)
        self.ln_2 = nn.LayerNorm(size)
        self.mlp = FeedForward(size)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), bias)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    """A decoder-only language model: token ids ``[N, T]`` to scores of the next token ``[N, T, vocabulary]``.

    Args:
        layers: how many there are.
        heads: of attention, in each layer.
        head_size: features of a head; d_model is ``heads * head_size``, d_ff four times that.
        vocabulary: number of tokens.
        positions: the longest sequence.

    Raises:
        UsageError: a size is out of range.
    """

    def __init__(self, layers: int, heads: int, head_size: int, vocabulary: int, positions: int = POSITIONS) -> None:
        super().__init__()
        for name, size in (("layers", layers), ("num_classes", vocabulary), ("sequence", positions)):
            check_size(name, size)
        size = heads * head_size
        self.wte = nn.Embedding(vocabulary, size)
        self.wpe = nn.Embedding(positions, size)
        self.h = nn.ModuleList(Layer(heads, head_size) for _ in range(layers))
        self.ln_f = nn.LayerNorm(size)
        self.lm_head = nn.Linear(size, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        self._initialize()

    def _initialize(self) -> None:
        """As GPT-2: normal of 0.02, and what is added to the residual stream by the root of the number of additions."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                scale = math.sqrt(2 * len(self.h)) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.wte(input_ids) + self.wpe(positions)
        # Of the key in each column for the query in each row: nothing, or all, is taken from it.
        bias = torch.where(positions <= positions.unsqueeze(1), 0.0, MASKED)
        for layer in self.h:
            x = layer(x, bias)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


def _gpt(heads: int, head_size: int, width: float, vocabulary: int, layers: int, sequence: int) -> GPT:
    return GPT(layers, heads, scaled(head_size, width, "features of a head"), vocabulary, max(POSITIONS, sequence))


def gpt3_small(width: float = 1.0, num_classes: int = 50257, *, layers: int = 12, sequence: int = POSITIONS) -> GPT:
    """GPT-3 Small: 124,439,808 parameters; ``width`` multiplies the size of the 12 heads, and with it d_model."""
    return _gpt(12, 64, width, num_classes, layers, sequence)


def gpt3_medium(width: float = 1.0, num_classes: int = 50257, *, layers: int = 24, sequence: int = POSITIONS) -> GPT:
    """GPT-3 Medium: 354,823,168 parameters; ``width`` multiplies the size of the 16 heads, and with it d_model."""
    return _gpt(16, 64, width, num_classes, layers, sequence)


def gpt3_1_3b(width: float = 1.0, num_classes: int = 50257, *, layers: int = 24, sequence: int = POSITIONS) -> GPT:
    """GPT-3 1.3B: 1,313,626,112 parameters; ``width`` multiplies the size of the 16 heads, and with it d_model."""
    return _gpt(16, 128, width, num_classes, layers, sequence)
