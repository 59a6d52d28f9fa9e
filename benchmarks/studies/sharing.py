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

from kant.model.tenant import Quota, Tenancy
from kant.model.units import DAY, GPU, SECOND, show_duration
from kant.scheduler.profile import parse_profile
from kant.sim.run import simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import ROWS, generate
from kant.workload.tenants_draft import proportional
from kant.workload.workload import Workload

GPUS, NODES, DAYS = 2048, 256, 4.0
LARGEST = 512
LOAD, SERVICES, TENANTS = 1.1, 0.2, 13
SEEDS = (1, 2, 3, 4, 5)
ROW_NAMES = ("philly", "seren")
LARGE = 64

STUDENT = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""The 97.5 % quantile of Student's t by degrees of freedom."""

SETTING = f"""\
{GPUS:,} GPUs in {NODES} nodes, {DAYS:g} days, {TENANTS} queues. The offered load is {LOAD:g} of the cluster, counting only
what could be done within the window; {SERVICES:.0%} of all work is that of inference services (cores that may not be
preempted, bursts by the hour), the rest is drawn after the rows `philly` and `seren` without jobs of more than
{LARGEST} GPUs. Each run is cut at the end of the window, and jobs that wait or run then count as they stand. A stopped
job loses what it did since its last checkpoint, one every 30 minutes. Seeds {SEEDS[0]} to {SEEDS[-1]}; intervals are 95 % by
Student's t over the seeds, those of differences and ratios over pairs on the same workload.
"""


def workload_of(row: str, seed: int) -> Workload:
    """Training after `row` with services beside it, and as much of both as offers at least LOAD within the window."""
    name = f"{row}-{LARGEST}"
    ROWS[name] = replace(ROWS[row], sizes=tuple(size for size in ROWS[row].sizes if size.gpus <= LARGEST))
    load = LOAD
    try:
        while True:
            jobs = generate(name, gpus=GPUS, load=load, days=DAYS, services=SERVICES, tenants=TENANTS, seed=seed)
            if offered(jobs) >= LOAD:
                return jobs
            load += 0.05
    finally:
        del ROWS[name]


def offered(jobs: Workload) -> float:
    """The GPU time that the jobs would take within the window if each began at once, over what there is."""
    within = np.minimum(jobs.runtime, np.maximum(DAYS * DAY - jobs.submit, 0))
    return float((jobs.total_gpus * within).sum() / (GPUS * DAYS * DAY))


def entitlements(workload: Workload) -> Tenancy:
    """Quotas in proportion to GPU-hours, and as much again at the root: quotas entitle, and only the cluster limits."""
    root, *queues = proportional(workload, GPUS).queues
    return Tenancy((msgspec.structs.replace(root, quotas=(Quota(nominal=GPUS * GPU),)), *queues))


Outcome = dict[str, float]


def run_one(task: tuple[str, int, str, str]) -> tuple[str, int, str, Outcome]:
    """One run: what it came to, by name of the number."""
    row, seed, name, text = task
    workload = workload_of(row, seed)
    profile = parse_profile(text, name)
    result = simulate(
        workload,
        read_cluster(f"{NODES}x8"),
        profile,
        seed=seed,
        until=round(DAYS * DAY),
        tenancy=entitlements(workload),
    )
    found = result.summary
    jobs = result.jobs
    gpus = -(-jobs.gpus // GPU)
    capacity = GPUS * result.end / SECOND
    return row, seed, name, {
        "sor": 100 * found["sor"],
        "useful": 100 * (found["sor"] - found["lost_gpu_s"] / capacity),
        "gar_median": 100 * found["gar"]["median"],
        "gfr": 100 * found["gfr"]["mean"],
        "wait_mean": found["wait_s"]["mean"],
        "small": _p99(jobs.wait[gpus <= 8]),
        "middle": _p99(jobs.wait[(gpus > 8) & (gpus <= LARGE)]),
        "large": _p99(jobs.wait[gpus > LARGE]),
        "large_jobs": float((gpus > LARGE).sum()),
        "evictions": float(found["evictions"]),
        "lost_hours": found["lost_gpu_s"] / 3600,
        "worst": found["fairness"]["worst"] or math.nan,
        "mean": found["fairness"]["mean"] or math.nan,
        "jobs": float(found["jobs"]),
        "cpu_s": found["cpu_s"],
    }  # fmt: skip


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


def run_all(profiles: Mapping[str, str], rows: Sequence[str] = ROW_NAMES) -> Results:
    """Every profile on every row and seed, on two processes."""
    tasks = [(row, seed, name, text) for name, text in profiles.items() for row in rows for seed in SEEDS]
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
    ("SOR % without lost work", "useful", percent),
    ("GAR median %", "gar_median", percent),
    ("mean wait, h", "wait_mean", hours),
    ("P99 wait 1-8 GPUs, h", "small", hours),
    ("9-64", "middle", hours),
    (">64", "large", hours),
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


def shown(seconds: float) -> str:
    return show_duration(seconds * SECOND)
