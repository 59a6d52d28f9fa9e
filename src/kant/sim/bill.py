"""Bill: what users and queues held, waited for and left idle, by GPU model, folded from journals.

There are three amounts of GPU time. *held*: by all runs, also those that were stopped. *waited*: the GPUs that a job
asks for, while it waits. *fragments*: the idle GPUs of partly used nodes in service, divided among the jobs on each
node in proportion to what they hold there. Amounts are integers: the parts of a node's idle GPUs add up exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.live.journal_walk import JournalWalk, read_journal
from kant.model.decision import Plan
from kant.model.event import Event, QueuesChanged
from kant.model.placement import MASK, MILLI, NODE
from kant.model.status import NodeStatus
from kant.model.units import FOREVER, GPU, HOUR
from kant.sim.node_stands import NODE_EVENTS, names_of

AMOUNTS = ("held", "waited", "fragments")

NO_MODEL = "gpu"
"""The name for GPUs of nodes that state no model."""

Key = tuple[str, str, str]
"""User, queue and GPU model."""


class Bill:
    """Adds up consecutive journals, from `since` until `until`, microseconds since the Unix epoch (in a record without
    dates: since its beginning). `prices` are thousandths of the currency for an hour of one GPU; without them the last
    prices in each journal's queues apply."""

    def __init__(self, since: int = 0, until: int = FOREVER, prices: dict[str, int] | None = None) -> None:
        self.since, self.until = since, until
        self.given = prices
        self.prices = prices or {}
        self.totals: dict[Key, list[int]] = {}
        """Milli-GPU-microseconds of each of `AMOUNTS`."""

    def read(self, path: Path) -> None:
        """Add a journal. Raises InputError for one that cannot be read, or contradicts itself."""
        walk = read_journal(path)
        _Reading(self, walk).run()

    def rows(self, by: Sequence[str]) -> list[dict[str, Any]]:
        """Return GPU-hours and costs by some of user, queue and model, dearest first; costs None without a price."""
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        for key, totals in sorted(self.totals.items()):
            own = dict(zip(("user", "queue", "model"), key, strict=True))
            name = tuple(own[part] for part in by)
            row = found.setdefault(name, {part: own[part] for part in by} | dict.fromkeys(AMOUNTS, 0) | {"price": {}})
            for amount, total in zip(AMOUNTS, totals, strict=True):
                row[amount] += total
                if total and row["price"] is not None:
                    price = self.prices.get(key[2])
                    row["price"] = None if price is None else _plus(row["price"], amount, total * price)
        return sorted((_priced(row, by) for row in found.values()), key=lambda row: -(row["cost"] or row["gpu_hours"]))


def _plus(costs: dict[str, int], amount: str, more: int) -> dict[str, int]:
    return costs | {amount: costs.get(amount, 0) + more}


def _priced(row: dict[str, Any], by: Sequence[str]) -> dict[str, Any]:
    costs = row["price"]
    cost = [None if costs is None else round(costs.get(amount, 0) / GPU / HOUR / 1000, 2) for amount in AMOUNTS]
    hours = [round(row[amount] / GPU / HOUR, 6) for amount in AMOUNTS]
    return (
        {part: row[part] for part in by}
        | dict(zip(("gpu_hours", "waited_gpu_hours", "fragment_gpu_hours"), hours, strict=True))
        | dict(zip(("cost", "waited_cost", "fragment_cost"), cost, strict=True))
    )


