"""README.md of this folder, from results/*.json, results/tokens/*.json and results/perplexity/*.json.

python benchmarks/decode/page.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

__all__ = ["page"]

PAGE = Path(__file__).with_name("README.md")
RESULTS = Path(__file__).parent / "results"
TOKENS = RESULTS / "tokens"
PERPLEXITY = RESULTS / "perplexity"
_INTRODUCTION = """\
# Weights as they come from memory

One row of activations passes through a chain of {layers} products of {width} x {width} with ReLU. As dense floats, the
weights take {gigabytes:.1f} GB. {threads} threads; all rows of a table are measured in turns in one process.

"""
_READING = """
Times are the minimum of the turns, in milliseconds. Ratios are relative to onnxruntime on the same file, with dense
floats. *Read* compares with a plain loop that reads as many bytes as our weights take, on the same threads and in turns
with the products: 100 % is its rate. Weights of 8 and 4 bits in onnxruntime are dense MatMulNBits in blocks of 32.
Weights that are smaller than the last-level cache may stay in it, for the loop as well as for the products.
"""
_REPEAT = """
## Repeat it

    python benchmarks/decode/decode_bytes.py --layers 8 --results benchmarks/decode/results/PROCESSOR.json
    python benchmarks/decode/tokens.py --shape 110m --results benchmarks/decode/results/tokens/PROCESSOR-110m.json
    python benchmarks/decode/tokens.py --shape 1.1b --results benchmarks/decode/results/tokens/PROCESSOR-1.1b.json
    python benchmarks/decode/perplexity.py --results benchmarks/decode/results/perplexity/PROCESSOR.json
    python benchmarks/decode/page.py
"""
_OF_TOKENS = """
## Tokens of decoders

Decoders in the shape of Llama with random pruned weights: 110 million parameters, and 1.1 billion in the shape of
TinyLlama. A token is a step of `Decoder.generate` after a prompt; all rows of a decoder are measured in turns in one
process. Times are medians over all tokens, and over first tokens, which include the whole prompt. Ratios are to
onnxruntime on the same file. *Read* is as above, for the minimum time. Since commit 55c29b4e, the CPU back end computes
the logits of a prompt's last token only, which are all that `Decoder` reads; onnxruntime runs the file as it is.

"""
_OF_BATCHES = """\
Tokens per second of a batch, relative to a single sequence. The sequences of a batch have different lengths:

"""
_OF_GREEDY = """\
Number of most likely tokens that equal those of onnxruntime on the same file, up to the first difference:

"""
_OF_PERPLEXITY = """
## Perplexity of weights of fewer bits

A GPT in the shape of GPT-3 Small at {scale} of its width, two layers, a vocabulary of bytes, made Sparse Wide at
{sparsity} % and trained on the source code of Python's standard library. Perplexity of the next byte on held-out files,
measured by `sift-onnx evaluate`.

"""
_OF_MEMORY = """\
Memory that opening the decoder adds to a process. For comparison: the weights that are held, the bytes of bits and
values alone, and the rest, that is the embedding and the cache:

