"""Simulation settings that do not concern the scheduler: the `[simulation]` table of a profile."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from kant.model.errors import InputError
from kant.scheduler.registry import make_settings


class SimOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """How jobs run in simulated time, and what an experiment does that a real cluster would not.

    - `speed`: `steady` (a job runs its run time), `placed` (its run time is that at the best placement, and longer
      elsewhere: placement/cost/communication.py) or `interval-overhead` (it loses its overhead in every interval
      between two events; Muri's simulator).
    - `slowdown_permille`: run times are multiplied by this over 1000. `extra_runtime_s` is added to each.
    - `resume_cost`: pairs (GPUs up to, seconds) of extra work that a preemption costs.
    - `merge_ends`: jobs whose ends lie within this relative distance end together (`interval-overhead` only).
    - `recheck_s`: after a change, cycle again this long after it while jobs wait (0: only when something happens).
    - `shape`: how a job with only a total of GPUs becomes a gang: `node` (whole nodes and a remainder) or `gpu`
      (pods of one GPU, which may lie anywhere).
    - `estimates`: what policies know of run times: `perfect`, `limit` (the user's), or `none`. `estimate_factor`: each
      is multiplied by a random factor per job, from 1 up to this (users overestimate).
    - `enforce_limits`: a job that has run for the trace's limit is stopped. `retries`: how often it is retried.
    - `checkpoint_s`: interval between a job's checkpoints; a job that is stopped loses its work since the last one. -1:
      no checkpoints, so it loses all its work; not given: nothing is lost, as in published simulators.
    - `mtbf_days`: mean time between two faults of one node (0: no faults), `repair_h`: mean duration of a fault.
      `gpu_fault_share`: share of the faults that cost the node one GPU; the others cost the whole node.
    - `static`: pods arrive one by one in random order and never depart. `inflate`: pods are drawn again, or left out,
      until they request this share of the cluster's GPUs. `typical_share`: fragmentation is measured against the
      most frequent pods of this share. `typical_given`: policies get the typical pods in advance; else they learn them
      from the arrivals, as policies that always learn (`kant`) do unless the run is static.
    - `quantile`: `linear` interpolation, or `lower` (the element at index ⌊n p⌋).
    """

    speed: Literal["steady", "placed", "interval-overhead"] = "steady"
    slowdown_permille: int = 1000
    extra_runtime_s: int = 0
    resume_cost: tuple[tuple[int, float], ...] = ()
    merge_ends: float = 0.0
    recheck_s: int = 0
    shape: Literal["node", "gpu"] = "node"
    estimates: Literal["perfect", "limit", "none"] = "perfect"
    estimate_factor: float = 1.0
    enforce_limits: bool = False
    retries: int = 0
    checkpoint_s: int | None = None
    mtbf_days: float = 0.0
    repair_h: float = 4.0
    gpu_fault_share: float = 0.0
    static: bool = False
    inflate: float = 0.0
    typical_share: float = 0.95
    typical_given: bool = True
    quantile: Literal["linear", "lower"] = "linear"


def read_options(settings: dict[str, Any], where: str) -> SimOptions:
    """Return the options in the `[simulation]` table of a profile. Raises InputError naming the field."""
    options: SimOptions = make_settings(SimOptions, settings, f"{where}: simulation")
    checks = (
        ("slowdown_permille", 1 <= options.slowdown_permille <= 1_000_000, "1 to 1000000"),
        ("extra_runtime_s", 0 <= options.extra_runtime_s <= 10**9, "0 to 10^9 seconds"),
        ("merge_ends", 0 <= options.merge_ends < 1, "a share from 0 up to 1"),
        ("recheck_s", 0 <= options.recheck_s <= 10**9, "0 to 10^9 seconds"),
        ("inflate", 0 <= options.inflate <= 100, "a share from 0 to 100"),
        ("estimate_factor", 1 <= options.estimate_factor <= 1e6, "a factor from 1 to 10^6"),
        ("retries", 0 <= options.retries <= 10**9, "0 to 10^9"),
        ("checkpoint_s", _is_checkpoint(options.checkpoint_s), "1 to 10^9 seconds, or -1: no checkpoints"),
        (
            "checkpoint_s",
            options.checkpoint_s is None or (options.speed != "interval-overhead" and not options.static),
            "none with the speed interval-overhead, nor in a static run",
        ),
        ("mtbf_days", options.mtbf_days == 0 or 0.001 <= options.mtbf_days <= 1e6, "0, or 0.001 to 10^6 days"),
        (
            "mtbf_days",
            not options.mtbf_days or (options.speed != "interval-overhead" and not options.static),
            "none with the speed interval-overhead, nor in a static run",
        ),
        ("repair_h", 0 < options.repair_h <= 1e6, "more than 0 and up to 10^6 hours"),
        ("gpu_fault_share", 0 <= options.gpu_fault_share <= 1, "a share from 0 to 1"),
        ("typical_share", 0 < options.typical_share <= 1, "a share above 0 and up to 1"),
        (
            "resume_cost",
            all(g > 0 and 0 <= s <= 1e9 for g, s in options.resume_cost),
            "pairs (GPUs > 0, seconds >= 0)",
        ),
    )
    for field, holds, expected in checks:
        if not holds:
            raise InputError(f"{where}: simulation.{field}", expected, getattr(options, field))
    return options


def _is_checkpoint(seconds: int | None) -> bool:
    return seconds is None or seconds == -1 or 1 <= seconds <= 10**9
