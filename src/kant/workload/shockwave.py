"""Training jobs whose batch size changes, as in Shockwave: each run of epochs has one batch size and one duration.

Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI'23
(arXiv 2210.00093; artifact under MIT): its traces, with the epochs that its own generator assigns.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from kant.files import open_text
from kant.model.adaptive import LARGEST_BATCH, SAMPLES, AdaptiveJob, EpochRun, Mode
from kant.model.errors import InputError
from kant.model.units import SECOND
from kant.workload.table import MAX_GPUS, MAX_TIME, Field, check_once, coded, read_table
from kant.workload.trace import Trace
from kant.workload.workload import make_workload

EPOCHS = "epochs_batch_size:seconds:count"
OTHER_SAMPLES = 50_000
"""Samples in an epoch of an unknown model. They only determine the granularity of its steps."""
MOST_EPOCHS, MOST_BATCH = 10**7, 10**6
LEAST_S, MOST_S = 1e-3, 1e7
"""The range of the duration of an epoch, in seconds."""

FIELDS = (
    Field("trace", "text", "name of the trace"),
    Field("job", "text", "identifier, unique within its trace"),
    Field("arrival_s", "seconds", "arrival, seconds since the trace began", high=MAX_TIME),
    Field("gpus", "whole", "GPUs of the whole job", low=1, high=MAX_GPUS),
    Field("model", "text", "neural network"),
    Field("mode", "text", "who changes the batch size: static, accordion or gns"),
    Field("duration_s", "seconds", "run time for which its work was sized at the first batch size", high=MAX_TIME),
    Field(EPOCHS, "text", "runs of epochs in order, separated by spaces: batch size, seconds of one, how many"),
    Field("queue", "text", "the queue of the job", default="default"),
)
_RUN = re.compile(r"(\d{1,9}):(\d{1,9}(?:\.\d{1,9})?):(\d{1,9})", re.ASCII)


def parse(path: Path) -> Trace:
    """Read all traces of the file, each as a slice with its own clock. A job's run time is the time of all its epochs.

    Raises InputError if the file is not such a table.
    """
    jobs, traces = _read(path)
    trace, names = coded(traces)
    queue, queues = coded([job.queue for job in jobs])
    title, titles = coded([f"{job.model} ({job.mode})" for job in jobs])
    columns = make_workload(
        path.name,
        np.array([round(job.arrival * SECOND) for job in jobs], dtype=np.int64),
        np.array([max(1, round(job.exclusive * SECOND)) for job in jobs], dtype=np.int64),
        np.array([job.gpus for job in jobs], dtype=np.int64),
        ids=[job.name for job in jobs],
        queue=queue,
        queues=queues,
        title=title,
        titles=titles,
        origin=0,
    )
    return Trace(jobs=columns, slices=trace, names=names, slice_kind="trace", apart=True)


def is_shockwave(path: Path) -> bool:
    """Return whether the first line of a file names the columns of this format."""
    with open_text(path) as stream:
        return EPOCHS in stream.readline(4096)


def read_adaptive(path: Path, slice: str | None = None) -> list[AdaptiveJob]:
    """Return the jobs of one trace of the file with their epochs, in file order, from the trace's time zero on.

    Raises InputError if the file is not such a table, or has several traces and `slice` selects none of them.
    """
    jobs, traces = _read(path)
    names = sorted(set(traces))
    if not jobs:
        raise InputError(str(path), "a trace with at least one job", "none")
    if slice is None and len(names) > 1:
        raise InputError(str(path), f"a choice of one trace: {', '.join(names[:20])}")
    if slice is not None and slice not in names:
        raise InputError(str(path), f"a trace that the file holds ({', '.join(names[:20])})", slice)
    return [job for job, trace in zip(jobs, traces, strict=True) if slice in (None, trace)]


def adaptive_text(jobs: Sequence[AdaptiveJob], trace: str) -> str:
    """Return the text of a table of this format with these jobs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trace", "job", "arrival_s", "gpus", "model", "mode", "epochs", "duration_s", EPOCHS])
    for job in jobs:
        runs = " ".join(f"{run.batch}:{run.seconds:.6f}:{run.count}" for run in job.epochs)
        head = [trace, job.name, f"{job.arrival:.1f}", job.gpus, job.model, job.mode, job.epoch_count]
        writer.writerow([*head, f"{job.declared:.0f}", runs])
    return out.getvalue()


def _read(path: Path) -> tuple[list[AdaptiveJob], list[str]]:
    table = read_table(path, FIELDS)
    texts, numbers = table.texts, table.numbers
    traces = texts["trace"]
    queues = texts.get("queue", ["default"] * table.rows)
    jobs: list[AdaptiveJob] = []
    pairs = [f"{label}/{name}" for label, name in zip(traces, texts["job"], strict=True)]
    check_once(path, "job", pairs, "each identifier once in a trace", table.place)
    for i, name in enumerate(texts["job"]):
        where, mode, model = f"{path}, job {name}", texts["mode"][i], texts["model"][i]
        if mode not in get_args(Mode):
            raise InputError(f"{where}, field mode", f"one of {', '.join(get_args(Mode))}", mode)
        if mode != "static" and model not in LARGEST_BATCH:
            expected = f"one of {', '.join(LARGEST_BATCH)} if the mode is {mode}"
            raise InputError(f"{where}, field model", expected, model)
        job = AdaptiveJob(
            name,
            numbers["arrival_s"][i].item() / SECOND,
            numbers["gpus"][i].item(),
            model,
            mode,  # type: ignore[arg-type]
            numbers["duration_s"][i].item() / SECOND,
            tuple(_runs(texts[EPOCHS][i], where)),
            SAMPLES.get(model, OTHER_SAMPLES),
            queues[i],
        )
        if job.exclusive > MAX_TIME / SECOND:
            raise InputError(f"{where}, field {EPOCHS}", f"epochs of at most {MAX_TIME // SECOND} s", job.exclusive)
        jobs.append(job)
    return jobs, traces


def _runs(text: str, where: str) -> list[EpochRun]:
    runs = []
    for part in text.split():
        found = _RUN.fullmatch(part)
        run = EpochRun(int(found[1]), float(found[2]), int(found[3])) if found else None
        if run is None or not (
            1 <= run.batch <= MOST_BATCH and LEAST_S <= run.seconds <= MOST_S and 1 <= run.count <= MOST_EPOCHS
        ):
            raise InputError(f"{where}, field {EPOCHS}", "runs such as 32:36.4:28, separated by spaces", part)
        runs.append(run)
    if not runs:
        raise InputError(f"{where}, field {EPOCHS}", "runs such as 32:36.4:28, separated by spaces", text)
    return runs
