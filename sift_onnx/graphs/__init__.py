"""Between ONNX and graphsurgeon, losing nothing, and what a graph of a stranger has to keep to."""
