"""The operator ``com.example::Snake``, and what sift-onnx has to know to work with it.

``Snake(x, alpha) = x + sin(alpha x) ** 2 / alpha``, with ``alpha [C]`` along axis 1 of ``x [N, C, ...]`` (Ziyin et al.
2020, arXiv:2006.08195).
"""
