"""How masks lie in a model file beside dense tensors: as a metadata entry."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sift_onnx.constants import MaskedConstant
from sift_onnx.errors import ModelReadError
from sift_onnx.sparse import encode_positions

__all__ = ["MASKS_KEY", "mask_records", "text_of_masks"]

# Entry of the model's metadata_props that lists the masked weights of dense storage.
MASKS_KEY = "sift_onnx.masks"


def text_of_masks(masked: Mapping[str, MaskedConstant]) -> str:
    """The metadata entry: the masked weights of the model, each with its active zeros."""
    zeros = {name: constant._values.weight.active_zeros() for name, constant in masked.items()}
    return json.dumps({name: encode_positions(found) if found.size else "" for name, found in zeros.items()})


def mask_records(text: str | None) -> dict[str, str]:
    """The inverse of :func:`text_of_masks`: encoded active zeros by initializer name.

    Raises:
        ModelReadError: the text is damaged.
    """
    if text is None:
        return {}
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelReadError(f"the metadata entry {MASKS_KEY!r} is damaged: {error}") from error
    if not isinstance(records, dict) or not all(isinstance(v, str) for v in records.values()):
        raise ModelReadError(f"the metadata entry {MASKS_KEY!r} is damaged: it is no table of masks")
    return records
