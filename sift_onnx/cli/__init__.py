"""The command line: one file per verb."""

from sift_onnx.cli.app import main

__all__ = ["main"]
