"""The waits of a live Kant: whatever happens, and however often the state is built anew, the causes add up to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster import columns as c
from kant.insight.explanation import explain
from kant.insight.moment import moment_of
from kant.live.answers import expectations
from kant.live.core import Core
from kant.live.explained import as_json, known
from kant.live.record import STATUS, WAIT, RunRecord
from kant.live.sentences import public_id, public_sentence
from kant.live.waits import NAMES, UNKNOWN, fitted
from kant.model.decision import Preempt, Reject, Release, Reserve, Start
from kant.model.event import (
    JobCancelled,
    JobFinished,
    JobPreempted,
    JobRejected,
    JobReleased,
    JobReserved,
    JobStarted,
    JobSubmitted,
    QueuesChanged,
)
from kant.model.job import Job
from kant.model.status import JobStatus
from kant.model.tenant import Queue, QueueConfig
from kant.model.units import SECOND
from kant.scheduler.profile import Profile
from kant.sim.forecast_starts import forecast_starts
from kant.testing import make_cluster, make_job, make_profile
from kant.testing.builders import make_queue

SINCE = 6  # of the columns of a job in the record


class Live:
    """A driver around the core: jobs have ids that people know, and come and go under others inside."""

    def __init__(self, profile: Profile, slow: bool = False) -> None:
        self.profile = profile
        self.queue_config = QueueConfig()
        self.ticks: Callable[[], float] = _clock(1.0 if slow else 0.0).__next__
        self.micros = 0
        self.number = 0
        self.wishes: dict[str, Job] = {}
        self.came: dict[str, int] = {}
        self.began: dict[str, tuple[int, Any]] = {}
        self.ids: dict[str, str] = {}  # of the jobs that wait or run
        self.core: Core
        self.build({})

    def build(self, waited: Any) -> None:
        """The state anew, as `kant.local.driver` does it: all who wait or run, at their times."""
        zero = min([self.micros, *(self.came[job] for job in self.ids)])
        self.core = Core(make_cluster(4, 4), self.profile, None, zero, lambda: self.micros / 1e6, waited=waited)
        self.core.waits.ticks = self.ticks
        self.run = RunRecord(self.core.state, "r", zero=zero, waits=self.core.waits)
        self.core.observers.append(self.run)
        self.core.settled()
        self.core.happen(QueuesChanged(0, self.queue_config))
        moments = [(self.came[job], 0, job) for job in self.ids]
        moments += [(max(self.began[job][0], self.came[job]), 1, job) for job in self.ids if job in self.began]
        for moment, starts, job in sorted(moments):
            if starts:
                self.core.happen(JobStarted(moment - zero, self.ids[job], self.began[job][1]))
            else:
                self.enter(job, moment - zero)

    def enter(self, job: str, at: int) -> None:
        self.ids[job] = self.core.fresh_id(job)
        wish = self.wishes[job]
        fields = {name: getattr(wish, name) for name in wish.__struct_fields__}
        self.core.happen(JobSubmitted(at, Job(**(fields | {"id": self.ids[job], "submit": at}))))

    def submit(self, **asks: Any) -> str:
        self.number += 1
        job = str(self.number)
        self.wishes[job], self.came[job] = make_job(job, **asks), self.core.now + self.core.zero
        self.enter(job, self.core.now)
        return job

    def set_queues(self, *queues: Queue) -> None:
        self.queue_config = QueueConfig(queues)
        self.core.happen(QueuesChanged(self.core.now, self.queue_config))

    def leave(self, job: str, event: type[JobFinished] | type[JobCancelled]) -> None:
        self.core.happen(event(self.core.now, self.ids.pop(job)))
        self.began.pop(job, None)

    def comes_again(self, job: str) -> None:
        self.leave(job, JobCancelled)
        self.enter(job, self.core.now)

    def turn(self) -> None:
        core = self.core
        for each in core.cycle().decisions:
            match each:
                case Start(job=job, allocation=place):
                    core.happen(JobStarted(core.now, job, place))
                    self.began[public_id(job)] = core.now + core.zero, place
                case Preempt(job=job, by=by):
                    core.happen(JobPreempted(core.now, job, by=by))
                    self.began.pop(public_id(job), None)
                case Reserve(job=job, start=start, end=end, allocation=place):
                    core.happen(JobReserved(core.now, job, start, end, place))
                case Release(job=job):
                    core.happen(JobReleased(core.now, job))
                case Reject(job=job):
                    core.happen(JobRejected(core.now, job, "no"))
                    del self.ids[public_id(job)]
        core.attribute()

    def waited(self, job: str) -> dict[str, int]:
        found = self.run.waited(job, self.core.now)
        assert found is not None
        return found

    def adds_up(self) -> None:
        """Of every job that is kept the causes add up to its wait, and of all together too."""
        state, now = self.core.state, self.core.now
        for job, row in self.run.by_id.items():
            own = self.run.jobs.table[row].tolist()
            wait = own[WAIT] + (now - own[SINCE] if own[STATUS] == JobStatus.PENDING else 0)
            split = self.waited(job)
            assert sum(split.values()) == 2 * split["total"] == 2 * wait, (job, split, wait)
            assert min(split.values()) >= 0 and split.keys() <= {"total", *NAMES}
        admitted = 0
        for row in range(len(state.ids)):
            own = state.jobs[row].tolist()
            if own[c.J_STATUS] not in (JobStatus.REJECTED, JobStatus.CANCELLED):
                admitted += own[c.J_WAITED] + (now - own[c.J_SINCE] if own[c.J_STATUS] == JobStatus.PENDING else 0)
        assert abs(sum(self.core.waits.total(now).values()) - admitted / SECOND) < 1e-3


def _clock(step: float) -> Iterator[float]:
    return (step * tick for tick in count())


WHAT = (*["submit"] * 4, *["turn"] * 5, "finish", "finish", "hold", "hold", "cancel", "anew", "killed", "queues")
LATER = (0, 1, 300_000, 7 * SECOND, 7 * SECOND, 90 * SECOND, -3 * SECOND)
ACTS = st.lists(
    st.tuples(st.sampled_from(WHAT), st.integers(0, 1000), st.sampled_from(LATER)), min_size=30, max_size=60
)
QUEUES = (
    (),
    (make_queue("default", 4), make_queue("other", 4)),
    (make_queue("all", 8), make_queue("default", 3, parent="all"), make_queue("other", 5, parent="all")),
    (make_queue("default", 8, state="hold"), make_queue("other")),
)
DISCIPLINES = st.sampled_from(("best-effort", "strict", "easy", {"policy": "preemptive", "min_run_s": 0}))


@given(acts=ACTS, discipline=DISCIPLINES, order=st.sampled_from(("fifo", "aged")), slow=st.booleans())
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
def test_the_causes_add_up_whatever_happens(acts: Any, discipline: Any, order: str, slow: bool) -> None:
    live = Live(make_profile(order, discipline, "first-fit"), slow)
    held: list[str] = []
    for what, pick, later in acts:
        live.micros = max(live.micros + later, 0)
        jobs = list(live.ids)
        job = jobs[pick % len(jobs)] if jobs else ""
        if what == "submit":
            queue = ("default", "other")[pick % 5 == 0]
            asks = {"gpus": 1 + pick % 4, "pods": 1 + pick % 3, "priority": pick % 3, "queue": queue}
            live.submit(**asks, estimate=(60 + pick) * SECOND)
        elif what == "finish" and job in live.began:
            live.leave(job, JobFinished)
        elif what == "cancel" and job:
            live.leave(job, JobCancelled)
        elif what == "hold" and held:
            live.enter(held.pop(), live.core.now)
        elif what == "hold" and job and job not in live.began:
            live.leave(job, JobCancelled)
            held.append(job)
        elif what == "queues" and isinstance(discipline, str):  # the others know no quotas
            live.set_queues(*QUEUES[pick % len(QUEUES)])
        elif what in ("anew", "killed"):
            before = {name: live.waited(name) for name in live.ids}
            live.build(live.core.waits.kept(live.core.now) if what == "anew" else {})
            for name, split in before.items() if what == "anew" else ():
                after = live.waited(name)
                if after["total"] >= split["total"]:  # else the clock went back
                    assert all(after.get(cause, 0) >= span for cause, span in split.items()), "what was known still is"
        else:
            live.turn()
        live.adds_up()


def test_what_nobody_followed_is_unknown_and_what_was_known_is_kept() -> None:
    live = Live(make_profile("fifo", "best-effort", "first-fit"))
    first, late = live.submit(gpus=4, pods=2), live.submit(gpus=4)
    live.turn()
    live.micros += 60 * SECOND
    assert live.waited(late) == {"total": 60 * SECOND, "capacity": 60 * SECOND}
    kept = live.core.waits.kept(live.core.now)
    live.micros += 10 * SECOND  # no Kant runs
    live.build(kept)
    live.turn()
    live.micros += 30 * SECOND
    assert live.waited(late) == {"total": 100 * SECOND, "capacity": 90 * SECOND, UNKNOWN: 10 * SECOND}
    live.build({})
    live.turn()
    assert live.waited(late) == {"total": 100 * SECOND, UNKNOWN: 100 * SECOND}
    live.leave(first, JobFinished)
    live.turn()
    live.micros += 30 * SECOND
    assert late in live.began
    assert live.waited(late)["total"] == 100 * SECOND, "it runs"


def test_a_slow_ledger_rests() -> None:
    """It takes one part in twenty of the time: after a look that took 1 s the next comes 20 s later."""
    live = Live(make_profile("fifo", "best-effort", "first-fit"), slow=True)
    looked: list[int] = []
    live.core.waits.ledger.observe = looked.append  # type: ignore[method-assign]
    for _ in range(40):  # every turn reads the clock, and a look once more
        live.micros += SECOND
        live.turn()
    assert looked == [each * SECOND for each in (1, 20, 39)]


def test_a_split_is_fitted_to_a_wait() -> None:
    split = {"capacity": 50, "order": 30, "of another Kant": 7}
    for waited in (0, 10, 80, 90):
        found = dict(zip(NAMES, fitted(split, waited), strict=True))
        assert sum(found.values()) == waited and min(found.values()) >= 0
        assert found[UNKNOWN] == max(waited - 80, 0)


def test_answers_name_jobs_as_people_do() -> None:
    """A job that was withdrawn and came again has another id inside, which nobody is told."""
    live = Live(make_profile("fifo", "easy", "first-fit"))
    first = live.submit(gpus=4, pods=2, estimate=600 * SECOND)
    live.comes_again(first)
    live.turn()
    large = live.submit(gpus=4, pods=2, estimate=600 * SECOND)
    live.comes_again(large)
    live.turn()
    small = live.submit(gpus=1, estimate=6000 * SECOND)
    live.turn()
    core = live.core
    named = []
    for job in (large, small):
        found = explain(core.scheduler, live.ids[job], core.now)
        told = as_json(known(found))
        assert "~2" in str(as_json(found)) and "~" not in str(told)
        named += [each["sentence"] for each in told["remedies"] + told["facts"]]
    assert f"job {first} ends" in " ".join(named), "under the id that people know"
    rows = expectations(forecast_starts(moment_of(core.scheduler, core.past, core.now)), public_sentence)
    assert len(rows) == 2 and "~" not in "".join(row["sentence"] + row["rests_on"]["sentence"] for row in rows)
