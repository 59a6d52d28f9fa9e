"""When a solver is asked for improvements: the tables `[fallback]` and `[defragment]` of a profile.

The solver runs in parallel to the scheduler, on a state that is out of date when it answers. Its proposal is an event
(`PlanProposed`), and the core decides about it (`scheduler/proposals.py`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kant.model.matching import Match

Seconds = Annotated[int, Meta(ge=1, le=10**9)]
ALL_JOBS = Match()


class Fallback(Struct, frozen=True, forbid_unknown_fields=True):
    """The packer of `kant pack` is asked for jobs that have waited for `wait_s`, at most once every `every_s`.

    The packer takes the first `most_jobs` of them in the profile's order, and has `limit_s` deterministic seconds.
    Running jobs may move if they are preemptible and match `jobs`, at most `moves` of them; no job is stopped for good.
    In a simulation the answer comes after `delay_s`.

    Source: Priority Matters (arXiv 2511.08373).
    """

    wait_s: Seconds = 1800
    every_s: Seconds = 600
    most_jobs: Annotated[int, Meta(ge=1, le=1000)] = 8
    moves: Annotated[int, Meta(ge=1, le=10_000)] = 8
    limit_s: Annotated[float, Meta(ge=0.01, le=3600)] = 1.0
    delay_s: Seconds = 5
    jobs: Match = ALL_JOBS


class Defragment(Struct, frozen=True, forbid_unknown_fields=True):
    """Every `every_s` seconds at most `moves` running jobs move together, so that partially used nodes become idle.

    A move costs the GPU time since the job's last checkpoint, plus that of `restart_s`. The worth of an idle node is
    its GPU time for as long as its jobs have run so far (at most `horizon_h` hours), times a frequency: how often
    waiting jobs wanted more idle nodes than there were. It is learned over `horizon_h` hours and is at least `floor`. A
    node is emptied if its worth is more than `gain` times the cost. With `leaves`, partially used leaves are emptied by
    the same rule; the frequency is how often a waiting gang required more idle nodes of one leaf than any leaf had.
    Running jobs may move if they are preemptible and match `jobs`. In a simulation the answer comes after `delay_s`.

    Source: VM rescheduling with a budget of migrations (VMR2L, arXiv 2505.17359), priced.
    """

    every_s: Seconds = 600
    moves: Annotated[int, Meta(ge=1, le=10_000)] = 8
    restart_s: Annotated[int, Meta(ge=0, le=10**6)] = 60
    horizon_h: Annotated[float, Meta(gt=0, le=10_000)] = 4.0
    floor: Annotated[float, Meta(ge=0, le=1)] = 0.0
    gain: Annotated[float, Meta(ge=1, le=10**6)] = 3.0
    leaves: bool = True
    delay_s: Seconds = 5
    jobs: Match = ALL_JOBS
