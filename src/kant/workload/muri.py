"""The traces of the Muri artifact: deep-learning jobs with a number of iterations and the time of an iteration.

Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM'22 (artifact, Apache-2.0).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kant.model.errors import InputError
from kant.model.units import SECOND
from kant.workload.table import MAX_GPUS, MAX_TIME, Field, Ints, Table, check_once, coded, read_table
from kant.workload.trace import Trace
from kant.workload.workload import make_workload

MS = 1000

FIELDS = (
    Field("trace", "text", "name of the trace"),
    Field("job_id", "text", "identifier, unique within its trace"),
    Field("num_gpu", "whole", "GPUs of the whole job", low=1, high=MAX_GPUS),
    Field("submit_time", "whole", "submission in milliseconds", high=MAX_TIME // MS),
    Field("iterations", "whole", "iterations to run", high=10**12),
    Field("model_name", "text", "neural network: decides the start-up overhead", default="unknown"),
    Field("iteration_time", "whole", "milliseconds of one iteration", high=10**12),
)

OVERHEAD_GPUS = (1, 2, 4, 8, 16, 32)
OVERHEAD_S: dict[str, tuple[int, ...]] = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
"""Seconds of overhead of an interval of running, by network and number of GPUs (from Muri's simulator)."""
OTHER_OVERHEAD_S = 10


def parse(path: Path) -> Trace:
    """Read all traces of the file, each as a slice with its own clock. Priority and `duration` are not used.

    The run time is exactly iterations x iteration_time. Raises InputError if the file is not such a table, an
    identifier occurs twice in a trace, or a run time is out of range.
    """
    table = read_table(path, FIELDS)
    trace, names = coded(table.texts["trace"])
    ids = table.texts["job_id"]
    pairs = [f"{label}/{name}" for label, name in zip(table.texts["trace"], ids, strict=True)]
    check_once(path, "job_id", pairs, "each identifier once in a trace", table.place)
    jobs = make_workload(
        path.name,
        table.numbers["submit_time"] * MS,
        _runtime(path, table),
        table.numbers["num_gpu"],
        ids=ids,
        overhead=_overhead(table),
        origin=0,
    )
    return Trace(jobs=jobs, slices=trace, names=names, slice_kind="trace", apart=True)


def _runtime(path: Path, table: Table) -> Ints:
    iterations, each = table.numbers["iterations"], table.numbers["iteration_time"]
    far = np.flatnonzero(iterations.astype(float) * each.astype(float) * MS > MAX_TIME)
    if len(far):
        where = f"{path}, job {table.texts['job_id'][far[0]]}, fields iterations and iteration_time"
        product = int(iterations[far[0]]) * int(each[far[0]])
        raise InputError(where, f"a run time of at most {MAX_TIME // MS} ms", product)
    return iterations * each * MS


def _overhead(table: Table) -> Ints:
    """Return the overhead in microseconds. A GPU count between two columns of the table uses the lower column."""
    column = np.searchsorted(OVERHEAD_GPUS, table.numbers["num_gpu"], side="right") - 1
    other = (OTHER_OVERHEAD_S,) * len(OVERHEAD_GPUS)
    models, names = coded(table.texts.get("model_name", ["unknown"] * table.rows))
    seconds = np.array([OVERHEAD_S.get(name, other) for name in names] or [other], dtype=np.int64)
    costs: Ints = seconds[models, column] * SECOND
    return costs
