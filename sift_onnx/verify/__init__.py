"""What `check` does: ONNX checks, shapes, outputs, and samples alone and in a batch."""
