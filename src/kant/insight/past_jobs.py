"""What the past of a cluster says about its future: how long jobs run, and which jobs arrive.

A forecast of starts draws from this past (`sim/forecast_starts.py`). A job with an estimate is assumed to use the same
share of its estimate as earlier jobs of its kind with estimates of similar length. Without such jobs it uses all of it,
or any share if the estimate is only a limit. A job without an estimate runs as long as earlier jobs of its kind
(`cluster/history.py` defines kinds), otherwise as any earlier job. Arrivals repeat those of an earlier day.

Shares depend on the estimate. Jobs with the longest estimates mostly end early, since few jobs run so long; jobs with
the shortest estimates use all of them. So shares are kept by octave of the estimate. If an octave has too few jobs of a
kind, the shares of all kinds in the nearest octave are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

from kant.cluster.columns import J_ATTAINED, J_ESTIMATE, J_REMAINING, J_SINCE, J_STATUS
from kant.cluster.history import RunTimes
from kant.cluster.state import ClusterState
from kant.model.job import Job
from kant.model.status import JobStatus
from kant.model.units import DAY, FOREVER

WHOLE = 1_000_000
"""A share of 1: the run time equals the estimate."""

AT_LIMIT = 200
"""How many of 1000 jobs are assumed to run up to their limit, as long as no job of the kind has ended."""

MOST_DAYS = 7
"""Maximum number of days of arrivals that are kept."""

MOST_ARRIVALS = 4096

MOST_RUNS = 2000
"""Maximum number of run times passed on to the next process. The latest ones are passed on."""

MOST_KINDS = 10_000
"""Maximum number of kinds of jobs passed on to the next state; beyond it, only the latest runs are passed on."""


class PastRun(NamedTuple):
    """A job that ended on its own: the fields of its kind, its estimate `said` (-1: none) and run time `ran`, in µs."""

    queue: str
    user: str
    name: str
    gpu_milli: int
    said: int
    ran: int


class PastJobs:
    """Learns run times and arrivals from a sequence of states. Equal events give equal answers."""

    def __init__(self) -> None:
        self._spans = RunTimes()
        self._any = self._spans.kind(-1, -1, "", 0)  # the kind of all jobs
        self._shares = RunTimes()  # run times as shares of estimates, by octave of the estimate (0: all)
        self._octaves: dict[int, int] = {}  # by octave: the kind of all jobs in it, in `_shares`
        self._alike: dict[tuple[int, int], tuple[int, ...]] = {}  # by kind and octave: the result of `_share_kinds`
        self._queues: dict[str, int] = {}
        self._users: dict[str, int] = {}
        self._like: dict[int, tuple[str, str, str, int]] = {}  # by kind: a job of that kind
        self._runs: deque[tuple[int, int, int]] = deque(maxlen=MOST_RUNS)  # the latest: kind, estimate, run time
        self._kinds: dict[int, tuple[int, int]] = {}  # by row of a live job: its kind and estimate
        self._arrivals: deque[tuple[int, Job]] = deque(maxlen=MOST_ARRIVALS)
        self._began: int | None = None  # the time from which arrivals are recorded
        self._rows = self._seen = 0
        self.learned = 0  # number of run times recorded so far

    def bounded(self) -> PastJobs:
        """Return self, or a copy with only the latest runs and arrivals if there are more than MOST_KINDS kinds."""
        if len(self._like) <= MOST_KINDS:
            return self
        lately = PastJobs()
        for run in self.runs():
            lately.recall(run)
        lately._arrivals, lately._began, lately.learned = self._arrivals, self._began, self.learned
        return lately

    def begin(self, state: ClusterState, later: int = 0) -> None:
        """Follow another state from now on. Its clock began `later` microseconds after that of the previous state.

        Jobs that are already in the new state do not count as arrivals.
        """
        self._arrivals = deque(((time - later, job) for time, job in self._arrivals), MOST_ARRIVALS)
        self._began = state.now if self._began is None else self._began - later
        self._kinds = {row: self._kind(job) for row, job in state.live.items()}
        self._rows, self._seen = len(state.ids), state.job_changes.end

    def observe(self, state: ClusterState) -> None:
        """Record what has happened since the last call, at the end of every instant, or turn of an event loop."""
        if self._began is None:
            self._began = state.now
        for row in range(self._rows, len(state.ids)):
            job = state.live.get(row)
            if job is not None:
                self._kinds[row] = self._kind(job)
                self._arrivals.append((state.now, job))
        self._rows = len(state.ids)
        jobs = state.jobs
        for row in state.job_changes.since(self._seen):
            if row in self._kinds and row not in state.live:
                kind, said = self._kinds.pop(row)
                ran = jobs.item(row, J_ATTAINED)
                if jobs.item(row, J_STATUS) == JobStatus.FINISHED:
                    self.finished(kind, said, ran)
        self._seen = state.job_changes.end
        while self._arrivals and self._arrivals[0][0] < state.now - MOST_DAYS * DAY:
            self._arrivals.popleft()

    def remember(self, job: Job, ran: int) -> None:
        """Record that a job from before this state ended on its own after running for `ran` microseconds."""
        self.finished(*self._kind(job), ran)

    def recall(self, run: PastRun) -> None:
        """Record a run that an earlier process has seen."""
        self.finished(self._kind_of(*run[:4]), run.said, run.ran)

    def runs(self) -> list[PastRun]:
        """Return the latest runs, oldest first, for `recall`."""
        return [PastRun(*self._like[kind], said, ran) for kind, said, ran in self._runs]

    def finished(self, kind: int, said: int, ran: int) -> None:
        """Record that a job of this kind ended on its own after `ran` µs; its estimate was `said` µs (-1: none)."""
        self.learned += 1
        self._runs.append((kind, said, ran))
        self._spans.finished(kind, ran)
        self._spans.finished(self._any, ran)
        if said > 0:
            octave = said.bit_length()
            if octave not in self._octaves:
                self._octaves[octave] = self._shares.kind(-1, -1, "", 0, octave)
                self._alike.clear()
            for part in (0, octave):
                self._shares.finished(self._share_kind(kind, part), ran * WHOLE // said)
            self._shares.finished(self._octaves[octave], ran * WHOLE // said)

    def _kind(self, job: Job) -> tuple[int, int]:
        return self._kind_of(job.queue, job.user, job.name, job.gpu_milli), job.estimate

    def _kind_of(self, queue_name: str, user_name: str, name: str, gpu_milli: int) -> int:
        queue = self._queues.setdefault(queue_name, len(self._queues))
        user = self._users.setdefault(user_name, len(self._users)) if user_name else -1
        kind = self._spans.kind(queue, user, name, gpu_milli)
        self._like.setdefault(kind, (queue_name, user_name, name, gpu_milli))
        return kind

    def _share_kind(self, kind: int, octave: int) -> int:
        queue, user, name, gpu_milli = self._like[kind]
        return self._shares.kind(self._queues[queue], self._users[user] if user else -1, name, gpu_milli, octave)

    def kind_of(self, job: Job) -> int:
        """Return the number of a job's kind."""
        return self._kind(job)[0]

    # --- what to expect -------------------------------------------------------------------------------------------

    def left(self, state: ClusterState, row: int, now: int, permille: int) -> int:
        """Return how much longer a live job runs once placed, at a quantile (permille) of its kind. FOREVER if unknown.

        The result is in microseconds of work. For an elastic gang it is the time with all of its pods.
        """
        said, remaining, elapsed, since = state.jobs[row, [J_ESTIMATE, J_REMAINING, J_ATTAINED, J_SINCE]].tolist()
        running = now - since if row in state.running else 0
        progress = state.elastic.get(row)
        if progress is not None:
            elapsed = progress.done(said, running) // progress.ceiling
        else:
            elapsed = said - remaining if said >= 0 and remaining > 0 else elapsed  # without work that was lost
            elapsed += running
        kind = self._kinds[row][0] if row in self._kinds else self.kind_of(state.live[row])
        limit = state.live[row].limit
        left = self._left(kind, said, elapsed, permille, limit)
        return min(left, max(limit - elapsed, 1)) if limit > 0 else left

    def whole(self, job: Job, permille: int) -> int:
        """Return how long (µs) a later arrival runs, at a quantile (permille) of its kind; FOREVER if unknown."""
        left = self._left(self.kind_of(job), job.estimate, 0, permille, job.limit)
        return min(left, job.limit) if job.limit > 0 else left

    def _left(self, kind: int, said: int, elapsed: int, permille: int, limit: int) -> int:
        if said > 0:
            kinds = self._share_kinds(kind, said.bit_length())
            if self._shares.drawn(kinds[-1], -1, permille) >= 0:
                used = elapsed * WHOLE // said
                totals = (self._shares.drawn(each, used or -1, permille) for each in kinds)
                left = next((total - used for total in totals if total >= 0), _outliving(used, permille))
                return max(left * said // WHOLE, 1)
            if said == limit and elapsed < limit:
                return max(_of_limit(elapsed * 1000 // limit, permille) * limit // 1000 - elapsed, 1)
            while said <= elapsed:
                said *= 2
            return said - elapsed
        if self._spans.drawn(kind, -1, permille) < 0:
            kind = self._any
        if self._spans.drawn(kind, -1, permille) < 0:
            return FOREVER
        total = self._spans.drawn(kind, elapsed or -1, permille)
        return max(total - elapsed if total >= 0 else _outliving(elapsed, permille), 1)

    def _share_kinds(self, kind: int, octave: int) -> tuple[int, ...]:
        """Return the keys in `_shares` that apply to a job of this kind and this octave of the estimate, the most
        similar first. The last key stands for all estimates of the kind."""
        found = self._alike.get((kind, octave))
        if found is None:
            near = sorted(self._octaves, key=lambda other: (abs(other - octave), other))
            kinds = self._share_kind(kind, octave), *map(self._octaves.__getitem__, near), self._share_kind(kind, 0)
            found = self._alike[kind, octave] = kinds
        return found

    def days(self, now: int) -> int:
        """Return the number of whole days before `now` with known arrivals, at most MOST_DAYS."""
        if self._began is None:
            return 0
        first = self._began if len(self._arrivals) < MOST_ARRIVALS else max(self._began, self._arrivals[0][0])
        return min((now - first) // DAY, MOST_DAYS)

    def coming(self, now: int, day: int) -> Iterator[tuple[int, Job]]:
        """Yield the arrivals after `now` in order of time, as if the next days repeated past days, from one chosen by
        `day` on. If less than a whole day is known or no job arrived, yields nothing; otherwise it never ends.
        """
        days = self.days(now)
        if not days:
            return
        past = [(time, job) for time, job in self._arrivals if now - days * DAY <= time < now and not job.base_job]
        back = (day % days + 1) * DAY
        turn = [(time + back, job) for time, job in past if time >= now - back]
        turn += [(time + back + days * DAY, job) for time, job in past if time < now - back]
        round = 0
        while turn:
            for time, job in turn:
                yield time + round, job
            round += days * DAY


def _of_limit(elapsed: int, permille: int) -> int:
    """Return the share of its limit (permille) that a job uses at a quantile, given the share `elapsed` used by now.

    A limit is no estimate. Shares are assumed to be spread evenly, except that a fifth of the jobs use the whole limit
    (Mu'alem and Feitelson, Utilization, Predictability, Workloads, and User Runtime Estimates, IEEE TPDS 2001: a flat
    histogram with a peak at the end).
    """
    below = elapsed * (1000 - AT_LIMIT) // 1000
    return min((below + permille * (1000 - below) // 1000) * 1000 // (1000 - AT_LIMIT), 1000)


def _outliving(elapsed: int, permille: int) -> int:
    """Return how much longer a job that has outlived all others runs, assuming a Pareto distribution of index 2."""
    return elapsed * (isqrt(10**9 // (1000 - permille)) - 1000) // 1000
