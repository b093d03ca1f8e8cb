"""onnxruntime's quantizers, with masks kept and accuracy before and after."""
