"""Machines: their parameters, and the presets that they are read from."""
