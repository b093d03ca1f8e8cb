"""Volumes, [n, c, d, h, w], as images: 3-D convolutions, and what lies between them, for kernels of two dimensions.

A kernel of one frame is a convolution of each frame, and a kernel of one pixel one of an image with a row per frame.
Any other one is a convolution of frames that have the channels of several frames. The products are the same, so masks
move with the weights: :func:`~sift_onnx.backends.lowering.volumes.rewriting.volumes_as_images`.
"""

from sift_onnx.backends.lowering.volumes.rewriting import volumes_as_images

__all__ = ["volumes_as_images"]
