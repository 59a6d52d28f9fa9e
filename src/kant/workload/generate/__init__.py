"""Generators: workloads drawn after the published facts of real clusters."""

from kant.workload.generate.draw import generate
from kant.workload.generate.rows import ROWS

__all__ = ["ROWS", "generate"]