class _Reading:
    """Reads one journal into a bill."""

    def __init__(self, bill: Bill, walk: JournalWalk) -> None:
        self.bill, self.walk = bill, walk
        self.state: ClusterState = walk.new_state(walk.profile())
        begins, zero = walk.header.begins, walk.header.zero
        self.begins, self.ends = max(bill.since - zero, begins), bill.until - zero
        self.now = begins
        self.rates: dict[Key, list[int]] = {}
        self._since: dict[Key, int] = {}
        self._of_job: dict[int, list[tuple[Key, int, int]]] = {}  # for each job row, the amounts that it adds to
        self._of_node: dict[int, list[tuple[Key, int]]] = {}  # for each node, how its idle GPUs are divided
        self._on: dict[int, dict[int, int]] = {}  # for each node, what each job row holds on it
        self._nodes: dict[int, set[int]] = {}  # for each job row, its nodes

    def run(self) -> None:
        for line in self.walk:
            if not isinstance(line, Plan):
                self._take(line)
        self._move(max(self.walk.time, self.now))
        for key in list(self.rates):
            self._add(key, 0, 0)

    def _take(self, event: Event) -> None:
        state = self.state
        row = state.rows.get(getattr(event, "job", ""), -1) if isinstance(getattr(event, "job", None), str) else -1
        nodes = self._nodes_of(row)
        names = names_of(event) if isinstance(event, NODE_EVENTS) else ()
        nodes |= {state.node_index[name] for name in names if name in state.node_index}
        self._move(event.time)
        self.walk.apply(state, event)
        if isinstance(event, QueuesChanged):
            if self.bill.given is None and event.queue_config.prices:
                self.bill.prices = self.bill.prices | dict(event.queue_config.prices)
            return
        if row < 0 and len(state.ids) and hasattr(event, "job"):
            row = len(state.ids) - 1
        if row >= 0:
            self._settle(row)
            nodes |= self._nodes_of(row)
        nodes |= {state.node_index[name] for name in names if name in state.node_index}
        for node in nodes:
            self._share(node)

    def _nodes_of(self, row: int) -> set[int]:
        held = self.state.running.get(row)
        return set() if held is None else set(held[:, NODE].tolist())

    def _move(self, time: int) -> None:
        self.now = max(self.now, time)

    def _settle(self, row: int) -> None:
        """Record what a job holds or waits for from now on."""
        state = self.state
        for key, amount, milli in self._of_job.pop(row, ()):
            self._add(key, amount, -milli)
        for node in self._nodes.pop(row, ()):
            self._on[node].pop(row, None)
        job, found = state.live.get(row), list[tuple[Key, int, int]]()
        if row in state.running and job is not None:
            for piece in state.running[row].tolist():
                milli = piece[MASK].bit_count() * piece[MILLI]
                found.append(((job.user, job.queue, state.nodes[piece[NODE]].model or NO_MODEL), 0, milli))
                own = self._on.setdefault(piece[NODE], {})
                self._nodes.setdefault(row, set()).add(piece[NODE])
                own[row] = own.get(row, 0) + milli
        elif row in state.pending and job is not None:
            models = {state.shapes.pool_keys[pool][0] or NO_MODEL for pool in state.shape_of(row).pools} or {NO_MODEL}
            cheapest = min(models, key=lambda model: (self.bill.prices.get(model, FOREVER), model))
            found.append(((job.user, job.queue, cheapest), 1, int(state.jobs[row, c.J_MILLI])))
        self._of_job[row] = found
        for key, amount, milli in found:
            self._add(key, amount, milli)

    def _share(self, node: int) -> None:
        """Divide the idle GPUs of a node from now on among the jobs that use it."""
        state = self.state
        for key, milli in self._of_node.pop(node, ()):
            self._add(key, 2, -milli)
        own = {row: milli for row, milli in self._on.get(node, {}).items() if milli}
        serves = state.table.item(node, c.STATUS) == NodeStatus.IN_SERVICE
        idle, held, passed = state.table.item(node, c.FREE) if serves else 0, sum(own.values()), 0
        parts = list[tuple[Key, int]]()
        for row, milli in own.items():
            before, passed = passed, passed + milli
            part = idle * passed // held - idle * before // held
            parts.append(((state.live[row].user, state.live[row].queue, state.nodes[node].model or NO_MODEL), part))
        self._of_node[node] = parts
        for key, milli in parts:
            self._add(key, 2, milli)

    def _add(self, key: Key, amount: int, milli: int) -> None:
        """Add up all amounts until now; from now on the rate of `amount` is higher by `milli`."""
        rates = self.rates.setdefault(key, [0, 0, 0])
        since = max(self._since.get(key, self.now), self.begins)
        lasted = max(min(self.now, self.ends) - since, 0)
        if lasted and any(rates):
            totals = self.bill.totals.setdefault(key, [0, 0, 0])
            for at, rate in enumerate(rates):
                totals[at] += rate * lasted
        self._since[key] = self.now
        rates[amount] += milli


def bill_of(paths: Iterable[Path], since: int = 0, until: int = FOREVER, prices: dict[str, int] | None = None) -> Bill:
    """Return the bill of consecutive journals, given in the order in which they began."""
    bill = Bill(since, until, prices)
    for path in paths:
        bill.read(path)
    return bill
