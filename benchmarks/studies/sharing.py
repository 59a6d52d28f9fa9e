"""What the studies of shared clusters have in common: workloads, queues, runs over seeds, intervals and plots."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import msgspec
import numpy as np

from kant.metrics.result import Series
from kant.model.tenant import QueueConfig, Quota
from kant.model.units import DAY, GPU, HOUR, SECOND
from kant.scheduler.profile import parse_profile
from kant.sim.run import simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import ROWS, generate
from kant.workload.tenants_draft import proportional
from kant.workload.workload import Workload

LOAD, SERVICES, TENANTS = 1.1, 0.2, 13
SEEDS = (1, 2, 3, 4, 5)
ROW_NAMES = ("philly", "seren")
LARGE = 64

STUDENT = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""The 97.5 % quantile of Student's t by degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A cluster of `nodes` nodes of eight GPUs, `days` days of jobs, and the largest jobs, in GPUs."""

    nodes: int
    days: float
    largest: int

    @property
    def gpus(self) -> int:
        return 8 * self.nodes

    def workload(self, row: str, seed: int) -> Workload:
        """Training after `row` with services beside it, and as much of both as offers at least LOAD in the window."""
        name = f"{row}-{self.largest}"
        sizes = tuple(size for size in ROWS[row].sizes if size.gpus <= self.largest)
        ROWS[name] = replace(ROWS[row], sizes=sizes)
        load = LOAD
        try:
            while True:
                jobs = generate(
                    name, gpus=self.gpus, load=load, days=self.days, services=SERVICES, tenants=TENANTS, seed=seed
                )
                if self.offered(jobs) >= LOAD:
                    return jobs
                load += 0.05
        finally:
            del ROWS[name]

    def offered(self, jobs: Workload) -> float:
        """The GPU time that the jobs would take in the window if each began at once, over what there is."""
        within = np.minimum(jobs.runtime, np.maximum(self.days * DAY - jobs.submit, 0))
        return float((jobs.total_gpus * within).sum() / (self.gpus * self.days * DAY))

    def entitlements(self, workload: Workload) -> QueueConfig:
        """Quotas in proportion to GPU-hours, and as much again at the root: they entitle, only the cluster limits."""
        root, *queues = proportional(workload, self.gpus).queues
        return QueueConfig((msgspec.structs.replace(root, quotas=(Quota(nominal=self.gpus * GPU),)), *queues))

    def __str__(self) -> str:
        return f"""\
{self.gpus:,} GPUs in {self.nodes} nodes, {self.days * 24:g} hours, {TENANTS} queues. The offered load is {LOAD:g} of
the cluster, counting only the work that could be done within the window; {SERVICES:.0%} of all work is that of
inference services (cores that may not be preempted, bursts by the hour), the rest is drawn from the rows `philly` and
`seren` without jobs of more than {self.largest} GPUs. Each queue has a nominal quota in proportion to its GPU-hours;
quotas entitle but do not limit. Each run ends with the window; jobs that wait or run then count with their state at
that time. A stopped job loses its work since its last checkpoint, one every 30 minutes. Seeds {SEEDS[0]} to
{SEEDS[-1]}; intervals are 95 % by Student's t over the seeds, those of differences and ratios over pairs on the same
workload. SOR median is the median over the hours.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A profile's TOML, and whether the queues have quotas or are names only."""

    text: str
    quotas: bool = True


Outcome = dict[str, float]


