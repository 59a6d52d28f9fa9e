"""One run, or several side by side, as one HTML file that opens anywhere without a network."""

from kant.report.bundle import write_report

__all__ = ["write_report"]
