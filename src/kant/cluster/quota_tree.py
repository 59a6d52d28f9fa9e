"""The tree of quotas: what each queue uses, may still take, lends and borrows.

For each key (`cluster/quota_limits.py` has the limits):

    usage  = what the queue's own jobs hold + the sum over its children of max(0, usage - guaranteed)

So a queue is charged for what it uses, and its parent only for what exceeds the guaranteed part. Growing usage may not
exceed the limit of any charged node.

Source: Kueue, pkg/cache/scheduler/resource_node.go. Kant differs if quotas were lowered below their usage: Kueue
subtracts the overuse of a cohort also from the guaranteed part of its queues; Kant lets the queues keep that part.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.quota_columns import (
    U_OWN,
    U_USAGE,
    USED_WIDTH,
    any_beyond_nominal,
    binding,
    charge,
    is_short,
    refund,
)
from kant.cluster.quota_limits import Amounts, Key, QuotaLimits
from kant.model.errors import StateError
from kant.model.tenant import QueueConfig

Held = tuple[int, int, Amounts]
"""The queue and the user of a job, and what the job holds."""


class Shortage(NamedTuple):
    """Why amounts do not fit: `queue` is the queue whose limit binds, at or above the requesting queue.

    The kinds are user: the limit of one user in `queue`; borrowing: `queue` may not borrow more; quota: all of the
    quota of `queue` is in use. `available` is how much of `asked` would fit; negative if overused.
    """

    queue: int
    key: Key
    asked: int
    available: int
    kind: Literal["user", "borrowing", "quota"]


class QuotaTree(QuotaLimits):
    """The queues of one tenancy and the usage of their quotas. A user is any integer.

    `charge` accepts any amount, since quotas may be lowered while jobs run; `shortage` says whether an amount fits.
    `charge`, `refund` and `shortage` take time linear in the depth of the tree, not in its size.
    """

    def __init__(self, queue_config: QueueConfig) -> None:
        super().__init__(queue_config)
        columns = [self._quota, self._guaranteed, self._limit, self._ceiling, self.nominal_parts, self._up]
        self.limits: Table = np.array(columns, dtype=np.int64).T.copy()
        self.used: Table = np.zeros((len(self.limits), USED_WIDTH), dtype=np.int64)
        self._held: dict[int, dict[int, int]] = {}  # by slot with a user limit: what each user holds at or below it

    # --- what is used ------------------------------------------------------------------------------------------

    def charge(self, queue: int, user: int, amounts: Amounts) -> None:
        """Charge `amounts` to a job of `user` in `queue`, whether they fit or not."""
        for slot, amount in enumerate(amounts, start=queue * len(self.keys)):
            if amount:
                for limited in self._user_slots[slot] if self._user_limit else ():
                    held = self._held.setdefault(limited, {})
                    held[user] = held.get(user, 0) + amount
                charge(self.limits, self.used, slot, amount)

    def refund(self, queue: int, user: int, amounts: Amounts) -> None:
        """Refund `amounts` of a job of `user` in `queue`. Raises StateError if they were never charged."""
        first = queue * len(self.keys)
        for slot, amount in enumerate(amounts, start=first):
            least = self.used.item(slot, U_OWN)
            for limited in self._user_slots[slot] if self._user_limit else ():
                least = min(least, self._of_user(limited, user))
            if amount > least:
                key = self.keys[slot - first]
                raise StateError(f"queue {self.queues[queue].name!r} returns {amount} of {key}, but holds only {least}")
        for slot, amount in enumerate(amounts, start=first):
            if amount == 0:
                continue
            for limited in self._user_slots[slot] if self._user_limit else ():
                held = self._held[limited]
                held[user] -= amount
                if held[user] == 0:
                    del held[user]
                    if not held:
                        del self._held[limited]
            refund(self.limits, self.used, slot, amount)

    def shortage(self, queue: int, user: int, amounts: Amounts) -> Shortage | None:
        """Return why a job of `user` in `queue` may not take `amounts` now; None if it may.

        Only the limits of queues whose usage would grow are checked; overuse in other queues is ignored.
        """
        for slot, amount in enumerate(amounts, start=queue * len(self.keys)):
            if amount <= 0:
                continue
            for limited in self._user_slots[slot] if self._user_limit else ():
                left = self._user_limit[limited] - self._of_user(limited, user)
                if amount > left:
                    return Shortage(limited // len(self.keys), self.keys[slot % len(self.keys)], amount, left, "user")
            if is_short(self.limits, self.used, slot, amount):
                return self.short(amount, *binding(self.limits, self.used, slot))
        return None

    def usage(self, queue: int, key: int) -> int:
        """Return what the jobs of the queue hold, plus what the queues below hold beyond their guaranteed parts."""
        return self.used.item(queue * len(self.keys) + key, U_USAGE)

    def own(self, queue: int, key: int) -> int:
        """Return what the queue's own jobs hold."""
        return self.used.item(queue * len(self.keys) + key, U_OWN)

    def borrowed(self, queue: int, key: int) -> int:
        """Return how far the queue, with all below it, is beyond its quota."""
        slot = queue * len(self.keys) + key
        return max(0, self.used.item(slot, U_USAGE) - self._quota[slot])

    def available(self, queue: int, key: int) -> int:
        """Return the most that the queue may still take, without regard to user limits; negative if overcharged."""
        return binding(self.limits, self.used, queue * len(self.keys) + key)[0]

    def held_by(self, queue: int, user: int, key: int) -> int:
        """Return what the user holds in the queue and below it; 0 if the queue has no user limit."""
        return self._of_user(queue * len(self.keys) + key, user)

    def _of_user(self, slot: int, user: int) -> int:
        held = self._held.get(slot)
        return held.get(user, 0) if held else 0

    def shortage_ever(self, queue: int, amounts: Amounts) -> Shortage | None:
        """Return why `amounts` would not fit even if no quota were used; None if they would."""
        for key, amount in enumerate(amounts):
            slot = queue * len(self.keys) + key
            for limited in self._user_slots[slot]:
                if 0 < amount > self._user_limit[limited]:
                    limit = self._user_limit[limited]
                    return Shortage(limited // len(self.keys), self.keys[key], amount, limit, "user")
            if 0 < amount > self._ceiling[slot]:
                return self.short(amount, *binding(self.limits, np.zeros_like(self.used), slot))
        return None

    # --- lending and borrowing ---------------------------------------------------------------------------------

    @cached_property
    def nominal_quotas(self) -> list[int]:
        """The quota (`nominal`) of each slot."""
        return [self.nominal(node, key) for node in range(len(self.queues)) for key in range(len(self.keys))]

    @cached_property
    def own_min_runs(self) -> dict[int, int]:
        """The minimum run time of jobs before preemption (µs), by node, for queues that set one."""
        return {node: queue.min_run for node, queue in enumerate(self.queues) if queue.min_run}

    @cached_property
    def node_waits(self) -> dict[int, int]:
        """How long jobs wait for a node before they preempt others (µs), by node, for queues that set it."""
        return {node: queue.node_wait for node, queue in enumerate(self.queues) if queue.node_wait}

    @cached_property
    def nominal_parts(self) -> list[int]:
        """The part of the nominal quotas that is for the queue's own jobs, by slot.

        A leaf has all of its quota. Any other queue has its own nominal amount; the rest is for the queues below it.
        """
        parts: list[int] = []
        for node, queue in enumerate(self.queues):
            named: dict[Key, int] = {(quota.model, quota.resource): quota.nominal for quota in queue.quotas}
            own = [self.nominal(node, key) if self.is_leaf[node] else named.get(name, 0)
                   for key, name in enumerate(self.keys)]  # fmt: skip
            parts += own
        return parts

    def any_beyond_nominal(self) -> bool:
        """Return whether the own jobs of some queue hold more than the queue's part of the nominal quotas."""
        return any_beyond_nominal(self.limits, self.used)

    # --- copies and checks -------------------------------------------------------------------------------------

    def copy(self) -> QuotaTree:
        """Return a tree with the same usage, for what-if changes. Both share everything but the usage."""
        other = object.__new__(QuotaTree)
        other.__dict__.update(self.__dict__)
        other.used = self.used.copy()
        other._held = {slot: held.copy() for slot, held in self._held.items()}
        return other

    def check(self, held: Iterable[Held] | None = None) -> None:
        """Raise StateError unless the usage is consistent, and equals the usage by the jobs in `held`, if given."""
        width = len(self.keys)
        for slot, (used, own) in enumerate(self.used.tolist()):
            node, key = divmod(slot, width)
            charged = sum(
                max(0, self.usage(child, key) - self._guaranteed[child * width + key]) for child in self.children[node]
            )
            if used != own + charged or own < 0:
                raise StateError(
                    f"queue {self.queues[node].name!r} uses {used} of {self.keys[key]}, not what its own jobs hold "
                    f"({own}) and what those below it hold beyond their guaranteed parts ({charged})"
                )
        for slot in self._user_limit:
            node, key = divmod(slot, width)
            users = self._held.get(slot, {})
            below = sum(
                own for other, own in enumerate(self.used[key::width, U_OWN].tolist()) if node in self.paths[other]
            )
            if sum(users.values()) != below or min(users.values(), default=1) <= 0:
                raise StateError(
                    f"users hold other amounts of {self.keys[key]} in queue {self.queues[node].name!r} than {below}"
                )
        if held is not None:
            fresh = QuotaTree(self.queue_config)
            for queue, user, amounts in held:
                fresh.charge(queue, user, amounts)
            if not np.array_equal(fresh.used, self.used) or fresh._held != self._held:
                raise StateError("violated invariant: quota usage is the sum over the jobs")

    # --- finding the limit that binds --------------------------------------------------------------------------

    def short(self, asked: int, available: int, slot: int) -> Shortage:
        """Return the shortage of a job that asks for `asked` if the limit of `slot` binds."""
        node, key = divmod(slot, len(self.keys))
        alone = self.parents[node] < 0 or self.queues[node].isolated
        return Shortage(node, self.keys[key], asked, available, "quota" if alone else "borrowing")
