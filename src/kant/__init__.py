"""Kant: one scheduling core for AI clusters, live and in simulated time."""

__version__ = "0.2.0"
