"""The statuses of jobs and nodes, as the integers used in columns."""

from __future__ import annotations

from enum import IntEnum


class JobStatus(IntEnum):
    """The status of a job. Every job has exactly one."""

    PENDING = 0
    RUNNING = 1
    FINISHED = 2
    REJECTED = 3  # the job can never run here, or its discipline drops jobs that do not fit
    CANCELLED = 4


class NodeStatus(IntEnum):
    """Whether a node takes new pods, and whether its GPUs count as in service."""

    IN_SERVICE = 0
    CORDONED = 1  # running jobs stay and no new ones come; its GPUs count as in service
    FAILED = 2  # nothing runs there, and its GPUs do not count
    DRAINING = 3  # no new jobs come and running ones leave; its GPUs count until none is in use
    RETIRED = 4  # the row has no node: its node has left, or no node has joined yet
