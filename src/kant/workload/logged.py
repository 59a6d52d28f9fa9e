"""Jobs as clusters log them, with the GPUs, CPUs and nodes of whole jobs: the common part of several formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kant.workload.table import Ints, check_once, coded
from kant.workload.trace import Trace
from kant.workload.workload import make_workload

CORE = 1000
"""One core, in thousandths of a core."""


def logged_jobs(
    path: Path,
    id_field: str,
    place: Callable[[int], str],
    *,
    ids: Sequence[str],
    submit: Ints,
    runtime: Ints,
    gpus: Ints,
    nodes: Ints,
    cpu: Ints,
    memory: Ints | None = None,
    queue: Sequence[str],
    user: Sequence[str],
    title: Sequence[str] | None = None,
    slice_kind: str,
) -> Trace:
    """Return the jobs that ran on a GPU, in file order. The other jobs are counted in `notes`.

    `gpus`, `cpu` (thousandths of a core) and `memory` (MiB) are those of the whole job. Times are microseconds. A job's
    nodes are the pods of a gang; if its GPUs cannot be divided evenly among them, or `nodes` is 0, only the total is
    known. Raises InputError if two of these jobs share one of the `ids`, which are the file's `id_field`. `place`
    returns the location of a row in the file.
    """
    ran, on_gpus = runtime > 0, gpus > 0
    keep = np.flatnonzero(ran & on_gpus)
    rows = keep.tolist()
    check_once(path, id_field, [ids[row] for row in rows], "each identifier once", place, rows)
    queues, queue_names = coded([queue[row] or "default" for row in rows])
    users, user_names = coded([user[row] for row in rows])
    titles, title_names = coded([title[row] if title is not None else "" for row in rows])
    total, parts = gpus[keep], np.maximum(nodes[keep], 1)
    even = (total % parts == 0) & (nodes[keep] > 0)
    jobs = make_workload(
        path.name,
        submit[keep],
        runtime[keep],
        np.where(even, total // parts, total),
        ids=[ids[row] for row in rows],
        pods=np.where(even, parts, 0),
        cpu=-(-cpu[keep] // parts),
        memory=-(-memory[keep] // parts) if memory is not None else np.zeros(len(keep), dtype=np.int64),
        queue=queues,
        queues=queue_names or ("default",),
        user=users,
        users=user_names or ("",),
        title=titles,
        titles=title_names or ("",),
        origin=0,
        notes=left_out(never_ran=~ran, without_gpu=ran & ~on_gpus),
    )
    return Trace(jobs=jobs, slices=queues, names=queue_names, slice_kind=slice_kind)


def left_out(never_ran: NDArray[np.bool_], without_gpu: NDArray[np.bool_]) -> tuple[str, ...]:
    """Return the notes about the jobs that are not in a workload."""
    counts = ((int(never_ran.sum()), "they never ran"), (int(without_gpu.sum()), "they have no GPU"))
    return tuple(f"{count} jobs left out: {why}" for count, why in counts if count)
