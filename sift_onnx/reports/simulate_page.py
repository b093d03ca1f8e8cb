"""A simulation as one self-contained page of HTML."""

from __future__ import annotations

from sift_onnx.records.simulate import SimulationReport
from sift_onnx.reports.page.frame import Section, document
from sift_onnx.reports.sections.simulation import simulation_html, simulation_words

__all__ = ["simulate_page"]


def simulate_page(report: SimulationReport) -> str:
    """The page as text.

    Args:
        report: what ``simulate`` reports, with ``maps`` and ``sweep`` where they are to be shown.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    section = Section("Simulation", simulation_html(report, "simulation"))
    return document(f"{report.model} on {report.preset}", simulation_words(report), [section])
