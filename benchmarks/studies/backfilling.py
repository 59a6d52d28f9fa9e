"""Published disciplines on logs of parallel machines: mean wait, bounded slowdown, and what it costs.

`python -m benchmarks.studies.backfilling` writes docs/studies/backfill.md from a slice of the RICC log and two
generated logs. With files it prints the page of these instead: `LOG.swf.gz:PROCESSORS` for each log in the Standard
Workload Format, whole, or `LOG.swf.gz:PROCESSORS:FIRST-LAST` for the submissions from day FIRST up to day LAST.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.data import DATA
from benchmarks.studies.parts import write_part
from kant.model.node import ClusterSpec
from kant.model.status import JobStatus
from kant.model.units import HOUR, SECOND
from kant.scheduler.profile import builtin_texts, parse_profile
from kant.sim.run import simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import generate
from kant.workload.read import read_workload
from kant.workload.workload import Workload

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "backfill.md"
TAU = 10 * SECOND
"""Shorter jobs count as so long in the bounded slowdown (Feitelson and Rudolph, JSSPP 1998)."""
NODE = 8
"""Processors of a node, as RICC's have; each is a GPU to Kant."""
RICC = (0, 5)
"""The days of RICC of which the page speaks."""
SEED = 1

PLACEMENT = '[placement]\npolicy = "first-fit"\n'
FIFO = '[order]\npolicy = "fifo"\n' + PLACEMENT
PROFILES = {
    "FCFS": FIFO + '[discipline]\npolicy = "strict"\n',
    "EASY": FIFO + '[discipline]\npolicy = "easy"\n',
    "EASY-SJBF": FIFO + '[discipline]\npolicy = "easy"\nbackfill_order = { policy = "sjf" }\n',
    "conservative": FIFO + '[discipline]\npolicy = "conservative"\n',
    "`kant`": builtin_texts()["kant"],
}

ABOUT = """\
Each log runs on nodes of 8 processors, which Kant treats as GPUs; a job gets any of them. `FCFS` is the discipline
`strict`, `EASY-SJBF` is `easy` with `backfill_order = { policy = "sjf" }`, and `kant` is the built-in profile. Jobs
are planned with the run times that users requested; in generated logs these are the run times multiplied by 1 to 5. A
job that is evicted starts over (`checkpoint_s = -1`).

The *wait* is all time between submission and end in which a job does not run. The *bounded slowdown* is the time from
submission to end over the run time, at least 1, where jobs shorter than 10 s count as 10 s. *Lost* is the work that
evictions made jobs repeat. *CPU* is the time of the simulation relative to that of FCFS in the same process: it is a
ratio of one run, and only shows the order.
"""

MISSING = """\
The log of NASA Ames' iPSC/860 and a third log of the Parallel Workloads Archive belong on this page, but are missing
because they were not available when it was made. Two generated logs replace them, and say nothing about the
they are not. For any logs in the Standard Workload Format, such as these, `python -m benchmarks.studies.backfilling
NASA-iPSC-1993-3.1-cln.swf.gz:128` prints this page; the number is that of the processors.
"""


@dataclass(frozen=True, slots=True)
class Log:
    """A workload and the machine that it runs on. `estimates` are lines of `[simulation]`."""

    about: str
    workload: Workload
    cluster: ClusterSpec
    estimates: str


@dataclass(frozen=True, slots=True)
class Found:
    wait_h: float
    p99_h: float
    slowdown: float
    median: float
    lost_h: float
    cpu_s: float


def machine(processors: int) -> ClusterSpec:
    """Nodes of eight processors; a remainder is a node of its own."""
    whole, rest = divmod(processors, NODE)
    return read_cluster(" + ".join([f"{whole}x{NODE}"] * (whole > 0) + [f"1x{rest}"] * (rest > 0)))


def of_file(path: Path, processors: int, days: tuple[int, int] | None = None) -> Log:
    window = None if days is None else (days[0] * 24 * HOUR, days[1] * 24 * HOUR)
    workload = read_workload(path, window=window)
    part = "all jobs" if days is None else f"the jobs submitted from day {days[0]} up to day {days[1]}"
    about = f"`{path.name}`: {part} ({len(workload):,}) on {processors:,} processors"
    return Log(about, workload, machine(processors), 'estimates = "limit"')


def of_generator(name: str, gpus: int, days: float) -> Log:
    workload = generate(name, gpus=gpus, load=0.95, days=days, seed=SEED)
    how = f"Generated, as `kant trace generate {name}` does it"
    about = f"{how}: {len(workload):,} jobs that ask for 95 % of {gpus} GPUs"
    return Log(about, workload, read_cluster(f"{gpus // NODE}x{NODE}"), "estimate_factor = 5.0")


def measure(log: Log, text: str) -> Found:
    """One run to its end."""
    simulation = f"\n[simulation]\ncheckpoint_s = -1\n{log.estimates}\n"
    run = simulate(log.workload, log.cluster, parse_profile(text + simulation, "backfilling"), seed=SEED)
    table = run.jobs
    ended = table.status == JobStatus.FINISHED
    runtime = dict(zip(log.workload.ids, log.workload.runtime.tolist(), strict=True))
    ran = np.array([runtime[name] for name in table.id])[ended]
    response = (table.end - table.submit)[ended]
    slowdown = np.maximum(response / np.maximum(ran, TAU), 1)
    wait = (response - ran) / HOUR
    return Found(
        float(wait.mean()),
        float(np.quantile(wait, 0.99)),
        float(slowdown.mean()),
        float(np.median(slowdown)),
        run.summary["lost_gpu_s"] * SECOND / HOUR,
        run.summary["cpu_s"],
    )


def rows(log: Log) -> Iterator[str]:
    """The table of one log."""
    yield "| | mean wait, h | P99, h | mean bounded slowdown | median | lost GPU-hours | CPU, over FCFS |"
    yield "|---|---|---|---|---|---|---|"
    first = 0.0
    for name, text in PROFILES.items():
        found = measure(log, text)
        first = first or found.cpu_s
        yield (
            f"| {name} | {found.wait_h:.2f} | {found.p99_h:.1f} | {found.slowdown:,.1f} | {found.median:.2f} "
            f"| {found.lost_h:,.0f} | {found.cpu_s / first:.1f} |"
        )
        print(name, found, file=sys.stderr)


def page(logs: list[Log], missing: str) -> Iterator[str]:
    yield "# Backfilling as published, on logs\n"
    yield "Made by `python -m benchmarks.studies.backfilling`.\n"
    yield ABOUT
    if missing:
        yield missing
    for log in logs:
        yield f"## {log.about}\n"
        yield from rows(log)
        yield ""


def parsed(argument: str) -> Log:
    """The log that a word of the command line names."""
    path, _, rest = argument.partition(":")
    processors, _, days = rest.partition(":")
    first, _, last = days.partition("-")
    return of_file(Path(path), int(processors), (int(first), int(last)) if days else None)


def main() -> None:
    if len(sys.argv) > 1:
        print("\n".join(page([parsed(argument) for argument in sys.argv[1:]], "")))
        return
    logs = [
        of_file(DATA / "RICC-2010-2.swf.gz", 8192, RICC),
        of_generator("helios-venus", 256, 5),
        of_generator("philly", 256, 5),
    ]
    write_part(PAGE, "backfilling", page(logs, MISSING))


if __name__ == "__main__":
    main()
