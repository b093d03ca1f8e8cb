"""A whole model file: read without its large tensors, and written tensor by tensor."""
