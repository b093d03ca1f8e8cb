"""Torch kernels of operators on single elements."""
