"""The result of one run: the summary for people and scripts, and the columns for pictures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.model.node import ClusterSpec

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The cluster over time. Row i holds from `time[i]` (microseconds) to `time[i + 1]`; the last row to the end."""

    time: Ints
    allocated: Ints  # milli-GPUs allocated
    in_service: Ints  # milli-GPUs in service
    fragmented: Ints  # nodes in service with some but not all of their GPUs allocated
    nodes: Ints  # nodes in service (with GPUs)
    waiting_jobs: Ints
    waiting_gpus: Ints  # milli-GPUs requested by waiting jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable:
    """The jobs that arrived, in order of arrival; times in microseconds, -1 if it has not happened."""

    id: list[str]
    queue: Ints  # code into RunResult.queues
    gpus: Ints  # milli-GPUs, all pods together
    submit: Ints
    first_start: Ints
    end: Ints
    wait: Ints  # all time spent waiting, also after preemption, up to the end of the run
    preemptions: Ints
    status: Ints  # kant.model.status
    fewest: NDArray[np.int64] | NDArray[np.int32] | None = None
    """Shape (jobs, 2): the fewest nodes and leaves on which the job could lie; 0 if it never fits."""

    def apart(self) -> JobTable:
        """Return the table with columns of its own, which do not keep the state's table of jobs in memory."""
        names = "queue", "gpus", "submit", "first_start", "end", "wait", "preemptions", "status"
        return replace(self, **{name: getattr(self, name).copy() for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One simulated (or recorded) run under one profile.

    `summary` is the object that `--json` prints. `intervals` has a row for each piece of a job on a node: (job row,
    node index, bit mask of devices, milli-GPUs of each device, start, end). `service` has one row for each change of a
    node: (time, node index, kant.model.status.NodeStatus, bit mask of lost devices). `wait_by_cause` has, if a ledger
    was kept, a column over the jobs for each cause: microseconds, which add up to `jobs.wait`.
    """

    profile: str
    workload: str
    cluster: ClusterSpec
    summary: dict[str, Any]
    series: Series
    jobs: JobTable
    queues: tuple[str, ...]
    end: int
    interrupted: bool = False
    intervals: Ints = field(default_factory=lambda: np.zeros((0, 6), dtype=np.int64))
    service: Ints = field(default_factory=lambda: np.zeros((0, 4), dtype=np.int64))
    wait_by_cause: dict[str, Ints] | None = None
