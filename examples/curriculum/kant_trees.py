"""The building of reasoning trees as work for a cluster: inference in batches that fills GPUs nobody else uses.

Trees of one query after another, on one GPU. A job is a batch of queries; it has a priority below all others, may be
stopped at any time, and keeps the trees that are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

import kant
from kant.workload.formats import Format
from kant.workload.table import Field, read_table
from kant.workload.trace import Trace
from kant.workload.workload import make_workload

TREE_S = 38
"""GPU-seconds of a tree of 256 leaves: 22.7 h on eight GPUs for 17,000 queries (arXiv 2510.24832, table of costs)."""
BATCH = 48
"""Queries of a job: half an hour."""
PRIORITY = -1

FIELDS = (
    Field("from_h", "whole", "from when on trees may be built, in hours", high=10**6),
    Field("queries", "whole", "queries of which trees are built", low=1, high=10**7),
    Field("tree_s", "whole", "GPU-seconds of a tree", low=1, high=10**6),
    Field("batch", "whole", "queries of a job", low=1, high=10**6, default=BATCH),
)


def parse(path: Path) -> Trace:
    """The jobs of a table of orders, one order a row. Raises InputError where it is no such table."""
    table = read_table(path, FIELDS)
    rows = [
        (int(start), min(int(batch), int(queries) - done) * int(tree))
        for start, queries, tree, batch in zip(*(table.numbers[field.name] for field in FIELDS), strict=True)
        for done in range(0, int(queries), int(batch))
    ]
    column = np.array(rows, np.int64)
    ones = np.ones(len(rows), np.int64)
    jobs = make_workload(
        path.name, column[:, 0] * 3600 * 10**6, column[:, 1] * 10**6, ones, priority=PRIORITY * ones, origin=0
    )
    return Trace(jobs=jobs, slices=0 * ones, names=("all",), slice_kind="part")


FORMAT = Format("trees", "orders of reasoning trees", "an example of this documentation", FIELDS, "one", parse)


@dataclass(frozen=True, slots=True)
class Filled:
    """What building trees beside other jobs gives and costs.

    Of `others`, `moved` start or end at another time than without trees, and all wait `delay_s` longer on average.
    `trees` are done, in whole batches, less the tree at hand of each of the `stops`. The cluster is in use by the part
    `used` of its GPU time, and without trees by `used_alone`.
    """

    others: int
    moved: int
    delay_s: float
    trees: int
    used_alone: float
    used: float
    stops: int


def fill(jobs: kant.Workload, cluster: str, profile: kant.Profile, days: int, queries: int) -> Filled:
    """Run the first days of a workload with and without building trees of so many queries beside it."""
    base = jobs.frame.with_columns(pl.col("id").cast(pl.String))
    count = -(-queries // BATCH)
    builds = pl.DataFrame(
        {
            "id": [f"trees-{n}" for n in range(count)],
            "submit_s": [float(base["submit_s"].to_numpy().min())] * count,
            "runtime_s": [float(BATCH * TREE_S)] * count,
            "gpus": [1] * count,
            "priority": [PRIORITY] * count,
        }
    )
    both = pl.concat([base, builds], how="diagonal_relaxed").with_columns(pl.col("priority").fill_null(0))
    alone, beside = (
        kant.simulate(kant.Workload.of(each.sort("submit_s", maintain_order=True)), cluster, profile, until=f"{days}d")
        for each in (base, both)
    )
    pairs = alone.jobs.join(beside.jobs, on="id", suffix="_beside")
    when = ("first_start", "end", "preemptions")
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_beside")) for name in when)
    done = beside.jobs.filter(pl.col("id").str.starts_with("trees-"))
    later = (pairs["wait_beside"] - pairs["wait"]).dt.total_seconds(fractional=True).fill_null(0.0)
    return Filled(
        others=len(pairs),
        moved=len(pairs) - pairs.filter(same).height,
        delay_s=float(later.to_numpy().mean()),
        trees=BATCH * done.filter(pl.col("status") == "finished").height - int(done["preemptions"].sum()),
        used_alone=float(alone.summary["gar"]["mean"]),
        used=float(beside.summary["gar"]["mean"]),
        stops=int(done["preemptions"].sum()),
    )
