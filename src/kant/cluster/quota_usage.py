"""QuotaUsage: what each queue holds, what it has used, and what its quota still allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from kant.cluster.elastic import held_by
from kant.cluster.over_budget import OverBudget
from kant.cluster.shapes import Shape, Shapes
from kant.cluster.usage import UsageHours
from kant.model.errors import StateError
from kant.model.placement import CPU, MASK, MEMORY, MILLI, NODE, PODS, Allocation
from kant.model.tenant import Queue, QueueConfig

if TYPE_CHECKING:
    from kant.cluster.budgets import Budgets
    from kant.cluster.quota_tree import QuotaTree

Amounts = tuple[int, ...]
"""One entry for each key of the quota tree."""

Held = tuple[int, int, int]
"""Milli-GPUs, milli-cores, MiB."""

Running = dict[int, tuple[Shape, Allocation]]
"""The running jobs by row: what they ask for, and what they hold."""


class QuotaUsage:
    """The quota accounting of one cluster. Queues and users have the numbers of `StateData.queues` and `users`.

    `tree` is None if no queue has been declared; then nothing is limited. `quota_version` counts the changes that may
    let a job start that lacked quota: refunds of quota, and changes of the queues, the last at `changed_at` (µs; -1:
    none). `declared` are the queues as last
    declared; `queue_config` also has the user queues, in the order of their first jobs.
    """

    def __init__(self, shapes: Shapes, pool_of_node: list[int], usage_hours: bool = True) -> None:
        self.shapes = shapes
        self.pool_of_node = pool_of_node
        self.declared = self.queue_config = QueueConfig()
        self.shared: dict[str, Queue] = {}  # queues that have a queue below them for each user
        self._of_users: dict[str, str] = {}  # user queues, and their parents
        self.tree: QuotaTree | None = None
        self.node_of: list[int] = []  # by queue: its node in the tree, -1 if it is not in the tree
        self.held: list[list[int]] = []  # by queue: what it holds, as `Held`
        self.hours = UsageHours() if usage_hours else None  # use by hour
        self.budgets: Budgets | None = None  # use of the month, if a queue has a budget
        self.charged: dict[int, tuple[int, int, Held, Amounts]] = {}  # running job -> queue, user, what it holds
        self.quota_version = 0
        self.changed_at = -1
        self.limits_users = False
        self._names: list[str] = []
        self._amounts: dict[int, Amounts] = {}  # by shape index, for shapes charged on one GPU model

    def queue_added(self, name: str) -> None:
        """Add a queue that no job has named before."""
        self._names.append(name)
        self.held.append([0, 0, 0])
        self.node_of.append(self._node(name))

    def _node(self, name: str) -> int:
        return self.tree.index.get(name, -1) if self.tree is not None else -1

    def queue_of(self, queue: str, user: str) -> str:
        """Return the queue in which a job of `user` that names `queue` counts."""
        return f"{queue}/{user}" if user and queue in self.shared else queue

    def user_queue_added(self, name: str, parent: str, running: Running, now: int) -> None:
        """Add the undeclared queue of a user, with the user's first job."""
        self._of_users[name] = parent
        self.queues_changed(self.declared, running, now)

    def accepts(self, queue: int, limit: int) -> bool:
        """Return whether the queue accepts new jobs with a limit of `limit` microseconds (-1: no limit)."""
        if self.tree is None or self.node_of[queue] < 0:
            return True
        too_long = self.tree.max_times and 0 < self.max_time(queue)[0] < limit
        return self.tree.accepts[self.node_of[queue]] and not too_long

    def max_time(self, queue: int) -> tuple[int, str]:
        """Return the longest run in the queue, microseconds, and the queue that sets it; (0, "") if none does."""
        times, node = self.tree.max_times if self.tree is not None else (), self.node_of[queue]
        return times[node] if times and node >= 0 else (0, "")

    def amounts(self, shape: Shape, allocation: Allocation | None = None) -> Amounts:
        """Return what a gang is charged against quotas, on its one GPU model or on the models of `allocation`.

        With neither, a gang is charged as on a model that no quota names. `allocation` sizes an elastic gang.
        A gang in a node set may run on a model that has since left the set, so the nodes of `allocation` decide.
        """
        if self.tree is None:
            return ()
        if allocation is not None and (shape.model is None or shape.ceiling or shape.ask.node_sets):
            return self.tree.amounts_of(self._by_model(shape, allocation))
        known = self._amounts.get(shape.index)
        if known is None:
            held = {shape.model or "": (shape.charged_milli, shape.cpu, shape.memory)}
            known = self._amounts[shape.index] = self.tree.amounts_of(held)
        return known

    def _by_model(self, shape: Shape, allocation: Allocation) -> dict[str, Held]:
        found: dict[str, Held] = {}
        for piece in allocation.tolist():
            model = self.shapes.pool_keys[self.pool_of_node[piece[NODE]]][0]
            milli, cpu, memory = found.get(model, (0, 0, 0))
            own = piece[MASK].bit_count() * piece[MILLI]
            if not piece[MASK] and shape.charged_milli > shape.gpu_milli:
                own = worth_of_parts(shape, piece)
            found[model] = milli + own, cpu + piece[CPU], memory + piece[MEMORY]
        return found

    def started(
        self, row: int, queue: int, user: int, shape: Shape, allocation: Allocation, now: int, charges: bool = True
    ) -> None:
        """Charge a job that starts; without `charges` the tree was charged already."""
        held = charged_by(shape, allocation) if shape.ceiling else (shape.charged_milli, shape.cpu, shape.memory)
        own = self.held[queue]
        own[0] += held[0]
        own[1] += held[1]
        own[2] += held[2]
        if self.hours is not None:
            self.hours.changed(queue, held[0], now)
        if self.budgets is not None:
            self.budgets.changed(queue, user, held[0], now)
        amounts = self.amounts(shape, allocation) if self.tree is not None else ()
        self.charged[row] = (queue, user, held, amounts)
        if charges and self.tree is not None and self.node_of[queue] >= 0:
            self.tree.charge(self.node_of[queue], user, amounts)

    def stopped(self, row: int, now: int, refunds: bool = True) -> None:
        """Refund a job that stops; without `refunds` the tree was refunded already."""
        queue, user, held, amounts = self.charged.pop(row)
        own = self.held[queue]
        own[0] -= held[0]
        own[1] -= held[1]
        own[2] -= held[2]
        if self.hours is not None:
            self.hours.changed(queue, -held[0], now)
        if self.budgets is not None:
            self.budgets.changed(queue, user, -held[0], now)
        if refunds and self.tree is not None and self.node_of[queue] >= 0:
            self.tree.refund(self.node_of[queue], user, amounts)
            self.quota_version += 1

    def resized(self, row: int, shape: Shape, allocation: Allocation, now: int) -> None:
        """Charge an elastic gang for its new `allocation`."""
        queue, user = self.charged[row][:2]
        self.stopped(row, now)
        self.started(row, queue, user, shape, allocation, now)

    def holds_outside(self) -> bool:
        """Return whether running jobs hold something in queues outside the tree, which are entitled to nothing."""
        return any(any(held) for node, held in zip(self.node_of, self.held, strict=True) if node < 0)

    def over_budget(self, now: int) -> OverBudget | None:
        """Return the scopes that have used up a budget by `now`; None without budgets."""
        if self.budgets is None or self.tree is None:
            return None
        return self.budgets.over(self.tree, self.node_of, now)

    def queues_changed(self, queue_config: QueueConfig, running: Running, now: int) -> None:
        """Replace the queues and quotas, and charge the running jobs again, whether they fit or not."""
        self.declared, self.changed_at = queue_config, now
        self.shared = {queue.name: queue for queue in queue_config.queues if queue.user_queues}
        if self._of_users:  # user queues stay even if no longer configured: running jobs count there
            above = {queue.name: queue for queue in queue_config.queues}
            own = [
                _user_queue(name, above[parent])
                for name, parent in self._of_users.items()
                if name not in above and parent in above
            ]
            queue_config = structs.replace(queue_config, queues=(*queue_config.queues, *own))
        self.queue_config = queue_config
        self.tree = _tree_of(queue_config) if queue_config.queues else None
        self.limits_users = limits_users(queue_config)
        if self.budgets is not None:  # the use is kept when budgets are added or removed
            self.budgets.version += 1
        elif self.tree is not None and self.tree.budgets:
            from kant.cluster.budgets import Budgets  # loaded with the first budget

            self.budgets = Budgets(now)
            for queue, user, held, _ in self.charged.values():
                self.budgets.changed(queue, user, held[0], now)
        self._amounts.clear()
        self.node_of = [self._node(name) for name in self._names]
        for row, (queue, user, held, _) in list(self.charged.items()):
            amounts = self.amounts(*running[row])
            self.charged[row] = (queue, user, held, amounts)
            if self.tree is not None and self.node_of[queue] >= 0:
                self.tree.charge(self.node_of[queue], user, amounts)
        self.quota_version += 1

    def check(self, running: dict[int, tuple[int, Shape, Allocation]]) -> None:
        """Raise StateError unless the accounting equals the sum over the running jobs (queue, shape, allocation)."""
        held = [[0, 0, 0] for _ in self._names]
        for queue, shape, allocation in running.values():
            parts = charged_by(shape, allocation) if shape.ceiling else (shape.charged_milli, shape.cpu, shape.memory)
            for i, part in enumerate(parts):
                held[queue][i] += part
        if held != self.held:
            raise StateError("violated invariant: what a queue holds is the sum over its running jobs")
        if self.charged.keys() != running.keys():
            raise StateError("violated invariant: a job is charged while it runs, and only then")
        if self.tree is not None:
            known = [(row, queue) for row, (queue, _, _) in running.items() if self.node_of[queue] >= 0]
            self.tree.check((self.node_of[queue], self.charged[row][1], self.charged[row][3]) for row, queue in known)
            for row, (_, shape, allocation) in running.items():
                if self.charged[row][3] != self.amounts(shape, allocation):
                    raise StateError("violated invariant: a job is charged for what it holds")


