"""Rounds in simulated time: the solver answers at once, and its proposal arrives after the profile's delay."""

from __future__ import annotations

from msgspec.structs import replace

from kant.model.event import PlanProposed
from kant.model.units import SECOND
from kant.optimize.proposals import propose
from kant.optimize.rounds import Rounds
from kant.scheduler.cycle import Scheduler


class SimulatedRounds:
    """The rounds of one run, and the proposals that have not arrived yet."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.rounds = Rounds(scheduler.profile)
        self.coming: list[PlanProposed] = []

    @property
    def due(self) -> int:
        """When the next round begins, or the next proposal arrives."""
        return min([self.rounds.due, *(proposal.time for proposal in self.coming)])

    def begin(self, now: int) -> None:
        """Begin the rounds that are due."""
        if self.rounds.due > now:
            return
        profile = self.scheduler.profile
        for what in self.rounds.begin(self.scheduler.state, now):
            if any(proposal.by == what for proposal in self.coming):
                continue
            found = propose(what, self.scheduler, now, self.rounds.learned)
            settings = profile.fallback if what == "fallback" else profile.defragment
            if found is not None and settings is not None:
                self.coming.append(replace(found, time=now + settings.delay_s * SECOND))

    def take(self, now: int) -> list[PlanProposed]:
        """Remove and return the proposals that have arrived."""
        there = [proposal for proposal in self.coming if proposal.time <= now]
        self.coming = [proposal for proposal in self.coming if proposal.time > now]
        return there
