"""The limits of a tree of quotas, regardless of usage: quotas, guaranteed parts, ceilings and fair shares.

A queue is a node of the tree, numbered by its index in the configuration. Amounts have an integer for each key:

    quota       = nominal + the sum over the children of (quota - guaranteed)
    guaranteed  = max(0, quota - lending limit): what no other queue may use; all of the quota at a root
    limit        = quota + borrowing limit; the quota at a root

An isolated queue has the guaranteed part and the limit of a root. Source: Kueue, pkg/cache/scheduler/resource_node.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kant.cluster.water_filling import divided
from kant.model import tenant
from kant.model.tenant import RESOURCES, Queue, QueueConfig, Quota, validated
from kant.model.units import FOREVER

Key = tuple[str, str]
"""GPU model ("": all models together) and resource, as in a `Quota`."""

Amounts = Sequence[int]
"""Milli-GPUs, milli-cores or MiB, one number for each key of the tree."""

_NOTHING = (0, 0, 0)


class QuotaLimits:
    """The queues of one tenancy and the limits that their quotas set. A key that no queue names is not limited.

    If only other queues name a key, a queue has no nominal amount of that key, and may borrow it without limit.
    A slot is one key at one node: node * len(keys) + key; -1 stands for the slot above a root.
    """

    def __init__(self, queue_config: QueueConfig) -> None:
        queues = validated(queue_config).queues
        self.queue_config = queue_config
        self.queues: tuple[Queue, ...] = queues
        self.index = {queue.name: node for node, queue in enumerate(queues)}
        self.parents = tuple(self.index[queue.parent] if queue.parent else -1 for queue in queues)
        self.paths: tuple[tuple[int, ...], ...] = tuple(self._path(node) for node in range(len(queues)))
        below: list[list[int]] = [[] for _ in queues]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                below[parent].append(node)
        self.children: tuple[tuple[int, ...], ...] = tuple(map(tuple, below))
        self.is_leaf = tuple(not children for children in self.children)
        self.downward = sorted(range(len(queues)), key=lambda node: len(self.paths[node]))  # parents first
        states = [[queues[node].state for node in path] for path in self.paths]
        self.starts = tuple(map(tenant.starts, states))  # whether waiting jobs of the queue may start
        self.accepts = tuple(map(tenant.accepts, states))  # whether new jobs may be submitted to the queue
        self.runs = tuple(map(tenant.runs, states))  # whether running jobs of the queue may continue
        limits = {node: (queue.max_time, queue.name) for node, queue in enumerate(queues) if queue.max_time}
        above = [[limits[node] for node in path if node in limits] for path in self.paths if limits]
        self.max_times = tuple(min(own, default=(0, "")) for own in above)
        """The longest run in each queue (µs; 0: no limit) and the queue that sets it; empty if no queue sets one."""
        self.budgets = {node: queue.budget for node, queue in enumerate(queues) if queue.budget is not None}
        self.keys: tuple[Key, ...] = tuple(sorted({(q.model, q.resource) for queue in queues for q in queue.quotas}))
        parts: tuple[str, ...] = RESOURCES
        self._parts = tuple((model, parts.index(resource)) for model, resource in self.keys)
        self._set_limits()

    def _path(self, node: int) -> tuple[int, ...]:
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return tuple(path)

    def _set_limits(self) -> None:
        width = len(self.keys)
        quotas: list[dict[Key, Quota]] = [{(q.model, q.resource): q for q in queue.quotas} for queue in self.queues]
        named = [of_queue.get(key, Quota()) for of_queue in quotas for key in self.keys]
        self._up = [above * width + key if above >= 0 else -1 for above in self.parents for key in range(width)]
        self._nominal = [quota.nominal for quota in named]
        self._quota = self._nominal.copy()
        self._guaranteed = [0] * len(named)
        self._limit = [0] * len(named)
        for node in reversed(self.downward):
            alone = self.parents[node] < 0 or self.queues[node].isolated
            for slot in range(node * width, node * width + width):
                lending = 0 if alone else named[slot].lending_limit
                borrowing = 0 if alone else named[slot].borrowing_limit
                quota = self._quota[slot]
                self._guaranteed[slot] = max(0, quota - lending) if lending >= 0 else 0
                self._limit[slot] = quota + borrowing if borrowing >= 0 else FOREVER
                if self._up[slot] >= 0:
                    self._quota[self._up[slot]] += quota - self._guaranteed[slot]
        self._ceiling = self._limit.copy()
        for node in self.downward:
            for slot in range(node * width, node * width + width):
                if self._up[slot] >= 0:
                    most = self._guaranteed[slot] + self._ceiling[self._up[slot]]
                    self._ceiling[slot] = min(self._limit[slot], most)
        self._user_limit = {slot: quota.user_limit for slot, quota in enumerate(named) if quota.user_limit >= 0}
        self._user_slots = [  # for each slot, the slots at and above it with a user limit
            tuple(above * width + key for above in path if above * width + key in self._user_limit)
            for path in self.paths
            for key in range(width)
        ]

    def path(self, queue: int) -> tuple[int, ...]:
        """Return the queue, its parent, and so on to its root."""
        return self.paths[queue]

    def weight(self, queue: int) -> int:
        return self.queues[queue].weight

    def nominal(self, queue: int, key: int) -> int:
        """Return the quota of the queue: its own nominal amount and what the queues below it may lend."""
        return self._quota[queue * len(self.keys) + key]

    def ceiling(self, queue: int, key: int) -> int:
        """Return the most that the queue could use if no other queue used anything, without regard to user limits."""
        return self._ceiling[queue * len(self.keys) + key]

    def amounts_of(self, held: Mapping[str, tuple[int, int, int]]) -> tuple[int, ...]:
        """Return a vector over the keys, from (milli-GPUs, milli-cores, MiB) on the nodes of each GPU model."""
        return tuple(
            sum(amounts[part] for amounts in held.values()) if model == "" else held.get(model, _NOTHING)[part]
            for model, part in self._parts
        )

    def fair_shares(self, key: int, demand: Sequence[int]) -> list[int]:
        """Return the entitlement of each node if node n's own jobs, running ones included, want `demand[n]` in total.

        From the root down, each node divides its entitlement among its children. First each child gets what it wants,
        up to its quota. What is left is divided by weighted max-min fairness, up to what each child wants and may
        borrow. A node's own jobs take part like a child with the node's nominal amount and weight 1. All entitlements
        can be charged at the same time without exceeding a limit. User limits are ignored.

        Source: Bertsekas and Gallager, Data Networks, section 6.5.2; the over-quota weight of KAI-Scheduler.
        """
        width = len(self.keys)
        quota, guaranteed, limit = (limits[key::width] for limits in (self._quota, self._guaranteed, self._limit))
        wants = list(demand)
        for node in reversed(self.downward):
            wants[node] = min(wants[node], limit[node])
            if self.parents[node] >= 0:
                wants[self.parents[node]] += max(0, wants[node] - guaranteed[node])
        shares = [0] * len(self.queues)
        for node in self.downward:
            if self.parents[node] < 0:
                shares[node] = wants[node]
            below = self.children[node]
            asked = [max(0, wants[child] - guaranteed[child]) for child in below] + [demand[node]]
            lent = [quota[child] - guaranteed[child] for child in below] + [self._nominal[node * width + key]]
            first = [min(pair) for pair in zip(asked, lent, strict=True)]
            more = divided(
                shares[node] - sum(first),
                [most - floor for most, floor in zip(asked, first, strict=True)],
                [self.queues[child].weight for child in below] + [1],
            )
            for child, floor, extra in zip(below, first[:-1], more[:-1], strict=True):
                shares[child] = min(wants[child], guaranteed[child]) + floor + extra
        return shares
