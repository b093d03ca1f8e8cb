"""``python -m sift_onnx`` is ``sift-onnx``."""

from sift_onnx.cli import main

if __name__ == "__main__":
    main(prog_name="sift-onnx")
