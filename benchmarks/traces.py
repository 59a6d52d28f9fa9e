"""Fixed runs that benchmarks and counts share: what arrives, where, under which profile, of which tenants."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kant.metrics.result import RunResult
from kant.model.node import ClusterSpec, Node
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.model.units import GPU, HOUR, SECOND
from kant.scheduler.profile import builtin_profile
from kant.sim.past import read_past
from kant.sim.question import Question
from kant.sim.run import RunHooks, simulate
from kant.sim.whatif import what_if
from kant.sim.whatif_request import changes_of, end_of_futures
from kant.workload.generate import generate
from kant.workload.workload import Workload

DEPARTMENTS = ("language", "vision", "science")
QUOTAS = (64, 40, 32, 24, 16, 16, 12, 12, 8, 8, 8, 4, 4, 4, 4)
"""GPUs of each of the fifteen queues; together they are the 256 of the cluster."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One run with everything that decides it; `simulate` runs it, under `profile` unless another one is named."""

    name: str
    workload: Workload
    cluster: ClusterSpec
    profile: str
    queue_config: QueueConfig | None = None

    def simulate(self, profile: str | None = None) -> RunResult:
        return simulate(
            self.workload, self.cluster, builtin_profile(profile or self.profile), queue_config=self.queue_config
        )

    def first(self, jobs: int) -> Trace:
        """The run of the first jobs alone."""
        return replace(self, workload=self.workload.take(np.arange(min(jobs, len(self.workload)))))


def idle(jobs: int = 4000) -> Trace:
    """Jobs like Philly's on the 1,408 GPUs of Philly under FIFO. None waits."""
    workload = generate("philly", jobs=jobs, days=jobs / 8000 * 30, seed=1)
    return Trace("idle-fifo", workload.take(workload.gpus <= 32), cluster(176, 16), "fifo")


def saturated(days: float = 10, profile: str = "kant") -> Trace:
    """Jobs like those of Helios Venus that ask for 95 % of 256 GPUs; their queues have no quotas."""
    workload = generate("helios-venus", gpus=256, load=0.95, days=days, seed=1)
    return Trace("saturated-kant", workload, cluster(32, 8), profile)


def saturated_queues(days: float = 5, profile: str = "kant") -> Trace:
    """The load of `saturated`, the fifteen queues with quotas in three departments, in three priorities.

    Of ten jobs seven have priority 0, two have priority 1 and one has priority 2.
    """
    workload = generate("helios-venus", gpus=256, load=0.95, days=days, seed=1)
    priority = np.array([0, 0, 1, 0, 0, 2, 0, 0, 1, 0], dtype=np.int64)[np.arange(len(workload)) % 10]
    departments = [Queue(name) for name in DEPARTMENTS]
    queues = [
        Queue(name, DEPARTMENTS[i % len(DEPARTMENTS)], quotas=(Quota(nominal=gpus * GPU),))
        for i, (name, gpus) in enumerate(zip(workload.queues, QUOTAS, strict=True))
    ]
    queue_config = QueueConfig((*departments, *queues))
    return Trace("saturated-kant-queues", replace(workload, priority=priority), cluster(32, 8), profile, queue_config)


def many_queues(queues: int, jobs: int = 1400) -> Trace:
    """Jobs like those of Helios Venus that ask for twice the 256 GPUs, in queues with equal quotas."""
    workload = generate("helios-venus", gpus=256, load=2, days=6, seed=1).take(np.arange(jobs))
    draw = np.random.Generator(np.random.PCG64(5))
    names = tuple(f"q{i}" for i in range(queues))
    workload = replace(workload, queue=draw.integers(0, queues, jobs), queues=names)
    shares = [Queue(name, "all", quotas=(Quota(nominal=256 * GPU // queues),)) for name in names]
    return Trace(f"{queues}-queues", workload, cluster(32, 8), "kant", QueueConfig((Queue("all"), *shares)))


def preempting(days: float = 1.5, nodes: int = 256) -> Trace:
    """Jobs like those of Helios Venus that ask for 1.5 times the GPUs, in four priorities and queues with quotas.

    Of ten jobs six have priority 0, two have priority 1, one has 2 and one has 3. A fiftieth is preempted.
    """
    workload = generate("helios-venus", gpus=8 * nodes, load=1.5, days=days, seed=1)
    priority = np.array([0, 0, 1, 0, 2, 0, 3, 0, 1, 0], dtype=np.int64)[np.arange(len(workload)) % 10]
    queues = [
        Queue(name, DEPARTMENTS[i % len(DEPARTMENTS)], quotas=(Quota(nominal=gpus * GPU * nodes // 32),))
        for i, (name, gpus) in enumerate(zip(workload.queues, QUOTAS, strict=True))
    ]
    queue_config = QueueConfig((*(Queue(name) for name in DEPARTMENTS), *queues))
    return Trace("preempting", replace(workload, priority=priority), cluster(nodes, 8), "kant", queue_config)


def cluster(nodes: int, per_leaf: int) -> ClusterSpec:
    """Nodes of 8 GPUs, `per_leaf` of them below each leaf switch."""
    return ClusterSpec(f"{nodes}x8", tuple(Node(f"n{i}", 8, leaf=f"l{i // per_leaf}") for i in range(nodes)))


@dataclass(frozen=True, slots=True)
class Asked(Trace):
    """What two more nodes would change for all that wait at the end of a burst, from reading the journal to the answer.

    `folder` has the journal of the burst.
    """

    folder: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)

    def simulate(self, profile: str | None = None) -> RunResult:
        journal = Path(self.folder.name, "journal")
        if not journal.exists():
            with journal.open("wb") as file:
                hooks = RunHooks(journal=file.write)
                simulate(self.workload, self.cluster, builtin_profile(self.profile), until=HOUR, hooks=hooks)
        past, question = read_past(journal, len(self.workload) * SECOND), Question(nodes=("2",))
        found = what_if(past, changes_of(past, question, None), until=end_of_futures(past, question))
        assert found is not None and found.answer["waits"]["all"]["jobs"] == 300
        return found.after


def asked() -> Asked:
    """In a burst of one job a second so many jobs of at most eight GPUs come to eight nodes that 300 wait."""
    jobs = generate("helios-venus", gpus=64, load=24, days=2, seed=1)
    jobs = jobs.take(np.flatnonzero((jobs.total_gpus <= 8) & (jobs.runtime > HOUR))[:318])
    return Asked("what-if", replace(jobs, submit=SECOND * np.arange(len(jobs))), cluster(8, 8), "kant")
