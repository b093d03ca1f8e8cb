"""A simulation as one self-contained page of HTML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sift_onnx.report.page.frame import Section, document
from sift_onnx.report.sections.simulation import simulation_html, simulation_words

__all__ = ["simulate_page"]


def simulate_page(data: Mapping[str, Any]) -> str:
    """The page as text.

    Args:
        data: the JSON document of ``sift-onnx simulate``, with ``maps`` and ``sweep`` where they are to be shown.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    section = Section("Simulation", simulation_html(data, "simulation"))
    return document(f"{data['model']} on {data['preset']}", simulation_words(data), [section])
