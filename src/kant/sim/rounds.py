"""Rounds in simulated time: a solver or the look-ahead is asked, and its proposal arrives after a delay."""

from __future__ import annotations

from msgspec.structs import replace

from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.model.event import PlanProposed, PolicyRouted
from kant.model.units import SECOND
from kant.optimize.proposals import propose
from kant.optimize.rounds import Rounds
from kant.scheduler.cycle import Scheduler
from kant.sim.look_ahead import look_ahead

LOOKS_S = 5
"""Seconds until a look-ahead has answered; a solver answers after the `delay_s` of the profile."""


class SimulatedRounds:
    """The rounds of one run, and the proposals that have not arrived yet."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.rounds = Rounds(scheduler.given)
        self.coming: list[PlanProposed | PolicyRouted] = []
        self.past = PastJobs()  # the run times that a look-ahead draws from

    @property
    def due(self) -> int:
        """When the next round begins, or the next proposal arrives that changes something.

        A proposal that changes nothing waits for the next instant.
        """
        return min([self.rounds.due, *(each.time for each in self.coming if self._changes(each))])

    def _changes(self, proposal: PlanProposed | PolicyRouted) -> bool:
        router = self.rounds.profile.router
        if router is None or not isinstance(proposal, PolicyRouted):
            return True
        return router.acts(self.scheduler.state) != proposal.policy

    def begin(self, now: int) -> None:
        """Begin the rounds that are due. Call it at the end of every instant."""
        profile = self.rounds.profile
        if profile.router is not None:
            self.past.observe(self.scheduler.state)
        if not self.rounds.is_due(now):
            return
        for what in self.rounds.begin(self.scheduler.state, now):
            if what == "route":
                routed = look_ahead(moment_of(self.scheduler, self.past, now))
                self.coming += [replace(each, time=now + LOOKS_S * SECOND) for each in (routed,) if each is not None]
                continue
            if any(isinstance(each, PlanProposed) and each.by == what for each in self.coming):
                continue
            found = propose(what, self.scheduler, now, self.rounds.learned)
            settings = profile.fallback if what == "fallback" else profile.defragment
            if found is not None and settings is not None:
                self.coming.append(replace(found, time=now + settings.delay_s * SECOND))

    def take(self, now: int) -> list[PlanProposed | PolicyRouted]:
        """Remove and return the proposals that have arrived."""
        there = [replace(proposal, time=now) for proposal in self.coming if proposal.time <= now]
        self.coming = [proposal for proposal in self.coming if proposal.time > now]
        return there
