"""What is said where the package that an adapter is for is not there."""

from __future__ import annotations

from sift_onnx.errors import MissingExtraError

__all__ = ["missing"]


def missing(package: str, error: ImportError) -> MissingExtraError:
    """The error of an adapter whose host cannot be imported.

    Args:
        package: as pip knows it.
        error: of the import.
    """
    return MissingExtraError(f"this adapter needs {package} ({error}); pip install {package}")
