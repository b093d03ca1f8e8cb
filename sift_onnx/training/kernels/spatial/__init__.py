"""Torch kernels of operators on images: windows, samples and boxes."""
