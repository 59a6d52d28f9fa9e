"""The design of an experiment: profiles x workloads x clusters x seeds, and the key of each run.

Two runs with the same key are the same run. A key is the digest of everything that decides a run: the workload, the
cluster, the profile's text, the seed, queues, faults, the end, and the code (`code.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import msgspec

from kant.experiments.code import code_digest
from kant.model.node import ClusterSpec
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER
from kant.scheduler.profile import Profile
from kant.workload.digest import workload_digest
from kant.workload.faults_file import NodeHealth
from kant.workload.fitted import FittedWorkload, draw
from kant.workload.generate import generate
from kant.workload.workload import Workload


class JobSource(Protocol):
    """The source of the jobs of a run. Its `parts` are samples of one population, as are its seeds."""

    @property
    def name(self) -> str:
        """The name of the source in tables."""

    @property
    def parts(self) -> int:
        """The number of parts."""

    def decides(self, part: int, seed: int) -> object:
        """Return the values that determine the jobs, in types that JSON has. They enter the key of a run."""

    def workload(self, part: int, seed: int) -> Workload:
        """Return the jobs of a part under a seed. Raises InputError if there can be none."""


@dataclass(frozen=True, slots=True)
class GivenJobs:
    """Given jobs: a workload for each part, the same under every seed."""

    name: str
    workloads: tuple[Workload, ...]
    digests: tuple[str, ...]

    @classmethod
    def of(cls, name: str, workloads: Sequence[Workload]) -> GivenJobs:
        """Create a source from workloads, with their digests."""
        return cls(name, tuple(workloads), tuple(workload_digest(workload) for workload in workloads))

    @property
    def parts(self) -> int:
        return len(self.workloads)

    def decides(self, part: int, seed: int) -> object:
        return self.digests[part]

    def workload(self, part: int, seed: int) -> Workload:
        return self.workloads[part]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Jobs that are drawn with the seed of the run. `options` are the options of `kant.workload.generate.generate`."""

    name: str
    row: str
    options: dict[str, Any]
    parts: int = 1

    def decides(self, part: int, seed: int) -> object:
        return {"generate": self.row, "seed": seed, **self.options}

    def workload(self, part: int, seed: int) -> Workload:
        return _from_first(generate(self.row, seed=seed, **self.options))


@dataclass(frozen=True, slots=True)
class DrawnAfter:
    """Jobs drawn after a trace with the seed of the run. `options` are the options of `kant.workload.fitted.draw`."""

    name: str
    fit: FittedWorkload
    options: dict[str, Any]
    parts: int = 1

    def decides(self, part: int, seed: int) -> object:
        return {"fit": _digest(self.fit), "seed": seed, **self.options}

    def workload(self, part: int, seed: int) -> Workload:
        return _from_first(draw(self.fit, seed=seed, **self.options))


def _from_first(drawn: Workload) -> Workload:
    """Return the same workload with time zero at the first submission, as if the jobs were read from a file."""
    first = int(drawn.submit.min())
    return replace(drawn, submit=drawn.submit - first, origin=drawn.origin + first)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run. `key` is a digest of what decides it; `cluster` and `source` are the names in tables."""

    key: str
    profile: str
    workload: str
    cluster: str
    part: int
    seed: int

    @property
    def sample(self) -> tuple[str, str, int, int]:
        """The values that a run of another profile must share with this run to be compared with it."""
        return (self.workload, self.cluster, self.part, self.seed)

    def __str__(self) -> str:
        part = f", part {self.part + 1}" if self.part else ""
        return f"{self.profile} on {self.workload}{part}, cluster {self.cluster}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Profiles, clusters and workloads by their names in tables, and seeds. The first profile is the baseline."""

    name: str
    profiles: dict[str, Profile]
    clusters: dict[str, ClusterSpec]
    sources: dict[str, JobSource]
    seeds: tuple[int, ...] = (0,)
    until: int = FOREVER
    queue_config: QueueConfig | None = None
    faults: dict[str, Sequence[NodeHealth]] = field(default_factory=dict)
    """Faults by cluster; a cluster that is absent has none."""

    @cached_property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Every run: sample by sample, with all profiles of a sample in turn, so that pairs are complete early."""
        return tuple(self._runs())

    def _runs(self) -> Iterator[PlannedRun]:
        codes = {
            name: code_digest(profile.order, profile.discipline, profile.placement, *profile.placements)
            for name, profile in self.profiles.items()
        }
        machines = {name: _digest([spec.nodes, spec.fabric]) for name, spec in self.clusters.items()}
        queues = _digest(self.queue_config)
        ills = {name: _digest(list(self.faults.get(name, ()))) for name in self.clusters}
        for source_name, source in self.sources.items():
            for cluster in self.clusters:
                for part in range(source.parts):
                    for seed in self.seeds:
                        jobs = source.decides(part, seed)
                        for name, profile in self.profiles.items():
                            text = profile.text or repr(profile)
                            decides = [codes[name], jobs, machines[cluster], queues, ills[cluster], text]
                            key = _digest([*decides, seed, self.until])
                            yield PlannedRun(key, name, source_name, cluster, part, seed)


def _digest(value: object) -> str:
    """Return a digest, 32 hexadecimal digits, of a value that JSON can represent."""
    return hashlib.blake2b(msgspec.json.encode(value, order="deterministic"), digest_size=16).hexdigest()
