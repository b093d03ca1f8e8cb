"""Rewrites an ONNX model into a bigger, sparser one at the same FLOPs."""
