"""Kant from Python: `from kant.client import Kant`. What it takes and gives are the types of `kant.service.routes`."""

from kant.client.kant import AsyncJob, AsyncKant, Job, Jobs, Kant

__all__ = ["AsyncJob", "AsyncKant", "Job", "Jobs", "Kant"]