"""


Documents = Sequence[Mapping[str, Any]]


def page(documents: Documents, of_tokens: Documents, of_perplexity: Documents) -> str:
    """The page."""
    first = documents[0]["rows"][0]
    gigabytes = 4e-9 * first["layers"] * first["width"] ** 2
    text = _INTRODUCTION.format(**first, gigabytes=gigabytes)
    for document in documents:
        text += f"{pages.measured_on(document)} {document.get('note', '')}".rstrip() + "\n\n"
        rows = {(row["sparsity"], row["name"]): row for row in document["rows"]}
        cells = []
        for (sparsity, name), row in rows.items():
            if name.endswith("read"):
                continue
            ms = row["least_ms"]
            ratio = ms / rows[sparsity, "onnxruntime"]["least_ms"]
            gigabytes_held = rate = share = ""
            if "bytes" in row:
                gigabytes_held = f"{1e-9 * row['bytes']:.2f}"
                rate = f"{1e-6 * row['bytes'] / ms:.1f}"
                share = f"{rows[sparsity, f'{name}, read']['least_ms'] / ms:.0%}"
            cells.append([f"{sparsity:.0%}", name, gigabytes_held, f"{ms:.2f}", f"{ratio:.2f}", rate, share])
        text += pages.table(("sparsity", "weights", "GB", "ms", "to onnxruntime", "GB/s", "read"), cells) + "\n"
    more = _tokens(of_tokens).rstrip("\n") + "\n" + _perplexity(of_perplexity)
    return text.rstrip("\n") + "\n" + _READING + more.rstrip("\n") + "\n" + _REPEAT


def _perplexity(documents: Documents) -> str:
    text = ""
    for document in documents:
        rows = document["rows"]
        share = f"1/{round(1 / rows[0]['scale'])}"
        text += _OF_PERPLEXITY.format(scale=share, sparsity=f"{100 * rows[0]['sparsity']:.0f}")
        text += f"{pages.measured_on(document)}\n\n"
        cells = [[row["name"], f"{row['perplexity']:.4f}", f"{row['top1']:.2%}"] for row in rows]
        text += pages.table(("weights", "perplexity", "most likely byte is right"), cells)
    return text


def _tokens(documents: Documents) -> str:
    text = _OF_TOKENS if documents else ""
    for document in documents:
        text += f"{pages.measured_on(document)} {document.get('note', '')}".rstrip() + "\n\n"
        timed = [row for row in document["rows"] if "ms" in row]
        whole = {_request(row): row for row in timed if row["name"] == "onnxruntime"}
        cells = []
        for row in timed:
            other = whole[_request(row)]
            held = f"{1e-9 * row['bytes']:.2f}" if "bytes" in row else ""
            read = f"{row['read_ms'] / row['least_ms']:.0%}" if "read_ms" in row else ""
            cells.append([
                row["shape"], f"{row['sparsity']:.0%}", str(row["batch"]), str(row["prompt"]), row["name"],
                f"{row['ms']:.2f}", f"{row['ms'] / other['ms']:.2f}", f"{1e3 * row['batch'] / row['ms']:.0f}",
                f"{row['first_ms']:.0f}", f"{row['first_ms'] / other['first_ms']:.2f}", held, read,
            ])  # fmt: skip
        heads = ("decoder", "sparsity", "batch", "prompt", "weights", "ms a token", "to onnxruntime", "tokens/s",
                 "first, ms", "to onnxruntime", "GB", "read")  # fmt: skip
        text += pages.table(heads, cells) + "\n" if cells else ""
        single = {_file(row): row for row in timed if row["batch"] == 1}
        cells = [
            [row["shape"], f"{row['sparsity']:.0%}", row["name"], str(row["batch"]),
             f"{row['batch'] * single[_file(row)]['ms'] / row['ms']:.2f}"]
            for row in timed if row["batch"] > 1 and _file(row) in single
        ]  # fmt: skip
        heads = ("decoder", "sparsity", "weights", "batch", "to one")
        text += _OF_BATCHES + pages.table(heads, cells) + "\n" if cells else ""
        cells = [
            [row["shape"], f"{row['sparsity']:.0%}", row["name"].partition(",")[0], f"{row['equal']} of {row['of']}"]
            for row in document["rows"] if "equal" in row
        ]  # fmt: skip
        text += _OF_GREEDY + pages.table(("decoder", "sparsity", "weights", "equal"), cells) + "\n" if cells else ""
        cells = [
            [row["shape"], f"{row['sparsity']:.0%}", row["name"].partition(",")[0], f"{row['resident_mb']:.0f}",
             f"{row['bytes'] / 2**20:.0f}", f"{row['table_mb']:.0f}", f"{row['rest_mb']:.0f}"]
            for row in document["rows"] if "resident_mb" in row
        ]  # fmt: skip
        heads = ("decoder", "sparsity", "weights", "process, MiB", "weights held", "bits and values", "the rest")
        text += _OF_MEMORY + pages.table(heads, cells) + "\n" if cells else ""
    return text


def _file(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("shape", "sparsity", "prompt", "threads", "name"))


def _request(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("shape", "sparsity", "batch", "prompt", "threads"))


def main() -> None:
    """Write the page."""
    found = ([pages.read(path) for path in sorted(folder.glob("*.json"))] for folder in (RESULTS, TOKENS, PERPLEXITY))
    PAGE.write_text(page(*found), encoding="utf-8")


if __name__ == "__main__":
    main()
