"""Torch kernels of operators that move elements and compute nothing of them."""
