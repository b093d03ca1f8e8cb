"""From a trained torch module back to the ONNX model."""
