"""What the driver of this machine is told when it starts."""

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
    """`runs` is the folder of the runs. `log_bytes` limits what is kept of the output of one run.

    `cores` are those of this machine, of which runs get a share; empty where the cluster is a virtual one. `cgroups` is
    the folder in which runs may have cgroups. `as_users`: each job runs as the user who has submitted it. `visible` has
    the names by which CUDA sees the devices, where their indices do not do. With `trace_key` runs get a TRACEPARENT.
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

    @property
    def shims(self) -> Path:
        """Where Slurm's commands are, as Kant has them, for jobs of scripts with `#SBATCH` lines."""
        return self.runs.with_name("slurm")
