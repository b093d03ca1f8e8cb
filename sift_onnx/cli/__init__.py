"""The command line: what verbs share, and in ``verbs`` a file for each."""

from sift_onnx.cli.app import main

__all__ = ["main"]
