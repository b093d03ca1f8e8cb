"""BERT Small in torch, with both heads of its pre-training.

Devlin et al., "BERT" (2018), in the sizes of the paper's Table 16. Its 29.1M parameters are those of the encoder, the
pooler, the head that predicts masked tokens and the one that predicts whether a sentence follows another, as in the
implementation that the paper trains: 29,058,876 for 30522 tokens. The decoder of the former head is the table of
tokens: one parameter, and one initializer. The table of positions has 512 rows, or as many as a longer sequence needs.

Parameters carry the names that checkpoints in circulation use: ``bert.encoder.layer.0.attention.self.query``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sift_onnx.models.attention import attend
from sift_onnx.models.sizes import check_size, scaled

__all__ = ["BertForPreTraining", "bert_small"]

POSITIONS = 512
TOKEN_TYPES = 2
EPSILON = 1e-12
# Added to a score, it leaves no weight after the softmax, unless all positions are masked.
MASKED = torch.finfo(torch.float32).min


class Embeddings(nn.Module):
    """Sum of the vectors of tokens, positions and token types, normalized: ``[N, T]`` to ``[N, T, size]``."""

    def __init__(self, vocabulary: int, positions: int, size: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, size)
        self.position_embeddings = nn.Embedding(positions, size)
        self.token_type_embeddings = nn.Embedding(TOKEN_TYPES, size)
        self.LayerNorm = nn.LayerNorm(size, eps=EPSILON)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        out: Tensor = self.LayerNorm(x + self.position_embeddings(positions))
        return out


class SelfAttention(nn.Module):
    """Attention before the linear layer that mixes the heads: ``[N, T, heads * head_size]`` in and out."""

    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, head_size
        size = heads * head_size
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return attend(self.query(x), self.key(x), self.value(x), self.heads, self.head_size, bias)


class Output(nn.Module):
    """A linear layer, whose result is added to a shortcut and normalized."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)
        self.LayerNorm = nn.LayerNorm(outputs, eps=EPSILON)

    def forward(self, x: Tensor, shortcut: Tensor) -> Tensor:
        out: Tensor = self.LayerNorm(self.dense(x) + shortcut)
        return out


class Attention(nn.Module):
    """Self-attention and its shortcut."""

    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        self.self = SelfAttention(heads, head_size)
        self.output = Output(heads * head_size, heads * head_size)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        out: Tensor = self.output(self.self(x, bias), x)
        return out


class Dense(nn.Module):
    """A linear layer under the name that it has in checkpoints."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(x)
        return out


class Layer(nn.Module):
    """Attention and two linear layers with a GELU between them, each normalized after its shortcut."""

    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        size = heads * head_size
        self.attention = Attention(heads, head_size)
        self.intermediate = Dense(size, 4 * size)
        self.output = Output(4 * size, size)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention(x, bias)
        out: Tensor = self.output(functional.gelu(self.intermediate(x)), x)
        return out


class Encoder(nn.Module):
    """The layers, one after the other."""

    def __init__(self, layers: int, heads: int, head_size: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(heads, head_size) for _ in range(layers))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        for layer in self.layer:
            x = layer(x, bias)
        return x


class Bert(nn.Module):
    """Embeddings, encoder and pooler: states of all positions ``[N, T, size]``, and one of each item ``[N, size]``."""

    def __init__(self, layers: int, heads: int, head_size: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        size = heads * head_size
        self.embeddings = Embeddings(vocabulary, positions, size)
        self.encoder = Encoder(layers, heads, head_size)
        self.pooler = Dense(size, size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        bias = (1.0 - attention_mask.unsqueeze(1).unsqueeze(1).to(torch.float32)) * MASKED
        states = self.encoder(self.embeddings(input_ids, token_type_ids), bias)
        return states, torch.tanh(self.pooler(states.select(1, 0)))


class Transform(nn.Module):
    """What a state goes through before it is compared with the table of tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.LayerNorm(functional.gelu(self.dense(x)))
        return out


class Predictions(nn.Module):
    """Scores of the tokens: ``[N, T, size]`` to ``[N, T, vocabulary]``."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.transform = Transform(table.embedding_dim)
        self.decoder = nn.Linear(table.embedding_dim, table.num_embeddings)
        self.decoder.weight = table.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.decoder(self.transform(x))
        return logits


class Heads(nn.Module):
    """The two heads of pre-training."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.predictions = Predictions(table)
        self.seq_relationship = nn.Linear(table.embedding_dim, 2)

    def forward(self, states: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        return self.predictions(states), self.seq_relationship(pooled)


class BertForPreTraining(nn.Module):
    """BERT: token ids, attention mask and token types ``[N, T]`` to scores of tokens and of the next sentence.

    Outputs are ``[N, T, vocabulary]`` and ``[N, 2]``.

    Args:
        layers: how many there are.
        heads: of attention, in each layer.
        head_size: features of a head.
        vocabulary: number of tokens.
        positions: the longest sequence.

    Raises:
        UsageError: a size is out of range.
    """

    def __init__(self, layers: int, heads: int, head_size: int, vocabulary: int, positions: int = POSITIONS) -> None:
        super().__init__()
        for name, size in (("layers", layers), ("num_classes", vocabulary), ("sequence", positions)):
            check_size(name, size)
        self.bert = Bert(layers, heads, head_size, vocabulary, positions)
        self.cls = Heads(self.bert.embeddings.word_embeddings)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        states, pooled = self.bert(input_ids, attention_mask, token_type_ids)
        scores: tuple[Tensor, Tensor] = self.cls(states, pooled)
        return scores


def bert_small(
    width: float = 1.0, num_classes: int = 30522, *, layers: int = 4, sequence: int = POSITIONS
) -> BertForPreTraining:
    """BERT Small: 29,058,876 parameters; ``width`` multiplies the size of the 8 heads, and with it all others."""
    head_size = scaled(64, width, "features of a head")
    return BertForPreTraining(layers, 8, head_size, num_classes, max(POSITIONS, sequence))
