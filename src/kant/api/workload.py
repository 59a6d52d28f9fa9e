"""`kant.Workload`: the jobs that will arrive, from a file, a generator or a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from kant.model.errors import InputError
from kant.model.units import SECOND, parse_window, show_duration
from kant.workload import workload as jobs
from kant.workload.digest import workload_digest
from kant.workload.generate import generate
from kant.workload.kant_parquet import table_of
from kant.workload.kant_table import FIELDS, to_table, trace_of
from kant.workload.read import read_workload, whole
from kant.workload.trace import Trace

ALWAYS = ("id", "submit_s", "runtime_s", "gpus")
"""The columns that a frame always has."""


@dataclass(frozen=True)
class Workload:
    """The jobs that will arrive, in order of submission. `inner` is Kant's internal object.

    Make one by `read` (a trace of any format that Kant reads), `generate` (after a published cluster) or `of` (a frame
    or a mapping of columns). It is immutable.
    """

    inner: jobs.Workload

    @classmethod
    def read(
        cls,
        path: str | PathLike[str],
        *,
        format: str | None = None,
        slice: str | None = None,
        window: str | None = None,
    ) -> Workload:
        """Read the trace in a file, plain or gzip.

        `format` is one of those in docs/workloads.md (None: detected from the content). `slice` is one queue or trace
        of a file that holds several. `window` keeps submissions within A:B, such as "27d:88d". Raises InputError.
        """
        span = parse_window(window, "window") if window is not None else None
        return cls(read_workload(Path(path), format=format, slice=slice, window=span))

    @classmethod
    def generate(
        cls,
        after: str,
        *,
        jobs: int | None = None,
        days: float = 30,
        gpus: int | None = None,
        load: float | None = None,
        services: float = 0.0,
        tenants: int | None = None,
        seed: int = 0,
    ) -> Workload:
        """Generate `days` days of jobs after the published facts of a cluster, such as "philly"; the same for one seed.

        Exactly `jobs` jobs; or as many as keep `load` times `gpus` GPUs busy; or as many as the cluster saw. Jobs
        larger than `gpus` are left out. `services` is the share of the load from inference services, `tenants` the
        number of queues. Raises InputError for values that make no workload.
        """
        return cls(
            generate(after, jobs=jobs, days=days, gpus=gpus, load=load, services=services, tenants=tenants, seed=seed)
        )

    @classmethod
    def of(cls, columns: pl.DataFrame | Mapping[str, Sequence[Any]], name: str = "jobs") -> Workload:
        """Return the jobs in a frame or mapping of columns: `submit_s`, `runtime_s`, `gpus`, others of Kant's table.

        The columns are those of a CSV file (docs/workloads.md). Raises InputError for an invalid column or cell.
        """
        try:
            frame = columns if isinstance(columns, pl.DataFrame) else pl.DataFrame(dict(columns), strict=False)
        except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
            raise InputError(name, "columns of equal length", str(error).split("\n", 1)[0]) from None
        where = Path(name)
        trace = Trace(**trace_of(where, table_of(frame, where)))  # type: ignore[arg-type]
        if not len(trace.jobs):
            raise InputError(name, "at least one job", "none")
        return cls(whole(trace, where))

    @cached_property
    def frame(self) -> pl.DataFrame:
        """A row for each job, in the columns of Kant's table, without columns that only hold their default.

        Times are seconds on the trace's own clock. `Workload.of` accepts the frame.
        """
        table = to_table(self.inner)
        columns: dict[str, Any] = {}
        for field in sorted(FIELDS, key=lambda field: (*ALWAYS, field.name).index(field.name)):
            if field.kind == "text":
                texts = table.texts[field.name]
                if field.name in ALWAYS or any(text != field.default for text in texts):
                    columns[field.name] = texts
            elif field.name in ALWAYS or bool((table.numbers[field.name] != field.default).any()):
                values = table.numbers[field.name]
                known = pl.Series(values / SECOND if field.kind == "seconds" else values)
                columns[field.name] = known.set(pl.Series((values < 0) & (field.default == -1)), None)
        return pl.DataFrame(columns)

    @property
    def name(self) -> str:
        """The name in tables and pictures."""
        return self.inner.name

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits: equal for the same jobs, whether from a file or from a frame."""
        return workload_digest(self.inner)

    def __len__(self) -> int:
        return len(self.inner)

    def __repr__(self) -> str:
        last = int(self.inner.submit.max()) - int(self.inner.submit.min())
        return f"Workload({self.name!r}: {len(self):,} jobs in {show_duration(last)})"
