"""A scenario: a small description of a cluster and its jobs, from which a simulated world is created."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from kant.model.errors import InputError
from kant.model.event import JobSubmitted
from kant.model.node import ClusterSpec
from kant.model.tenant import Queue, QueueConfig, Quota, validated
from kant.model.units import GPU, parse_duration
from kant.ops.orders import Drain
from kant.ops.simulated import SimulatedWorld
from kant.scheduler.profile import builtin_profile, builtin_texts
from kant.service.roles import Caller, Role
from kant.sim.jobs import Arrivals, Gangs
from kant.sim.options import read_options
from kant.toml_file import read_toml
from kant.workload.cluster_file import parse_cluster, regular_cluster
from kant.workload.cluster_toml import FabricShape
from kant.workload.job_text import parse_jobs

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ScenarioJob(Struct, frozen=True, forbid_unknown_fields=True):
    """A job: `pods` pods with `gpus` GPUs each, which run for `time` and arrive `at` a time. `log` is its output.

    `limit` is the time limit ("": none).
    """

    id: Name
    gpus: Annotated[int, Meta(ge=0, le=10**6)]
    time: str
    pods: Annotated[int, Meta(ge=1, le=10**6)] = 1
    at: str = "0s"
    queue: str = "default"
    user: str = ""
    name: str = ""
    priority: int = 0
    preemptible: bool = True
    within: Literal["", "node", "hbd", "leaf", "spine", "superspine"] = ""
    within_required: bool = False
    checkpoint: str = ""
    limit: str = ""
    log: str = ""


class ScenarioQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """A queue with a quota of `gpus` (None: no quota). A borrowing or lending limit of -1 means unlimited."""

    name: Name
    gpus: Annotated[int, Meta(ge=0, le=10**6)] | None = None
    parent: str = ""
    weight: Annotated[int, Meta(ge=1, le=10**6)] = 1
    borrowing_limit: int = -1
    lending_limit: int = -1

    def queue(self) -> Queue:
        """Return the queue as the scheduler's type."""
        if self.gpus is None:
            return Queue(self.name, self.parent, self.weight)
        most, lends = (limit * GPU if limit >= 0 else -1 for limit in (self.borrowing_limit, self.lending_limit))
        return Queue(self.name, self.parent, self.weight, quotas=(Quota("gpu", "", self.gpus * GPU, most, lends),))


class Scenario(Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster (`NxG`, with `nodes_per_leaf` nodes per leaf, or the text of a cluster file), its queues, its jobs.

    The world starts at `now`; `drained` nodes accept no new jobs.
    """

    cluster: str
    nodes_per_leaf: Annotated[int, Meta(ge=1, le=10**6)] = 32
    profile: str = "kant"
    queue: tuple[ScenarioQueue, ...] = ()
    job: tuple[ScenarioJob, ...] = ()
    now: str = "0s"
    drained: tuple[str, ...] = ()
    seed: int = 0

    def world(self) -> SimulatedWorld:
        """A new world at the time `now`. Raises InputError."""
        if self.profile not in builtin_texts():
            raise InputError("scenario, profile", f"one of {', '.join(builtin_texts())}", self.profile)
        profile, cluster = builtin_profile(self.profile), self._cluster()
        queues = self._queues()
        known = [queue.name for queue in queues.queues] if queues else []
        for job in self.job:
            if known and job.queue not in known:
                raise InputError(f"scenario, job {job.id}, queue", f"one of {', '.join(known)}", job.queue)
        if len({job.id for job in self.job}) < len(self.job):
            raise InputError("scenario, job", "each id once")
        logs = {job.id: job.log for job in self.job if job.log}
        world = SimulatedWorld(cluster, profile, queues, _coming(self), logs, self.seed)
        for node in self.drained:
            world.carry_out(Drain(node), Caller("scenario", Role.OPERATOR))
            world.settle()
        world.step(parse_duration(self.now, "scenario, now"))
        return world

    def _cluster(self) -> ClusterSpec:
        count, x, gpus = self.cluster.partition("x")
        if x and count.isdecimal() and gpus.isdecimal():
            shape = FabricShape(nodes_per_leaf=self.nodes_per_leaf, leaves_per_spine=8)
            return regular_cluster(int(count), int(gpus), shape)
        return parse_cluster("cluster.toml", self.cluster.encode())

    def _queues(self) -> QueueConfig | None:
        if not self.queue:
            return None
        return validated(QueueConfig(tuple(own.queue() for own in self.queue)), "scenario")


@lru_cache(maxsize=16)
def _coming(scenario: Scenario) -> tuple[JobSubmitted, ...]:
    """Return the arrivals of the jobs. They are the same in each world of the scenario."""
    profile = builtin_profile(scenario.profile)
    options = read_options(profile.simulation, f"profile {profile.name}")
    gangs = Gangs(scenario._cluster(), options.shape == "gpu")
    coming = []
    for job in scenario.job:
        words = f"id=x,gpus={job.gpus},pods={job.pods},time={job.time}" + f",within={job.within}" * bool(job.within)
        jobs = parse_jobs([words], parse_duration(job.at, f"scenario, job {job.id}, at"), f"scenario, job {job.id}")
        (event,) = Arrivals(jobs, gangs, options, scenario.seed)
        checkpoint = parse_duration(job.checkpoint, f"scenario, job {job.id}, checkpoint") if job.checkpoint else -1
        limit = parse_duration(job.limit, f"scenario, job {job.id}, limit") if job.limit else -1
        own = replace(
            event.job, id=job.id, queue=job.queue, user=job.user, name=job.name, priority=job.priority,
            preemptible=job.preemptible, within_required=job.within_required, checkpoint=checkpoint, limit=limit,
        )  # fmt: skip
        coming.append(JobSubmitted(event.time, own, event.runtime, event.overhead))
    return tuple(coming)


def parse_scenario(given: Any, where: str = "scenario") -> Scenario:
    """Convert a JSON- or TOML-like object to a scenario. Raises InputError, which names the field."""
    try:
        return msgspec.convert(given, Scenario)
    except msgspec.ValidationError as error:
        raise InputError(where, f"a scenario (docs/ops.md): {error}") from None


def read_scenario(path: Path) -> Scenario:
    """Read the scenario of a TOML file. Raises InputError."""
    return read_toml(path, Scenario)