def run_one(task: tuple[Setting, str, int, str, Case]) -> tuple[str, int, str, Outcome]:
    """One run: what it came to, by name of the number."""
    setting, row, seed, name, case = task
    workload = setting.workload(row, seed)
    result = simulate(
        workload,
        read_cluster(f"{setting.nodes}x8"),
        parse_profile(case.text, name),
        seed=seed,
        until=round(setting.days * DAY),
        queue_config=setting.entitlements(workload) if case.quotas else None,
    )
    found = result.summary
    jobs = result.jobs
    gpus = -(-jobs.gpus // GPU)
    capacity = setting.gpus * result.end / SECOND
    return row, seed, name, {
        "sor": 100 * found["sor"],
        "sor_median": 100 * float(np.median(hourly_gpus(result.series, result.end)) / setting.gpus),
        "useful": 100 * (found["sor"] - found["lost_gpu_s"] / capacity),
        "gar_median": 100 * found["gar"]["median"],
        "wait_mean": found["wait_s"]["mean"],
        "small": _p99(jobs.wait[gpus <= 8]),
        "middle": _p99(jobs.wait[(gpus > 8) & (gpus <= LARGE)]),
        "large": _p99(jobs.wait[gpus > LARGE]),
        "large_mean": float(jobs.wait[gpus > LARGE].mean()) / SECOND if (gpus > LARGE).any() else math.nan,
        "large_jobs": float((gpus > LARGE).sum()),
        "evictions": float(found["evictions"]),
        "lost_hours": found["lost_gpu_s"] / 3600,
        "worst": math.nan if found["fairness"]["worst"] is None else found["fairness"]["worst"],
        "mean": math.nan if found["fairness"]["mean"] is None else found["fairness"]["mean"],
        "jobs": float(found["jobs"]),
        "cpu_s": found["cpu_s"],
    }  # fmt: skip


def hourly_gpus(series: Series, end: int) -> np.ndarray:
    """The mean number of GPUs allocated in each whole hour up to `end`."""
    spans = np.diff(np.append(series.time, end))
    done = np.concatenate(([0.0], np.cumsum(series.allocated * (spans / HOUR))))
    hours = np.arange(0, end + 1, HOUR)
    used: np.ndarray = np.diff(np.interp(hours, np.append(series.time, end), done))
    return used / GPU


def _p99(waits: np.ndarray) -> float:
    return float(np.quantile(waits, 0.99)) / SECOND if len(waits) else math.nan


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and the half width of its 95 % interval."""

    mean: float
    half: float


def estimate(values: Sequence[float]) -> Estimate:
    """Student's interval for the mean of `values`; values that are no numbers make none."""
    sample = np.array(values)
    if np.isnan(sample).any():
        return Estimate(math.nan, math.nan)
    return Estimate(float(sample.mean()), STUDENT[len(sample) - 1] * float(sample.std(ddof=1)) / math.sqrt(len(sample)))


@dataclass(frozen=True, slots=True)
class Results:
    """Outcomes by row, profile and seed."""

    outcomes: Mapping[tuple[str, str, int], Outcome]

    def values(self, row: str, name: str, key: str) -> list[float]:
        return [self.outcomes[row, name, seed][key] for seed in SEEDS]

    def of(self, row: str, name: str, key: str) -> Estimate:
        return estimate(self.values(row, name, key))

    def gain(self, row: str, name: str, base: str, key: str) -> Estimate:
        """The mean difference on the same workload."""
        pairs = zip(self.values(row, name, key), self.values(row, base, key), strict=True)
        return estimate([a - b for a, b in pairs])

    def ratio(self, row: str, name: str, base: str, key: str) -> Estimate:
        """The mean ratio on the same workload."""
        pairs = zip(self.values(row, name, key), self.values(row, base, key), strict=True)
        return estimate([a / b if b > 0 else math.nan for a, b in pairs])


def run_all(setting: Setting, cases: Mapping[str, Case]) -> Results:
    """Every case on every row and seed, on two processes."""
    tasks = [(setting, row, seed, name, case) for seed in SEEDS for row in ROW_NAMES for name, case in cases.items()]
    found: dict[tuple[str, str, int], Outcome] = {}
    with ProcessPoolExecutor(2) as pool:
        for row, seed, name, outcome in pool.map(run_one, tasks):
            found[row, name, seed] = outcome
            print(f"{row} {seed} {name}: {outcome}", flush=True)
    return Results(found)


# --- showing ---------------------------------------------------------------------------------------------------


def percent(found: Estimate) -> str:
    return "-" if math.isnan(found.mean) else f"{found.mean:.1f} ± {found.half:.1f}"


def plain(found: Estimate) -> str:
    return "-" if math.isnan(found.mean) else f"{found.mean:,.0f} ± {found.half:,.0f}"


def ratio(found: Estimate) -> str:
    return "-" if math.isnan(found.mean) else f"{found.mean:.2f} ± {found.half:.2f}"


def hours(found: Estimate) -> str:
    """Seconds as hours."""
    return "-" if math.isnan(found.mean) else f"{found.mean / 3600:.1f} ± {found.half / 3600:.1f}"


COLUMNS: tuple[tuple[str, str, Any], ...] = (
    ("SOR %", "sor", percent),
    ("SOR median", "sor_median", percent),
    ("SOR without lost work", "useful", percent),
    ("GAR median %", "gar_median", percent),
    ("mean wait, h", "wait_mean", hours),
    ("P99 wait 1-8 GPUs, h", "small", hours),
    ("9-64", "middle", hours),
    (">64", "large", hours),
    ("mean wait >64, h", "large_mean", hours),
    ("evictions", "evictions", plain),
    ("GPU-hours lost", "lost_hours", plain),
    ("rho worst", "worst", ratio),
    ("rho mean", "mean", ratio),
    ("CPU-s", "cpu_s", plain),
)


def table(results: Results, row: str, names: Sequence[str]) -> Iterator[str]:
    """The outcomes of one row as a table: a line for each profile."""
    yield "| profile | " + " | ".join(label for label, _, _ in COLUMNS) + " |"
    yield "|---|" + "---|" * len(COLUMNS)
    for name in names:
        yield f"| `{name}` | " + " | ".join(show(results.of(row, name, key)) for _, key, show in COLUMNS) + " |"


def bars(title: str, found: Sequence[tuple[str, Estimate]], unit: str, scale: float = 1.0) -> str:
    """A small plot as SVG: a bar for each name, with its interval."""
    left, wide, step = 190, 420, 26
    top = max((e.mean + e.half) * scale for _, e in found if not math.isnan(e.mean)) or 1.0
    height = 44 + step * len(found)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 130}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="8" y="20" font-weight="bold">{escape(title)}</text>',
    ]
    for i, (name, e) in enumerate(found):
        y = 34 + step * i
        lines.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        if math.isnan(e.mean):
            continue
        mean, half = e.mean * scale, e.half * scale
        x, low, high = (left + wide * max(v, 0) / top for v in (mean, mean - half, mean + half))
        lines += [
            f'<rect x="{left}" y="{y}" width="{x - left:.1f}" height="18" fill="#4c78a8"/>',
            f'<path d="M{low:.1f} {y + 9}H{high:.1f}M{low:.1f} {y + 4}v10M{high:.1f} {y + 4}v10" stroke="#222222"/>',
            f'<text x="{high + 8:.1f}" y="{y + 14}">{mean:,.1f} {escape(unit)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