def limits_users(queue_config: QueueConfig) -> bool:
    """Return whether a quota or a budget limits single users of a queue."""
    quotas = any(quota.user_limit >= 0 for queue in queue_config.queues for quota in queue.quotas)
    return quotas or any(queue.budget is not None and queue.budget.limits_users for queue in queue_config.queues)


def _user_queue(name: str, parent: Queue) -> Queue:
    """Return the queue of one user of `parent`, with the settings of `parent` for single jobs."""
    return Queue(name, parent.name, min_run=parent.min_run, fallback=parent.fallback, node_wait=parent.node_wait)


def charged_by(shape: Shape, allocation: Allocation) -> Held:
    """Return what a gang is charged for these pieces, whatever their GPU models."""
    milli, cpu, memory = held_by(allocation)
    if shape.charged_milli > shape.gpu_milli:
        milli += sum(worth_of_parts(shape, piece) for piece in allocation.tolist() if not piece[MASK])
    return milli, cpu, memory


def worth_of_parts(shape: Shape, piece: list[int]) -> int:
    """Return the milli-GPUs of a piece without devices: pods times MILLI, if that column matches a group of `shape`.

    Pieces in journals of Kant 0.3.0 lack that number. Then the pods are split among groups so that their requests add
    up to the piece. If several splits are possible, the one with the most pods of the first groups is used.
    """
    kinds = [group.demand for group in shape.groups if not group.demand.gpus]
    pods, cpu, memory = piece[PODS], piece[CPU], piece[MEMORY]
    for one in kinds:
        if (pods * one.cpu, pods * one.memory, one.charged_milli) == (cpu, memory, piece[MILLI]):
            return pods * piece[MILLI]

    def search(at: int, pods: int, cpu: int, memory: int) -> int | None:
        if at == len(kinds):
            return 0 if pods == cpu == memory == 0 else None
        one = kinds[at]
        for count in range(pods, -1, -1) if at + 1 < len(kinds) else (pods,):
            if count * one.cpu <= cpu and count * one.memory <= memory:
                rest = search(at + 1, pods - count, cpu - count * one.cpu, memory - count * one.memory)
                if rest is not None:
                    return count * one.charged_milli + rest
        return None

    return search(0, pods, cpu, memory) or 0


def _tree_of(queue_config: QueueConfig) -> QuotaTree:
    from kant.cluster.quota_tree import QuotaTree  # loaded with the first queue

    return QuotaTree(queue_config)
