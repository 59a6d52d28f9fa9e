"""Tools for testing Kant, or one's own policies on it.

`check_policy` is the suite that every order, discipline and placement policy must pass; `Harness` is a driver for
tests, which may refuse decisions; the builders make small clusters, jobs, workloads and profiles in one call.
Strategies for Hypothesis are in `kant.testing.strategies`, the only module that needs Hypothesis.
"""

from kant.testing.builders import (
    make_cluster,
    make_group,
    make_job,
    make_jobs,
    make_named_policy,
    make_profile,
    submitted,
)
from kant.testing.conformance import NonconformanceError, check_policy
from kant.testing.harness import Harness, always, at_random, never

__all__ = [
    "Harness",
    "NonconformanceError",
    "always",
    "at_random",
    "check_policy",
    "make_cluster",
    "make_group",
    "make_job",
    "make_jobs",
    "make_named_policy",
    "make_profile",
    "never",
    "submitted",
]
