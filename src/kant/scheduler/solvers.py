"""When a solver is asked for what would be better: the tables `[fallback]` and `[defragment]` of a profile.

The solver works beside the scheduler, on a moment that is past when it answers. What it proposes is an event
(`PlanProposed`), and the core decides about it (`scheduler/proposals.py`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kant.model.matching import Match

Seconds = Annotated[int, Meta(ge=1, le=10**9)]
EVERYBODY = Match()


class Fallback(Struct, frozen=True, forbid_unknown_fields=True):
    """The packer of `kant pack` is asked for jobs that have waited for `wait_s`, at most each `every_s`.

    It looks at the first `most_jobs` of them in the order of the profile, and has `limit_s` deterministic seconds. Of
    the running jobs those may move that are preemptible and match `jobs`, at most `moves` of them; nobody is stopped
    for good. In a simulation the answer is there after `delay_s`.

    Source: Priority Matters (arXiv 2511.08373).
    """

    wait_s: Seconds = 1800
    every_s: Seconds = 600
    most_jobs: Annotated[int, Meta(ge=1, le=1000)] = 8
    moves: Annotated[int, Meta(ge=1, le=10_000)] = 8
    limit_s: Annotated[float, Meta(ge=0.01, le=3600)] = 1.0
    delay_s: Seconds = 5
    jobs: Match = EVERYBODY


class Defragment(Struct, frozen=True, forbid_unknown_fields=True):
    """Each `every_s` at most `moves` running jobs move together, so that nodes in use in part become idle.

    A move costs the GPU time since the job last saved its work, and that of `restart_s`. An idle node is worth its GPU
    time of the next `horizon_h` hours, as long as the jobs that leave it have run so far, and as often as waiting jobs
    wanted more idle nodes than there were, learned over as many hours; it is never taken to be less often than `floor`.
    A node is emptied where this is more than `gain` times the price. With `leaves`, leaves in use in part are emptied
    alike, as often as waiting gangs required more idle nodes of one leaf than any had. Of the running jobs those may
    move that are preemptible and match `jobs`. In a simulation the answer is there after `delay_s`.

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
    jobs: Match = EVERYBODY
