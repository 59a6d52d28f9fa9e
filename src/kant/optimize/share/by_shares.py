"""Rounds from shares of time: first goes the job that is furthest behind the share that a policy gives it.

The mechanism of Gavel (Narayanan et al., OSDI 2020, section 5) as in Shockwave's simulator: shares are computed again
when jobs have arrived or ended and RESET seconds have passed. Until then a new job has no share; if it is chosen for a
round, its GPUs stay idle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.optimize.share.policy import Chooser
from kant.optimize.share.training import TrainingProgress

RESET = 1000.0
"""The minimum number of seconds between two computations of shares."""
DIGITS = 9
"""The digits to which shares are rounded: beyond them, results of linear algebra differ between machines."""
SURELY = 1e9
"""The factor from share to priority for a job that has not received time yet."""


@dataclass(slots=True)
class Memory:
    """The state that a policy keeps from one computation of shares to the next, by job number."""

    shares: dict[int, float] = field(default_factory=dict)
    alone: dict[int, float] = field(default_factory=dict)
    speed: dict[int, float] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)


class SharePolicy(ABC):
    """The base of policies that give shares of time."""

    source: ClassVar[str]
    tags: ClassVar[Tags]

    @abstractmethod
    def shares(self, jobs: Sequence[TrainingProgress], gpus: int, now: float, memory: Memory) -> list[float]:
        """Return the share of time that each job should run, from 0 to 1."""

    def begin(self, gpus: int, round_s: float) -> Chooser:
        return ByShares(self, gpus, round_s)


@dataclass(slots=True)
class _Account:
    """The time that a job has run since the shares were computed, its deficit from before, and its priority."""

    received: float
    deficit: float = 0.0
    priority: float = 0.0


class ByShares:
    """Chooses the jobs of a round by their shares. A job's account begins with half a round, to avoid divisions by
    zero."""

    def __init__(self, rule: SharePolicy, gpus: int, round_s: float) -> None:
        self.rule, self.gpus, self.head_start = rule, gpus, round_s / 2
        self.note = ""
        self.memory = Memory()
        self.accounts: dict[int, _Account] = {}
        self.received = 0.0
        self.reset = 0.0
        self.stale = True

    def ran(self, job: TrainingProgress, seconds: float) -> None:
        self.accounts[job.number].received += seconds
        self.received += seconds

    def choose(self, jobs: Sequence[TrainingProgress], now: float, changed: bool) -> list[TrainingProgress]:
        self.stale |= changed
        for job in jobs:
            if job.number not in self.accounts:
                self.accounts[job.number] = _Account(self.head_start)
        if self.stale and (now - self.reset >= RESET or self.reset == 0):
            self._compute(jobs, now)
        shares = self.memory.shares
        for job in jobs:
            account, share = self.accounts[job.number], shares.get(job.number, 0.0)
            part = account.received / self.received if self.received else 0.0
            account.priority = share / part if part else share * SURELY
        chosen, free = [], self.gpus
        for job in sorted(jobs, key=lambda job: self._key(job.number), reverse=True):
            if job.gpus <= free:
                free -= job.gpus
                chosen.append(job)
        return [job for job in chosen if job.number in shares]

    def _key(self, number: int) -> tuple[float, float, float]:
        """The sort key. Of equal jobs the earlier one comes first, since the sort is stable, also in reverse."""
        account = self.accounts[number]
        return account.priority, account.deficit, self.memory.shares.get(number, 0.0)

    def _compute(self, jobs: Sequence[TrainingProgress], now: float) -> None:
        self.accounts = {job.number: self.accounts[job.number] for job in jobs}
        for job in jobs:
            account = self.accounts[job.number]
            due = self.memory.shares.get(job.number, 0.0) * (now - self.reset)
            account.deficit += due - (account.received - self.head_start)
            account.received = self.head_start
        self.received = self.head_start * len(jobs)
        self.reset, self.stale = now, False
        found = self.rule.shares(jobs, self.gpus, now, self.memory)
        self.memory.shares = {job.number: round(share, DIGITS) for job, share in zip(jobs, found, strict=True)}
