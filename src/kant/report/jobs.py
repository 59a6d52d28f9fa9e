"""The jobs of a run for the page: when each arrived, started and ended, and the causes of its waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.metrics.result import RunResult
from kant.report.pack import pack, pack_names

NEVER = -1

Ints = NDArray[np.int64]


def pack_jobs(run: RunResult, kept: Ints, queues: Sequence[str], begin: int, unit: int) -> dict[str, Any]:
    """The rows `kept` of the job table, times in `unit`s: `submit` since `begin`, `start` and `end` since `submit`
    (-1: never), `wait` and its causes as they are.
    """
    jobs = run.jobs
    submit = jobs.submit[kept]
    code = np.array([queues.index(name) for name in run.queues], dtype=np.int64)

    def since_submit(moment: Ints) -> Ints:
        later: Ints = np.where(moment >= 0, np.maximum(0, moment // unit - submit // unit), NEVER)
        return later

    return {
        "ids": pack_names([jobs.id[row] for row in kept.tolist()]),
        "queue": pack(code[jobs.queue[kept]] if len(kept) else []),
        "milli": pack(jobs.gpus[kept]),
        "submit": pack((submit - begin) // unit, delta=True),
        "start": pack(since_submit(jobs.first_start[kept])),
        "end": pack(since_submit(jobs.end[kept])),
        "wait": pack(jobs.wait[kept] // unit),
        "status": pack(jobs.status[kept]),
        "preemptions": pack(jobs.preemptions[kept]),
        "fewest": None if jobs.fewest is None else [pack(column) for column in jobs.fewest[kept].reshape(-1, 2).T],
        "causes": {cause: pack(column[kept] // unit) for cause, column in (run.wait_by_cause or {}).items()},
    }
