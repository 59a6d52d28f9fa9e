"""Where a job or a node stands, as the integers that stand in columns."""

from __future__ import annotations

from enum import IntEnum


class JobStatus(IntEnum):
    """The life of a job. Every job is in exactly one of these."""

    PENDING = 0
    RUNNING = 1
    FINISHED = 2
    REJECTED = 3  # it can never run here, or its discipline drops what does not fit
    CANCELLED = 4


class NodeStatus(IntEnum):
    """Whether a node takes new pods, and whether its GPUs count as in service."""

    IN_SERVICE = 0
    CORDONED = 1  # what runs there runs on and nothing new comes; it still counts
    FAILED = 2  # nothing runs there and it does not count
    DRAINING = 3  # nothing new comes and what runs there leaves; it counts until no GPU of it is in use
    RETIRED = 4  # there is no node in this row: it has left, or none has joined yet
