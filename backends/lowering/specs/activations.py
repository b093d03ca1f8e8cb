"""Activations that operators apply to their results."""

from __future__ import annotations

__all__ = ["NO_ACTIVATION", "RELU", "Activation"]

# Its kind, and two parameters: bounds of a clip, slopes.
Activation = tuple[str, float, float]

NO_ACTIVATION: Activation = ("none", 0.0, 0.0)
RELU: Activation = ("clip", 0.0, float("inf"))
