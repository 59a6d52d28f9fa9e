"""A view: the state of a cluster that rules examine, at one moment, with the version to which a plan is bound."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec
from msgspec import Struct, field


class JobView(Struct, frozen=True, kw_only=True):
    """A job that has not ended. Times are microseconds on the clock of its world, -1 for none.

    `nodes` has the GPUs that it holds on each node; `lost_gpu_s` is the work (GPU-seconds) lost if it is stopped now.
    `run` is a different number for each run of the job. Without `preemptible` it may not be stopped for other jobs.
    """

    id: str
    phase: str
    queue: str
    user: str = ""
    name: str = ""
    priority: int = 0
    gpus: float = 0.0
    pods: int = 1
    submitted_us: int = -1
    started_us: int = -1
    run: int = 0
    preemptible: bool = True
    nodes: dict[str, float] = field(default_factory=dict)
    lost_gpu_s: float = 0.0
    limit_us: int = -1
    waits: str = ""

    @property
    def runs(self) -> bool:
        return self.phase in ("running", "stopping")


class QueueView(Struct, frozen=True, kw_only=True):
    """The quota and use of a queue on the nodes of one GPU model ("any": all models). None: the queue has no quota."""

    queue: str
    parent: str = ""
    model: str
    nominal_gpus: float | None
    used_gpus: float | None
    borrowed_gpus: float | None
    lent_gpus: float | None
    running: int
    waiting: int
    waiting_gpus: float
    state: str = "open"


class NodeView(Struct, frozen=True, kw_only=True):
    """A node: its GPUs, how many of them are free, its leaf switch, and whether it accepts jobs."""

    node: str
    gpus: int
    free: float
    leaf: str = ""
    status: str = "in service"


class BookedView(Struct, frozen=True, kw_only=True):
    """A reservation. Times are microseconds on the clock of its world."""

    name: str
    start_us: int
    end_us: int
    gpus: int
    nodes: dict[str, int] = field(default_factory=dict)


class WorldView(Struct, frozen=True, kw_only=True):
    """A world at `now_us`. Its clock's zero is `zero_us`, microseconds since the Unix epoch (0: it has no dates)."""

    now_us: int
    zero_us: int = 0
    jobs: dict[str, JobView]
    queues: list[QueueView]
    nodes: list[NodeView]
    booked: list[BookedView]

    def lineage(self, queue: str) -> tuple[str, ...]:
        """Return a queue and its ancestors: a caller who owns one of these owns the queue."""
        above = {each.queue: each.parent for each in self.queues}
        path = [queue]
        while above.get(path[-1]) and above[path[-1]] not in path:
            path.append(above[path[-1]])
        return tuple(path)

    def facts(self) -> dict[str, str]:
        """Return the facts on which a plan is based: a text for each job, quota, node and reservation, by name.

        The passing of time alone changes no fact.
        """
        found = {
            f"job {job.id}": f"{job.phase} {job.run} {job.queue} {job.priority} {job.gpus} {sorted(job.nodes.items())}"
            for job in self.jobs.values()
        }
        found |= {f"queue {each.queue} {each.model}": f"{each.nominal_gpus}" for each in self.queues}
        found |= {f"node {each.node}": f"{each.gpus} {each.status}" for each in self.nodes}
        return found | {f"reservation {each.name}": f"{each.start_us} {each.end_us}" for each in self.booked}

    @property
    def version(self) -> str:
        """A digest of all facts (16 hexadecimal digits): it changes if anything on which a plan is based changes."""
        text = msgspec.json.encode(sorted(self.facts().items()))
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def on_node(self, node: str) -> list[JobView]:
        """The jobs that hold resources on a node."""
        return [job for job in self.jobs.values() if node in job.nodes]


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the differences between the facts of two views, as sentences."""
    found = [f"{what} is new" for what in after if what not in before]
    found += [f"{what} is gone" for what in before if what not in after]
    return found + [f"{what} has changed" for what, how in after.items() if before.get(what, how) != how]


def some(texts: Iterable[str], most: int = 5) -> str:
    """Return the first `most` texts as one text, and how many more there are."""
    every = list(texts)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
