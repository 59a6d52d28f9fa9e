"""`kant.Result`: the result of a simulated run, as Polars frames, with what determined it."""

from __future__ import annotations

import hashlib
import html
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import polars as pl

from kant import __version__
from kant.api.cluster import Cluster
from kant.api.profile import Profile
from kant.api.workload import Workload
from kant.experiments.code import code_digest
from kant.experiments.figures import SHOWN, check_figure, figure, show
from kant.metrics.result import Ints, RunResult
from kant.model.errors import InputError
from kant.model.status import JobStatus
from kant.model.units import GPU

LIBRARIES = ("numpy", "numba", "polars")
"""Libraries, besides Kant, that results may depend on."""


@dataclass(frozen=True)
class Result:
    """One simulated run: frames of jobs, of the cluster over time and of placements, and the figures in `summary`.

    Times in frames are durations since time zero, the first submission; null where something has not happened. `inner`
    is Kant's internal object.
    """

    inner: RunResult
    workload: Workload
    cluster: Cluster
    profile: Profile
    seed: int = 0

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of the run, as printed by `kant simulate --json` (docs/metrics.md)."""
        return self.inner.summary

    @property
    def digest(self) -> str:
        """The digest of all decisions: equal digests, equal runs."""
        found: str = self.inner.summary["digest"]
        return found

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digests of the inputs of the run (`workload`, `cluster`, `profile`, `code`) and of its decisions
        (`decided`).
        """
        inner = self.profile.inner
        return {
            "workload": self.workload.digest,
            "cluster": self.cluster.digest,
            "profile": hashlib.blake2b(self.profile.text.encode(), digest_size=16).hexdigest(),
            "code": code_digest(inner.order, inner.discipline, inner.placement, *inner.placements),
            "decided": self.digest,
        }

    @cached_property
    def versions(self) -> dict[str, str]:
        """The versions of Kant, of Python and of the libraries that results may depend on."""
        return {"kant": __version__, "python": platform.python_version()} | {name: version(name) for name in LIBRARIES}

    @cached_property
    def jobs(self) -> pl.DataFrame:
        """A row for each job in order of arrival.

        `id`, `queue`, `gpus` (all pods together), `submit`, `first_start`, `end`, `wait` (all time spent waiting up to
        the end of the run), `completion` (from submission to the end, of finished jobs), `preemptions`, `status`; with
        a ledger also `waited_CAUSE`.
        """
        table, names = self.inner.jobs, np.array(self.inner.queues, dtype=object)
        finished = table.status == JobStatus.FINISHED
        causes = {f"waited_{name}".replace("-", "_"): c for name, c in (self.inner.wait_by_cause or {}).items()}
        return pl.DataFrame(
            {
                "id": table.id,
                "queue": pl.Series(names[table.queue], dtype=pl.String),
                "gpus": table.gpus / GPU,
                "submit": _times(table.submit),
                "first_start": _times(table.first_start),
                "end": _times(table.end),
                "wait": _times(table.wait),
                "completion": _times(np.where(finished, table.end - table.submit, -1)),
                "preemptions": table.preemptions,
                "status": [JobStatus(status).name.lower() for status in table.status.tolist()],
                **{name: _times(column) for name, column in causes.items()},
            }
        )

    @cached_property
    def series(self) -> pl.DataFrame:
        """A row for each time at which something changed; it holds until the next row.

        `time`, `gar` (GPUs allocated over GPUs in service, null where there are none), `allocated_gpus`,
        `in_service_gpus`, `fragmented_nodes`, `nodes` (in service), `waiting_jobs`, `waiting_gpus`.
        """
        series = self.inner.series
        allocated, serving = series.allocated / GPU, series.in_service / GPU
        ratio = np.divide(allocated, serving, out=np.full(len(serving), np.nan), where=serving > 0)
        return pl.DataFrame(
            {
                "time": _times(series.time),
                "gar": pl.Series(ratio).fill_nan(None),
                "allocated_gpus": allocated,
                "in_service_gpus": serving,
                "fragmented_nodes": series.fragmented,
                "nodes": series.nodes,
                "waiting_jobs": series.waiting_jobs,
                "waiting_gpus": series.waiting_gpus / GPU,
            }
        )

    @cached_property
    def placements(self) -> pl.DataFrame:
        """A row for each piece of a job on a node, in order of its end.

        `job`, `node`, `gpus`, `devices` (the indices of its GPUs on the node), `start`, `end`.
        """
        rows, names = self.inner.intervals, [node.name for node in self.inner.cluster.nodes]
        devices = [[d for d in range(mask.bit_length()) if mask >> d & 1] for mask in rows[:, 2].tolist()]
        count = np.array([len(found) for found in devices], dtype=np.int64)
        return pl.DataFrame(
            {
                "job": [self.inner.jobs.id[row] for row in rows[:, 0].tolist()],
                "node": [names[node] for node in rows[:, 1].tolist()],
                "gpus": count * rows[:, 3] / GPU,
                "devices": pl.Series(devices, dtype=pl.List(pl.Int64)),
                "start": _times(rows[:, 4]),
                "end": _times(rows[:, 5]),
            }
        )

    def __repr__(self) -> str:
        return f"Result({self._title}; {self.summary['completed']:,} of {self.summary['jobs']:,} jobs completed)"

    def _repr_html_(self) -> str:
        """The usual figures and the digest, as a notebook shows them."""
        rows = [(name, show(name)(value)) for name in SHOWN if (value := figure(self.summary, name)) is not None]
        rows += [
            ("completed", f"{self.summary['completed']:,} of {self.summary['jobs']:,} jobs"),
            ("digest", self.digest),
        ]
        cells = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
        return f"<table><caption>{html.escape(self._title)}</caption>{cells}</table>"

    @property
    def _title(self) -> str:
        return f"{self.workload.name} on {self.cluster.name} under {self.profile.name}"


def compare(*results: Result, figures: Sequence[str] = SHOWN) -> pl.DataFrame:
    """Return a row for each result: its inputs, the figures by name (such as "wait_s.p90"), and the digest.

    Raises InputError without results, and for an unknown figure.
    """
    if not results:
        raise InputError("compare", "at least one result")
    names = [check_figure(name, "figures") for name in figures]
    about = [
        {"profile": one.profile.name, "workload": one.workload.name, "cluster": one.cluster.name, "seed": one.seed}
        | {name: figure(one.summary, name) for name in names}
        | {"digest": one.digest}
        for one in results
    ]
    return pl.DataFrame(about, schema_overrides=dict.fromkeys(names, pl.Float64), infer_schema_length=None)


def _times(column: Ints) -> pl.Series:
    """Return microseconds as durations; negative ones are null."""
    return pl.Series(column).set(pl.Series(column < 0), None).cast(pl.Duration("us"))
