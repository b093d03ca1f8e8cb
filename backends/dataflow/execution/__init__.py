"""Functional execution: weighted nodes as CSR times activations, everything else in onnxruntime."""
