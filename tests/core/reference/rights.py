"""Which running jobs may be stopped for a waiting job, and the best set of them: all sets are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from tests.core.reference.ledger import BORROWING, Amounts, ReferenceLedger
from tests.core.reference.world import LiveJob, ReferenceWorld

from kant.model.job import Job
from kant.model.placement import NODE
from kant.model.units import FOREVER, SECOND
from kant.queueing.preemption.policy import Preemption

Key = tuple[tuple[int, int], int, int, int, tuple[int, ...]]


@dataclass(frozen=True)
class Victim:
    """A running job that may be stopped. `cost` is the milli-GPU-seconds of work since its last checkpoint."""

    live: LiveJob
    milli: int
    cost: int
    reclaimed: bool = False
    passed: bool = False
    """Whether it started while the newcomer, of higher priority, waited: no cap or minimum run time protects it."""

    @property
    def rank(self) -> tuple[int, int]:
        return int(not self.reclaimed), self.live.job.priority


def victim(live: LiveJob, now: int, reclaimed: bool = False, passed: bool = False) -> Victim:
    """A running job as a victim at `now` (µs)."""
    job, ran = live.job, now - live.started
    lost = ran % job.checkpoint if job.checkpoint > 0 else ran
    return Victim(live, job.gpu_milli, job.gpu_milli * (lost // SECOND), reclaimed, passed)


def key(victims: Sequence[Victim]) -> Key:
    """The comparison key, smaller is better: the worst rank, the cost, the milli-GPUs, the count, and the jobs."""
    worst = max((who.rank for who in victims), default=(0, -FOREVER))
    numbers = tuple(sorted(who.live.number for who in victims))
    return worst, sum(who.cost for who in victims), sum(who.milli for who in victims), len(victims), numbers


def in_order(victims: Sequence[Victim]) -> list[Victim]:
    """Victims in the order in which a plan stops them."""
    return sorted(victims, key=lambda who: (who.rank, who.cost, who.milli, who.live.number))


def preference(victims: Sequence[Victim]) -> tuple[object, ...]:
    """The key to compare the victims of one level with those of another: the fewest first."""
    return len(victims), *key(victims)


def best(candidates: Sequence[Victim], cap: int, suffices: Callable[[Sequence[Victim]], bool]) -> list[Victim] | None:
    """The best set with at most `cap` milli-GPUs that suffices; None if not even all candidates together do."""
    if not candidates or not suffices(candidates):
        return None
    sets = [found for count in range(len(candidates) + 1) for found in combinations(candidates, count)]
    within = sorted((found for found in sets if sum(who.milli for who in found if not who.passed) <= cap), key=key)
    return next((in_order(found) for found in within if suffices(found)), None)


@dataclass
class ReferenceRights:
    """The preemption rights of one waiting job under a profile, with the plan so far in `ledger` and `stopped`."""

    world: ReferenceWorld
    ledger: ReferenceLedger
    rules: Preemption
    stopped: set[str]
    now: int
    preempts_passing: bool
    """Whether jobs that have passed a waiting job of higher priority are evicted for it at once."""
    by_share: bool

    def runs(self) -> dict[str, LiveJob]:
        """The jobs that run at the begin of the cycle and that the plan has not stopped."""
        return {name: live for name, live in self.world.running.items() if name not in self.stopped}

    def may_stop(self, live: LiveJob) -> bool:
        return live.job.preemptible and not live.protected

    def protected_until(self, live: LiveJob) -> int:
        """When the minimum run time of a job, by the profile and its queue, ends, µs."""
        own = {queue.name: queue.min_run for queue in self.world.queues.queues}
        return live.started + max(self.rules.min_run_s * SECOND, own.get(live.job.queue, 0))

    def has_passed(self, live: LiveJob, waiting: LiveJob) -> bool:
        """Whether a running job of lower priority started while the other one waited, and no queue protects it."""
        if not self.preempts_passing or live.job.priority >= waiting.job.priority or live.started <= waiting.since:
            return False
        guaranteed = any(queue.name == live.job.queue and queue.min_run for queue in self.world.queues.queues)
        return not guaranteed and (not self.by_share or live.job.queue == waiting.job.queue)

    def _is_lower(self, live: LiveJob, waiting: LiveJob) -> bool:
        """Whether a running job may be evicted for its lower priority."""
        if self.rules.priority:
            return live.job.priority < waiting.job.priority
        return self.has_passed(live, waiting)

    def shares_nodes(self, live: LiveJob, job: Job, model: str | None) -> bool:
        """Whether some node, with `model` one of that GPU model, admits the waiting job and has or admits the other."""
        nodes = [node for node in self.world.nodes if model is None or node.model == model]
        holds = {self.world.rows[piece[NODE]].name for piece in live.pieces or ()}
        return any(
            self.world.admits(node, job) and (node.name in holds or self.world.admits(node, live.job)) for node in nodes
        )

    def levels(self, waiting: LiveJob, model: str | None, amounts: Amounts, short: bool) -> list[int]:
        """The levels at which a job may preempt: how far up its queue's path it stays in quota, then borrowing."""
        job = waiting.job
        if not self.limited(job, amounts):
            return [BORROWING]
        reach = self.ledger.reach(job, amounts)
        own = [
            name
            for name, live in self.runs().items()
            if self._own_lower(live, waiting) and (short or self.shares_nodes(live, job, model))
        ]
        further = self.ledger.reach(job, amounts, own) if own else BORROWING
        return list(dict.fromkeys([*([reach] if reach != BORROWING else []), further, BORROWING]))

    def limited(self, job: Job, amounts: Amounts) -> bool:
        return job.queue in self.ledger.tree.queues and any(amounts.values())

    def _own_lower(self, live: LiveJob, waiting: LiveJob) -> bool:
        return self.may_stop(live) and self._is_lower(live, waiting) and live.job.queue == waiting.job.queue

    def victims(self, waiting: LiveJob, model: str | None, amounts: Amounts, level: int, short: bool) -> list[Victim]:
        """The jobs that the job may stop at one level, including those within their minimum run time."""
        found, job = [], waiting.job
        for name, live in self.runs().items():
            if not self.may_stop(live) or not (short or self.shares_nodes(live, job, model)):
                continue
            lower = self._is_lower(live, waiting)
            of = self.ledger.borrows(name) if self.ledger.keys else None
            borrows = of is None or bool(of)
            reclaims = False
            if live.job.queue == job.queue:
                allowed = lower and (borrows or level != BORROWING)
            else:
                allowed = lower and (
                    of is None or (borrows and self._holds_against(live.job.queue, job, amounts, BORROWING))
                )
                wanted = of is not None and any(amounts[key] for key in of)
                if self.rules.reclaim != "off" and level != BORROWING and wanted:
                    reclaims = self._holds_against(live.job.queue, job, amounts, level)
            if allowed or reclaims:
                found.append(victim(live, self.now, reclaims, self.has_passed(live, waiting)))
        return found

    def _holds_against(self, queue: str, job: Job, amounts: Amounts, level: int) -> bool:
        """Whether `queue` borrows at every level below the common ancestor, up to which the job stays in quota."""
        if queue not in self.ledger.tree.queues or not self.limited(job, amounts):
            return True
        path, own = self.ledger.tree.path(queue), self.ledger.tree.path(job.queue)
        meets = next((place for place, name in enumerate(path) if name in own), len(path))
        if level != BORROWING and (meets == len(path) or own.index(path[meets]) > level):
            return False
        return all(self.ledger.is_borrowing(name, amounts) for name in path[:meets])

    def admits(self, job: Job, amounts: Amounts, level: int, victims: Sequence[Victim]) -> bool:
        """Whether the quota admits the job after these have left, at this level."""
        if not self.limited(job, amounts):
            return job.queue not in self.ledger.tree.queues or self.ledger.fits(job, amounts, names(victims))
        if not self.ledger.fits(job, amounts, names(victims)):
            return False
        own = [who.live.job.id for who in victims if who.live.job.queue == job.queue]
        return level == BORROWING or self.ledger.reach(job, amounts, own) >= level


def names(victims: Sequence[Victim]) -> Iterator[str]:
    return (who.live.job.id for who in victims)
