"""The settings of this machine's driver."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kant.live.journals import Journals
from kant.model.node import ClusterSpec
from kant.model.tenant import QueueConfig
from kant.scheduler.profile import Profile

NO_QUEUES = QueueConfig()


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Settings of the driver. `runs` is the folder of the runs. `log_bytes` limits the stored output of one run.

    `cores` are the cores of this machine that runs share; empty for a virtual cluster. `cgroups` is the folder in which
    runs can have cgroups. `as_users`: each job runs as the user who submitted it. `visible` has the devices' CUDA
    names, if their indices do not work. With `trace_key` runs get a TRACEPARENT. At most `shared_power` milli-GPUs of
    all machines are in use at the same time (-1: no limit).
    """

    cluster: ClusterSpec
    profile: Profile
    runs: Path
    queue_config: QueueConfig = NO_QUEUES
    journals: Journals | None = None
    log_bytes: int = 1 << 30
    seed: int = 0
    cores: tuple[int, ...] = ()
    cgroups: Path | None = None
    as_users: bool = False
    visible: tuple[str, ...] = ()
    trace_key: bytes = b""
    shared_power: int = -1

    @property
    def shims(self) -> Path:
        """The folder of Kant's versions of Slurm's commands, for jobs whose scripts have `#SBATCH` lines."""
        return self.runs.with_name("slurm")
