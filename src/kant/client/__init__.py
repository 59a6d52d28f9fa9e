"""Kant from Python: `from kant.client import Kant`. Arguments and results have the types of `kant.service.routes`."""

from kant.client.kant import AsyncJob, AsyncKant, Job, Jobs, Kant

__all__ = ["AsyncJob", "AsyncKant", "Job", "Jobs", "Kant"]
