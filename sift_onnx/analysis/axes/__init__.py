"""The algebra of axis sizes, which knows no ONNX: sizes, equations between them, solutions."""
