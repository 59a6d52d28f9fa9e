"""The results of an experiment: runs with their records, as one table and as means and differences over samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kant.experiments.design import Experiment, PlannedRun
from kant.experiments.figures import figure, figures
from kant.experiments.store import Record
from kant.files import replacing, write_parquet
from kant.metrics.paired import Interval, mean_interval


@dataclass(frozen=True, slots=True)
class Results:
    """The present results of an experiment: the records of finished runs by key, and why others failed."""

    experiment: Experiment
    records: Mapping[str, Record]
    failed: Mapping[str, str]

    @property
    def finished(self) -> list[PlannedRun]:
        """The runs that have a record, in the order of the experiment."""
        return [run for run in self.experiment.runs if run.key in self.records]

    def summary(self, run: PlannedRun) -> dict[str, Any]:
        """The summary of a finished run."""
        found: dict[str, Any] = self.records[run.key]["summary"]
        return found

    def cells(self) -> Iterator[tuple[str, str]]:
        """Each workload with each cluster."""
        for workload in self.experiment.sources:
            for cluster in self.experiment.clusters:
                yield workload, cluster

    def samples(self, cell: tuple[str, str], profile: str) -> dict[tuple[int, int], PlannedRun]:
        """The finished runs of one profile in a cell, by part and seed."""
        return {
            (run.part, run.seed): run
            for run in self.finished
            if run.profile == profile and (run.workload, run.cluster) == cell
        }


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure of one profile against the baseline, over the samples that both have finished."""

    difference: Interval
    ratio: float
    """The ratio of the means; NaN if the baseline's is 0."""


def mean_of(results: Results, cell: tuple[str, str], profile: str, name: str) -> Interval | None:
    """The mean of a figure over a profile's samples; None if no run has it. Runs with equal digests are one sample."""
    found = {
        results.summary(run)["digest"]: figure(results.summary(run), name)
        for run in results.samples(cell, profile).values()
    }
    values = [value for value in found.values() if value is not None]
    return mean_interval(values) if values else None


def change_of(results: Results, cell: tuple[str, str], profile: str, name: str) -> FigureChange | None:
    """The change of a figure from the baseline on the same samples; None if no sample has both."""
    baseline = next(iter(results.experiment.profiles))
    old, new = results.samples(cell, baseline), results.samples(cell, profile)
    pairs: dict[tuple[str, str], tuple[float, float]] = {}
    for sample in old.keys() & new.keys():
        summaries = results.summary(old[sample]), results.summary(new[sample])
        before, after = (figure(summary, name) for summary in summaries)
        if before is not None and after is not None:
            pairs[summaries[0]["digest"], summaries[1]["digest"]] = (before, after)
    if not pairs:
        return None
    before_all, after_all = zip(*(pairs[digests] for digests in sorted(pairs)), strict=True)
    differences = [after - before for before, after in zip(before_all, after_all, strict=True)]
    ratio = sum(after_all) / sum(before_all) if sum(before_all) else math.nan
    return FigureChange(mean_interval(differences), ratio)


ABOUT_COLUMNS = ("profile", "workload", "part", "cluster", "seed", "key", "digest", "kant")


def table_rows(results: Results) -> list[dict[str, Any]]:
    """A row for each finished run: its identity, its digest, Kant's version, and its figures by name."""
    return [
        {
            "profile": run.profile,
            "workload": run.workload,
            "part": run.part,
            "cluster": run.cluster,
            "seed": run.seed,
            "key": run.key,
            "digest": results.summary(run)["digest"],
            "kant": results.records[run.key]["kant"],
        }
        | figures(results.summary(run))
        for run in results.finished
    ]


def write_table(results: Results, path: Path) -> None:
    """Write the rows as Parquet, completely or not at all. Columns of figures are floats."""
    import polars as pl

    rows = table_rows(results)
    names = list(dict.fromkeys(name for row in rows for name in row))
    types = {"part": pl.Int64, "seed": pl.Int64}
    text = set(ABOUT_COLUMNS) - types.keys()
    schema = {name: types.get(name, pl.String if name in text else pl.Float64) for name in names or ABOUT_COLUMNS}
    columns = {
        name: [row.get(name) if name in ABOUT_COLUMNS else _float(row.get(name)) for row in rows] for name in schema
    }
    with replacing(path) as out:
        write_parquet(pl.DataFrame(columns, schema=schema), out)


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def means(results: Results, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return for `--json` the mean of each figure and its change from the baseline, for each cell and profile."""
    return [
        {
            "workload": cell[0],
            "cluster": cell[1],
            "profile": profile,
            "runs": len(results.samples(cell, profile)),
            "figures": {name: _written(results, cell, profile, name) for name in names},
        }
        for cell in results.cells()
        for profile in results.experiment.profiles
    ]


def _written(results: Results, cell: tuple[str, str], profile: str, name: str) -> dict[str, Any] | None:
    mean = mean_of(results, cell, profile, name)
    if mean is None:
        return None
    baseline = next(iter(results.experiment.profiles))
    change = change_of(results, cell, profile, name) if profile != baseline else None
    return {
        "mean": mean.mean,
        "interval": _ends(mean),
        "samples": mean.samples,
        "difference": change.difference.mean if change else None,
        "difference_interval": _ends(change.difference) if change else None,
    }


def _ends(interval: Interval) -> list[float] | None:
    """The ends of an interval; None if there is only one sample."""
    return None if interval.samples < 2 else [interval.low, interval.high]
