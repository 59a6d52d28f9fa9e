"""Generators: workloads drawn from the published statistics of real clusters."""

from kant.workload.generate.draw import generate
from kant.workload.generate.rows import ROWS

__all__ = ["ROWS", "generate"]
