"""Kant: one scheduling core for AI clusters, live and in simulated time."""

__version__ = "0.1.0"
