"""Microsoft Philly jobs as CSV. Each row has one virtual cluster and whole GPUs, and there are no run-time limits.

The trace is msr-fiddle/philly-traces (CC-BY-4.0), described in Jeon et al., "Analysis of Large-Scale
Multi-Tenant GPU Clusters for DNN Training Workloads", ATC'19; the four columns are AdaptDL's conversion.
"""

from __future__ import annotations

from pathlib import Path

from kant.workload.table import MAX_GPUS, MAX_TIME, Field, coded, read_table
from kant.workload.trace import Trace
from kant.workload.workload import make_workload

FIELDS = (
    Field("submit_s", "seconds", "submission, seconds since the trace began", high=MAX_TIME),
    Field("duration_s", "seconds", "run time in seconds", high=MAX_TIME),
    Field("gpus", "whole", "GPUs of the whole job", low=1, high=MAX_GPUS),
    Field("vc", "text", "virtual cluster: always text, as '6214e9' is not a number"),
)


def parse(path: Path) -> Trace:
    """Read all jobs of the file. Queue and slice are the virtual cluster. Only totals are known, so `pods` is 0.

    Raises InputError if the file is not such a table.
    """
    table = read_table(path, FIELDS)
    queue, queues = coded(table.texts["vc"])
    jobs = make_workload(
        path.name,
        table.numbers["submit_s"],
        table.numbers["duration_s"],
        table.numbers["gpus"],
        queue=queue,
        queues=queues,
        origin=0,
    )
    return Trace(jobs=jobs, slices=queue, names=queues, slice_kind="virtual cluster")
