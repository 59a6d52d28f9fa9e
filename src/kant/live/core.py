"""The core that a driver runs: one state, one scheduler, one journal, and the clock of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from kant import __version__
from kant.cluster.columns import J_STATUS
from kant.cluster.journal import Footer, Header, Journal
from kant.insight.calibration import CalibrationState
from kant.insight.eta_calibrator import EtaCalibrator
from kant.insight.past_jobs import PastJobs
from kant.live.queue_use import SavedUse, budgets_go_on, restored_use, use_of
from kant.live.sentences import public_id
from kant.live.waits import Split, Waits
from kant.model.decision import Plan
from kant.model.errors import StateError
from kant.model.event import Event, JobCancelled, JobSubmitted, PlanProposed, PolicyRouted, QueuesChanged
from kant.model.node import ClusterSpec
from kant.model.status import JobStatus
from kant.scheduler.cycle import Scheduler
from kant.scheduler.partial_gangs import complete_partial_gangs
from kant.scheduler.profile import Profile

if TYPE_CHECKING:
    from kant.scheduler.node_preemption import InTheWay, WillDo

Clock = Callable[[], float]
"""Seconds since the Unix epoch."""

NOTHING: Mapping[str, Split] = {}

FORGET = 50_000
"""Number of ended jobs that a state keeps before it should be built anew."""
CHANGES_EACH = 8
"""Number of changes per job for which the log of changes has room until the state is built anew."""


class Observer(Protocol):
    """Receives every event after the state has applied it, and every plan, in order."""

    def happened(self, event: Event) -> None: ...

    def decided(self, plan: Plan) -> None: ...


class Core:
    """One cluster under one profile. The zero of the run's clock is the time at which the state was built.

    Every event goes through `happen` and every plan through the journal, so that `kant replay` can follow. Other
    objects that follow the core are in `observers`. `waited` is the result of `Waits.kept` of the previous core. When
    `is_overgrown` is true, the state should be built anew: it keeps all jobs that it ever had, and their changes.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        profile: Profile,
        sink: Callable[[bytes], object] | None = None,
        zero: int = 0,
        clock: Clock = time.time,
        seed: int = 0,
        waited: Mapping[str, Split] = NOTHING,
    ) -> None:
        self.clock = clock
        self.zero = zero
        self.profile = profile
        self.state = profile.new_state(spec)
        self.scheduler = Scheduler(self.state, profile, seed)
        self.answers = EtaCalibrator(self.state)
        self.past = PastJobs()
        self.waits = Waits(self.scheduler, waited)
        self.journal = Journal(sink)
        begins = int(clock() * 1e6) - zero
        self.journal.write(Header(__version__, spec.name, profile.text, seed, spec, zero=zero, begins=begins))
        self.observers: list[Observer] = [self.waits]
        self._history: list[Event] | None = []
        self._has_budgets = False
        self._issued: dict[str, int] = {}
        self.is_overgrown = False

    @property
    def now(self) -> int:
        """Microseconds since the state was built; never before the last event, even if the system clock goes back."""
        return max(int(self.clock() * 1e6) - self.zero, self.state.now)

    def at(self, seconds: float) -> int:
        """Return a Unix time (seconds) on the run's clock, in microseconds; negative before the clock's zero."""
        return int(seconds * 1e6) - self.zero

    def happen(self, event: Event) -> None:
        """Apply and record one event. Raises StateError, and records nothing, if it contradicts the state.

        Until `settled` is called, events are only collected: the starts of earlier jobs lie before this core's zero.
        """
        if self._history is not None:
            self._history.append(event)
            return
        self.state.apply(event)
        self.journal.write(event)
        for observer in self.observers:
            observer.happened(event)
        if isinstance(event, QueuesChanged) and not self._has_budgets:
            self._spend(event.time, None)

    def _spend(self, now: int, saved: SavedUse | None) -> None:
        """If a queue has a budget, apply the event with the ends of the months and the use in the present month."""
        event = budgets_go_on(self.state, self.zero, now, saved)
        if event is not None:
            self._has_budgets = True
            self.happen(event)

    def settled(self) -> dict[str, str]:
        """Apply the collected events in order of time, once all earlier jobs are known.

        Returns the jobs that contradict the state, each with the reason.
        """
        history, self._history = self._history or [], None
        refused: dict[str, str] = {}
        for event in sorted(history, key=lambda event: event.time):
            job = _job_of(event)
            try:
                if job not in refused:
                    self.happen(event)
            except StateError as violation:
                refused[job] = str(violation)
                if job in self.state.rows:
                    self.happen(JobCancelled(self.state.now, job))
        return refused

    @property
    def is_settled(self) -> bool:
        return self._history is None

    def cycle(self) -> Plan:
        """Run one scheduling cycle now."""
        return self._decided(self.scheduler.cycle(self.now))

    def observe(self) -> None:
        """Learn run times and the accuracy of expected starts, at the end of a turn of the event loop."""
        self.past.observe(self.state)
        self.answers.observe(self.now)
        kept = max(len(self.state.ids), len(self.state.job_changes) // CHANGES_EACH)
        self.is_overgrown = kept > FORGET + 2 * len(self.state.live)

    def inherit(self, before: Core | None) -> None:
        """Continue with what the previous core learned, once the state has been built."""
        if before is None:
            self.past.begin(self.state)
            return
        later = self.zero - before.zero
        self.past = before.past.bounded()
        self.past.begin(self.state, later)
        self.recall_use(use_of(before.state, before.zero, before.now))
        if self.profile.text == before.profile.text:  # forecast errors differ under another profile
            self.recall(before.answers.remember(), later)

    def recall_use(self, saved: SavedUse | None) -> None:
        """Restore what queues had used, so that shares that decay with time decay across restarts as well."""
        now = self.now
        event = restored_use(self.state, self.zero, now, saved) if saved is not None else None
        if event is not None:
            self.happen(event)
        if saved is not None and saved.spent:
            self._spend(self.now, saved)

    def recall(self, memory: CalibrationState, later: int = 0) -> None:
        """Restore what was learned about expected starts; the clock of `memory` began `later` microseconds earlier."""
        rows = {public_id(self.state.ids[row]): row for row in self.state.live}
        known = {public_id(job): answer for job, answer in memory.open.items()}
        self.answers.recall(msgspec.structs.replace(memory, open=known), later, rows)

    def attribute(self) -> None:
        """Attribute the waits of jobs to causes, at the end of a turn of the event loop."""
        self.waits.observe(self.now)

    def complete_partial_gangs(self) -> Plan:
        """Decide now about gangs that were found partially bound."""
        return self._decided(complete_partial_gangs(self.scheduler, self.now))

    def propose(self, proposal: PlanProposed | PolicyRouted) -> Plan:
        """Record and decide about a solver's proposal now, or let a policy act that a simulation has confirmed."""
        from kant.scheduler.proposals import carry_out_proposal  # most profiles ask for no proposals

        self.happen(msgspec.structs.replace(proposal, time=self.now))
        if isinstance(proposal, PolicyRouted):
            return self.cycle()
        return self._decided(carry_out_proposal(self.scheduler, self.now))

    def preempt_by_node(self, row: int, in_the_way: InTheWay, will_do: WillDo) -> Plan | None:
        """Return the preemptions for a waiting single-pod job whose obstacles only the driver knows; None: forbidden.

        The result is recorded as events, since a replay could not decide it again.
        """
        from kant.scheduler.node_preemption import preempt_by_node

        return preempt_by_node(self.scheduler, self.now, row, in_the_way, will_do)

    def _decided(self, plan: Plan) -> Plan:
        self.journal.plan(plan)
        for observer in self.observers:
            observer.decided(plan)
        return plan

    def end(self) -> None:
        """Write the last line of the journal. Running jobs continue."""
        self.journal.write(Footer(self.now, cut=True))

    def fresh_id(self, name: str) -> str:
        """Return `name`, with a number appended if a job with this name existed before."""
        count = self._issued[name] = self._issued.get(name, 0) + 1
        return name if count == 1 else f"{name}~{count}"

    def status(self, job: str) -> JobStatus | None:
        """Return the status of a job; None for an unknown job."""
        row = self.state.rows.get(job)
        return None if row is None else JobStatus(int(self.state.jobs[row, J_STATUS]))


def _job_of(event: Event) -> str:
    return event.job.id if isinstance(event, JobSubmitted) else str(getattr(event, "job", ""))
