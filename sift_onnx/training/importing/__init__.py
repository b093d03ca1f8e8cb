"""From an ONNX model to a torch module."""
