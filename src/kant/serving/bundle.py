"""The output folder of a run: summary, requests, series, and an HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kant.files import replacing, write_bytes
from kant.model.errors import InputError
from kant.serving.page import page
from kant.serving.summary import Served

SUMMARY, REQUESTS, SERIES, REPORT = "summary.json", "requests.csv", "series.csv", "report.html"
COLUMNS = {
    "run": pl.Int64, "time_s": pl.Float64, "engine": pl.Int64, "running": pl.Int64, "waiting": pl.Int64,
    "kv_share": pl.Float64,
}  # fmt: skip
"""The columns of the series."""


def write_bundle(folder: Path, summaries: Sequence[dict[str, Any]], runs: Sequence[Served]) -> None:
    """Write `summary.json`, `requests.csv`, `series.csv` and `report.html`. Each row has the number of its run."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = summaries[0] if len(summaries) == 1 else {"runs": list(summaries)}
    write_bytes(folder / SUMMARY, msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    requests = pl.concat([_requests(k, run) for k, run in enumerate(runs)])
    series = pl.concat([_series(k, run) for k, run in enumerate(runs)])
    for frame, file in ((requests, REQUESTS), (series, SERIES)):
        with replacing(folder / file) as out:
            frame.write_csv(out)
    write_bytes(folder / REPORT, page(summaries, series).encode())


def is_bundle(folder: Path) -> bool:
    """Whether a folder was written by `write_bundle`."""
    return (folder / SERIES).is_file() and (folder / SUMMARY).is_file()


def page_of(folder: Path, title: str | None = None) -> str:
    """Return the report of a folder that `write_bundle` wrote; raises InputError if its files are not valid."""
    try:
        said = msgspec.json.decode((folder / SUMMARY).read_bytes(), type=dict[str, Any])
        series = pl.read_csv(folder / SERIES, schema=COLUMNS)
        return page(said.get("runs", [said]), series, title)
    except (OSError, msgspec.MsgspecError, pl.exceptions.PolarsError, UnicodeDecodeError):
        raise InputError(str(folder), f"{SUMMARY} and {SERIES} as `kant serve simulate --out` writes them") from None
    except (KeyError, TypeError, AttributeError, ValueError):
        raise InputError(str(folder / SUMMARY), "the summary of a run of `kant serve`") from None


def _requests(number: int, run: Served) -> pl.DataFrame:
    requests = run.requests
    return pl.DataFrame(
        {
            "run": np.full(len(requests), number),
            "request": np.arange(len(requests)),
            "arrival_s": requests.arrival,
            "prompt": requests.prompt,
            "output": requests.output,
            "engine": run.engine,
            "first_s": run.first,
            "finish_s": run.finish,
            "longest_gap_s": run.gap,
            "preempted": run.preempted,
            "cached": run.cached,
        }
    )


def _series(number: int, run: Served) -> pl.DataFrame:
    time, engine, running, waiting, kv = run.series.T
    columns = (np.full(len(time), number), time, engine, running, waiting, kv)
    return pl.DataFrame(dict(zip(COLUMNS, columns, strict=True))).cast(COLUMNS)  # type: ignore[arg-type]
