"""The holdings of quotas in the course of one plan, and the entitlements, recounted for every question.

The rules are those of docs/queues.md: a job is *in quota* while its queue's running jobs, counted in the order in which
they started, hold no more than the queue is entitled to; otherwise it *borrows*. A newcomer in quota may stop jobs of
lower priority of its own queue and jobs of other queues that borrow; a newcomer that would borrow may only stop jobs of
lower priority that borrow too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from tests.core.naive_quota import Key, NaiveQuotas
from tests.core.reference.world import Pieces, ReferenceWorld

from kant.model.job import Job
from kant.model.placement import CPU, MASK, MEMORY, MILLI, NODE

Amounts = dict[Key, int]

BORROWING = -1
"""The level of a newcomer that would borrow."""


class ReferenceLedger:
    """The running jobs under a plan so far. `held` has them in the order in which they started."""

    def __init__(self, world: ReferenceWorld, fair: bool) -> None:
        self.world = world
        queues = self.queues = world.queues
        self.fair = fair
        self.tree = NaiveQuotas(queues)
        self.keys: set[Key] = {(quota.model, quota.resource) for queue in queues.queues for quota in queue.quotas}
        self.held = {name: (live.job, self.amounts_of(live.pieces or [])) for name, live in world.running.items()}

    # --- amounts -----------------------------------------------------------------------------------------------

    def amounts_of(self, pieces: Pieces) -> Amounts:
        """The amounts of an allocation, by key."""
        found: Amounts = dict.fromkeys(self.keys, 0)
        for piece in pieces:
            parts: dict[str, int] = {
                "gpu": piece[MASK].bit_count() * piece[MILLI],
                "cpu": piece[CPU],
                "memory": piece[MEMORY],
            }
            for model, resource in self.keys:
                if model in ("", self.world.rows[piece[NODE]].model):
                    found[model, resource] += parts[resource]
        return found

    def asked(self, job: Job, model: str | None) -> Amounts:
        """The amounts that a job would hold on nodes of one GPU model; None: if models do not matter."""
        parts: dict[str, int] = {"gpu": 0, "cpu": 0, "memory": 0}
        for group in job.groups:
            parts["gpu"] += group.count * group.demand.charged_milli
            parts["cpu"] += group.count * group.demand.cpu
            parts["memory"] += group.count * group.demand.memory
        return {(own, resource): parts[resource] if own in ("", model) else 0 for own, resource in self.keys}

    def asked_anywhere(self, job: Job) -> Amounts:
        """The amounts that a job would hold wherever it is placed: of its only GPU model, or of none."""
        return self.asked(job, self._one_model(job))

    def options(self, job: Job) -> list[str | None]:
        """The GPU models on which a job is tried, in order. [None]: on all of them together."""
        offered = sorted({node.model for node in self.world.admitting(job)})
        if not (self.queues.prices or any(model for model, _ in self.keys)):
            return [None]
        models = [model for model in dict.fromkeys(job.models) if model in offered] or offered
        if job.queue in self.tree.queues and self.tree.queues[job.queue].fallback == "cheapest":
            prices = dict(self.queues.prices)
            models.sort(key=lambda model: prices.get(model, 1 << 62))
        return list(models) or [None]

    def fits(self, job: Job, amounts: Amounts, without: Iterable[str] = ()) -> bool:
        """Whether the quotas let a job take `amounts` after the jobs `without` have left."""
        if job.queue not in self.tree.queues:
            return True
        self._recount(without)
        return self.tree.fits(job.queue, _user(job), amounts)

    def lacks(self, job: Job, amounts: Amounts) -> str:
        """Why a job cannot take `amounts`: "user" for a limit of its user, "quota" for another limit; otherwise ""."""
        if self.fits(job, amounts):
            return ""
        for key in sorted(amounts):
            amount = amounts[key]
            for name in self.tree.path(job.queue) if amount else ():
                limit = self.tree.limits(name, key).user_limit
                if limit != -1 and self.tree.of_user(name, _user(job), key) + amount > limit:
                    return "user"
            if amount and self.tree.passed(job.queue, key, amount):
                return "quota"
        raise AssertionError(f"{job.id} does not fit, and no limit says so")

    def could_ever_fit(self, job: Job, amounts: Amounts) -> bool:
        """Whether the quotas would admit the job if no job held anything."""
        return self.fits(job, amounts, self.held)

    def _recount(self, without: Iterable[str] = ()) -> None:
        gone = set(without)
        self.tree.held = [
            (job.queue, _user(job), amounts)
            for name, (job, amounts) in self.held.items()
            if name not in gone and job.queue in self.tree.queues
        ]

    # --- entitlements ------------------------------------------------------------------------------------------

    def entitle(self, live: Iterable[Job]) -> None:
        """Set the entitlements, which depend on the live jobs if fair shares count."""
        shares: dict[Key, Mapping[str, Fraction | int]] = {}
        for key in self.keys:
            if self.fair:
                wants = dict.fromkeys(self.tree.queues, 0)
                for job in live:
                    if job.queue in wants:
                        wants[job.queue] += self.asked_anywhere(job)[key]
                shares[key] = {name: int(share) for name, share in self.tree.fair_shares(key, wants).items()}
            else:
                shares[key] = {name: self.tree.quota(name, key) for name in self.tree.queues}
        self.entitled = shares

    def _one_model(self, job: Job) -> str | None:
        """The GPU model of the nodes that a job may use; None if there are several."""
        models = {node.model for node in self.world.admitting(job)}
        return models.pop() if len(models) == 1 else None

    def part(self, queue: str, key: Key) -> int | Fraction:
        """The entitlement of a queue's own jobs: that of the queue, or its nominal quota if it has children."""
        return self.tree.limits(queue, key).nominal if self.tree.below(queue) else self.entitled[key][queue]

    def borrows(self, name: str) -> set[Key] | None:
        """The keys of which a running job borrows; None for a job that holds nothing that quotas count."""
        job, own = self.held[name]
        if job.queue not in self.tree.queues:
            return {key for key, amount in own.items() if amount} or None
        if not any(own.values()):
            return None
        counted = dict.fromkeys(self.keys, 0)
        for other, (whose, amounts) in self.held.items():
            if whose.queue == job.queue:
                for key, amount in amounts.items():
                    counted[key] += amount
            if other == name:
                break
        return {key for key, amount in own.items() if amount and counted[key] > self.part(job.queue, key)}

    def is_borrowing(self, queue: str, amounts: Amounts) -> bool:
        """Whether a queue, with its descendants, holds more than its entitlement of a requested key."""
        self._recount()
        return any(
            amount and self.tree.usage(queue, key) > self.entitled[key][queue] for key, amount in amounts.items()
        )

    def reach(self, job: Job, amounts: Amounts, without: Iterable[str] = ()) -> int:
        """How far up the path of its queue all would stay in quota if the job took `amounts`; or BORROWING.

        0 is its queue. The level is that of the first queue on the path that would exceed its entitlement, or of the
        root.
        """
        self._recount(without)
        path, reach = self.tree.path(job.queue), len(self.tree.path(job.queue)) - 1
        for key, amount in amounts.items():
            if not amount:
                continue
            own = sum(held.get(key, 0) for queue, _, held in self.tree.held if queue == job.queue)
            if own + amount > self.part(job.queue, key):
                return BORROWING
            before = [self.tree.usage(name, key) for name in path]
            self.tree.held.append((job.queue, 0, {key: amount}))
            after = [self.tree.usage(name, key) for name in path]
            self.tree.held.pop()
            for level, name in enumerate(path):
                if after[level] > before[level] and after[level] > self.entitled[key][name]:
                    reach = min(reach, level)
                    break
        return reach


def _user(job: Job) -> int:
    return hash(job.user)
