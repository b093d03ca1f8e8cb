"""Torch kernels of operators on images and their windows."""
