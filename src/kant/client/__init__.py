"""Kant from Python: `from kant.client import Kant`."""

from kant.client.kant import AsyncJob, AsyncKant, Job, Jobs, Kant

__all__ = ["AsyncJob", "AsyncKant", "Job", "Jobs", "Kant"]
