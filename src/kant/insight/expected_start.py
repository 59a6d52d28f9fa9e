"""When a waiting job is expected to start, and what lets it start then."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kant.insight.track_record import track_record
from kant.model.decision import NeverFits, OverQuota, Reason, RetriesUsed
from kant.model.units import clock, show_duration

How = Literal["now", "ends", "reclaim", "priority", "backfill", "core", "freed", "time"]


class Basis(Struct, frozen=True):
    """Why a job can start at `at`: because of the running `jobs` and of `more` unnamed ones. `queue` is their common
    queue, if any. Jobs that arrive later are not included.

    `how`: `now` (nothing prevents the start), `ends` (the jobs end), `reclaim`, `priority`, `backfill` or `core` (the
    jobs are preempted by that rule), `freed` (a job preempted for another job leaves room) or `time` (a timeout, a
    back-off or a reservation). `ran` (microseconds; 0: none) is the minimum run time that the last of the jobs must
    reach; for `backfill`, how long the job has waited. `futures` of the `of` simulated futures agree on the basis.
    """

    how: How
    at: int
    jobs: tuple[str, ...] = ()
    more: int = 0
    queue: str = ""
    ran: int = 0
    futures: int = 1
    of: int = 1


class TrackRecord(Struct, frozen=True):
    """The accuracy of `answers` earlier answers about starts equally far ahead: `kept` of them were right.

    An answer is right if the job started by its P90; `kept_p50` of the jobs started by their P50. `calibrated`: P50 and
    P90 are corrected by earlier errors. Otherwise too few errors are known, and both come from simulated futures alone.
    """

    answers: int
    kept: int
    kept_p50: int
    calibrated: bool

    def __str__(self) -> str:
        return track_record(self.answers, self.kept, self.kept_p50, self.calibrated)


class ExpectedStart(Struct, frozen=True):
    """When a job is expected to start, with a probability of 50% and of 90% (microseconds; None: unknown).

    `basis` is the reason for the median. `earlier` is the track record of similar answers, if there is one.
    """

    p50: int | None = None
    p90: int | None = None
    basis: Basis | None = None
    earlier: TrackRecord | None = None


class WaitOrPlace(Struct, frozen=True):
    """Whether a gang should wait for one topology domain, and why, as a sentence for people."""

    wait: bool
    sentence: str


class WaitingJob(Struct, frozen=True):
    """A job that has waited since `since`, at `place` in the profile's order. It asks for `gpus` milli-GPUs in all.

    `reason` is None if nothing keeps the next cycle from starting the job. `choice`: whether to wait for one domain.
    """

    queue: str
    gpus: int
    since: int
    place: int
    reason: Reason | None
    start: ExpectedStart
    choice: WaitOrPlace | None = None


class BudgetForecast(Struct, frozen=True):
    """When a budget of `queue`, or of `user` in `queue`, is expected to be used up in the month that ends at `until`.

    `p50` and `p10`: when the budget is used up with a probability of 50% and of 10% (microseconds; None: not in this
    month, as far as arrivals are known). `limit` is `hard` or `soft`. `jobs` lists the waiting jobs that, because of a
    hard limit, do not start before the next month in most of the simulated futures.
    """

    queue: str
    user: str
    limit: Literal["hard", "soft"]
    until: int
    p50: int | None
    p10: int | None
    jobs: tuple[str, ...] = ()


class StartForecast(Struct, frozen=True):
    """The forecast for the jobs that waited at `now`, in order, from a number of simulated `futures`.

    `of` is the number of jobs that waited. `jobs` has all of them, or only the job asked about.
    """

    now: int
    futures: int
    of: int
    jobs: dict[str, WaitingJob]
    budgets: tuple[BudgetForecast, ...] = ()


def is_final(reason: Reason | None) -> bool:
    """Return whether the job can never start unless the cluster or its queues change."""
    return isinstance(reason, NeverFits | RetriesUsed) or (isinstance(reason, OverQuota) and reason.ever)


def basis_sentence(basis: Basis) -> str:
    """Return the basis of a start as text for people."""
    at = clock(basis.at)
    several = len(basis.jobs) + basis.more > 1
    jobs = f"job{'s' * several} " + ", ".join(basis.jobs) + (f" and {basis.more:,} more" if basis.more else "")
    if not basis.jobs:
        jobs = f"{basis.more:,} job{'s' * several}" if basis.more else "a job that will arrive later"
    verb = "" if several else "s"
    ran = ""
    if basis.ran:
        ran = f", when {'the last of them' if several else 'it'} has run its protected {show_duration(basis.ran)}"
    match basis.how:
        case "now":
            text = "nothing keeps it from starting: the next cycle can start it"
        case "ends":
            text = f"{jobs} end{verb}, expected at {at}"
        case "reclaim":
            text = f"by reclaim from queue {basis.queue or '(several)'} at {at}: {jobs} stop{verb}{ran}"
        case "priority":
            text = f"by its priority at {at}: {jobs} stop{verb}{ran}"
        case "backfill":
            waited = show_duration(basis.ran)
            text = f"by its time-out at {at}, after a wait of {waited}: {jobs} that passed it stop{verb}"
        case "core":
            text = f"by eviction of burst replicas at {at}: {jobs} stop{verb}"
        case "freed":
            text = f"at {at} in capacity left over when {jobs} stop{verb} for another job"
        case _:
            text = f"it is tried again at {at}"
    return text + (f" (in {basis.futures} of {basis.of} simulated futures)" if basis.of > 1 else "")
