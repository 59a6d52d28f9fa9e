"""SenseTime's Helios: `cluster_log.csv` of each of its clusters, and Acme, whose logs are of the same kind.

Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC'21
(S-Lab-System-Group/HeliosData); Hu et al., "Characterization of Large Language Model Development in the Datacenter",
NSDI'24 (InternLM/AcmeTrace, CC-BY-4.0): `trace_seren.csv` and `trace_kalos.csv`. Columns are those of their READMEs.
"""

from __future__ import annotations

from pathlib import Path

from kant.workload.logged import CORE, logged_jobs
from kant.workload.table import MAX_GPUS, MAX_TIME, Field, Table, read_table
from kant.workload.trace import Trace

GIB = 1024

_COMMON = (
    Field("job_id", "text", "identifier"),
    Field("user", "text", "who submitted it, hashed", default=""),
    Field("gpu_num", "whole", "GPUs of the whole job; jobs with 0 are left out", high=MAX_GPUS),
    Field("cpu_num", "whole", "cores of the whole job", high=10**9, default=0),
    Field("node_num", "whole", "nodes", high=MAX_GPUS),
    Field("state", "text", "how it ended; not used", default=""),
    Field("submit_time", "moment", "submission", high=MAX_TIME),
    Field("duration", "seconds", "run time; jobs with 0 are left out", low=-MAX_TIME, high=MAX_TIME, default=0),
)
HELIOS = (*_COMMON, Field("vc", "text", "virtual cluster, hashed"))
ACME = (
    *_COMMON,
    Field("type", "text", "what the job does for a language model, such as Pretrain or Evaluation"),
    Field("mem_per_pod_GB", "whole", "memory of each pod (Kalos)", high=10**9, default=0),
)


def parse_helios(path: Path) -> Trace:
    """Read the jobs with GPUs that ran. Queue and slice are the virtual cluster. Raises InputError for other tables."""
    table = read_table(path, HELIOS)
    return _jobs(path, table, table.texts["vc"], None, "virtual cluster")


def parse_acme(path: Path) -> Trace:
    """Read the jobs with GPUs that ran. The trace has no tenants, so queue, slice and name are the type of workload.

    Raises InputError if the file is not such a table.
    """
    table = read_table(path, ACME)
    return _jobs(path, table, table.texts["type"], table.texts["type"], "type of workload")


def _jobs(path: Path, table: Table, queue: list[str], title: list[str] | None, slice_kind: str) -> Trace:
    numbers = table.numbers
    memory = numbers.get("mem_per_pod_GB")
    return logged_jobs(
        path,
        "job_id",
        table.place,
        ids=table.texts["job_id"],
        submit=numbers["submit_time"],
        runtime=numbers["duration"],
        gpus=numbers["gpu_num"],
        nodes=numbers["node_num"],
        cpu=numbers["cpu_num"] * CORE,
        memory=None if memory is None else memory * GIB * numbers["node_num"],
        queue=queue,
        user=table.texts.get("user", [""] * table.rows),
        title=title,
        slice_kind=slice_kind,
    )
