"""Alibaba's openb pods: shares of GPUs, whole GPUs and CPU-only pods of a production cluster.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", ATC'23 (artifact, Apache-2.0).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kant.model.errors import InputError
from kant.model.units import GPU
from kant.workload.table import MAX_TIME, Field, check_once, coded, read_table
from kant.workload.trace import Trace
from kant.workload.workload import make_workload

FIELDS = (
    Field("workload", "text", "name of the workload", default="default"),
    Field("name", "text", "pod, unique within its workload"),
    Field("cpu_milli", "whole", "thousandths of a core", high=10**10),
    Field("memory_mib", "whole", "memory in MiB", high=10**12),
    Field("num_gpu", "whole", "GPUs; 0 for a CPU-only pod", high=10**4),
    Field("gpu_milli", "whole", "thousandths of each GPU", high=GPU, default=GPU),
    Field("gpu_spec", "text", "GPU models allowed, separated by '|'; empty: any", default=""),
    Field("creation_time", "seconds", "submission in seconds", high=MAX_TIME, default=0),
    Field("deletion_time", "seconds", "end in seconds", low=-1, high=MAX_TIME, default=-1),
    Field("scheduled_time", "seconds", "start in seconds", low=-1, high=MAX_TIME, default=-1),
)


def parse(path: Path) -> Trace:
    """Read all workloads of the file, each as a slice with its own clock. Each pod is a job of one pod.

    The run time is deletion - scheduling (or - creation, if the scheduling is unknown), and 0 if the end is unknown.
    Raises InputError if the file is not such a table, a name occurs twice in a workload, or a GPU pod requests no part
    of its GPUs.
    """
    table = read_table(path, FIELDS)
    numbers, n = table.numbers, table.rows
    labels = table.texts.get("workload", ["default"] * n)
    slices, names = coded(labels)
    ids = table.texts["name"]
    pairs = [f"{label}/{name}" for label, name in zip(labels, ids, strict=True)]
    check_once(path, "name", pairs, "each pod once in a workload", table.place)
    nothing = np.flatnonzero((numbers["num_gpu"] > 0) & (numbers["gpu_milli"] == 0))
    if len(nothing):
        where = f"{path}, pod {ids[nothing[0]]}, field gpu_milli"
        raise InputError(where, f"a share from 1 to {GPU} for a pod with GPUs", 0)
    models, sets = coded(table.texts.get("gpu_spec", [""] * n))
    submit, end, start = numbers["creation_time"], numbers["deletion_time"], numbers["scheduled_time"]
    start = np.where(start >= 0, start, submit)
    jobs = make_workload(
        path.name,
        submit,
        np.where(end >= 0, np.maximum(end - start, 0), 0),
        numbers["num_gpu"],
        ids=ids,
        pods=np.ones(n, dtype=np.int64),
        milli=np.where(numbers["num_gpu"] > 0, numbers["gpu_milli"], GPU),
        cpu=numbers["cpu_milli"],
        memory=numbers["memory_mib"],
        models=models,
        model_sets=tuple(model_set(text) for text in sets) or ((),),
        origin=0,
    )
    return Trace(jobs=jobs, slices=slices, names=names, slice_kind="workload", apart=True)


def model_set(text: str) -> tuple[str, ...]:
    """Return the GPU models in a text such as `A10|T4`; empty for an empty text, which allows all models."""
    return tuple(part for part in text.split("|") if part)
