"""Whether large jobs start, and who pays for it: `python -m benchmarks.studies.large_jobs`.

Writes docs/studies/large-jobs.md and its picture. About ten minutes of one core; the long version is
`kant sweep benchmarks/studies/sweeps/large-jobs.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np

from benchmarks.data import DATA
from benchmarks.studies.parts import write_part
from benchmarks.studies.sharing import Estimate, estimate, percent, ratio
from kant.model.units import DAY, FOREVER, GPU, SECOND, WEEK
from kant.scheduler.profile import builtin_texts, parse_profile
from kant.sim.run import simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import generate
from kant.workload.read import read_workload
from kant.workload.workload import Workload

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "large-jobs.md"
LOAD, LARGE, SMALL = 1.05, 64, 8
PHILLY_GPUS, WIDER, WIDEST = 320, 8, 128
WEEKS = (4, 6, 5, 7)
"""Of the Philly trace; the last two were looked at only when all was decided."""

SIMULATED = '\n[simulation]\ncheckpoint_s = 1800\nestimates = "none"\n'
PLACED = '\n[placement]\npolicy = "consolidated"\n'
LEARNED = '\n[estimates]\nsource = "learned"\n'
FIFO, STRETCH = '[order]\npolicy = "fifo"\n', '[order]\npolicy = "stretch"\nlarge_gpus = 65\n'
LATE = '[discipline]\npolicy = "backfill"\nlarge_gpus = 65\nsmall_timeout_s = 259200\n'
BEST_EFFORT = '[discipline]\npolicy = "best-effort"\n'
UNPREDICTED = STRETCH + "probability = 0\n"

SWITCHES = {
    "best-effort": FIFO + BEST_EFFORT + PLACED + SIMULATED,
    "backfill": FIFO + '[discipline]\npolicy = "backfill"\n' + PLACED + SIMULATED,
    "large heads": FIFO + LATE + PLACED + SIMULATED,
    "order": STRETCH + BEST_EFFORT + PLACED + LEARNED + SIMULATED,
    "large heads, falling behind": UNPREDICTED + LATE + PLACED + SIMULATED,
    "large heads, falling behind, learned": STRETCH + LATE + PLACED + LEARNED + SIMULATED,
    "all, large jobs like others": STRETCH.replace("large_gpus = 65\n", "") + LATE + PLACED + LEARNED + SIMULATED,
    "all, on P90": STRETCH + "probability = 90\n" + LATE + PLACED + LEARNED + SIMULATED,
}
FRONTIER = (
    "fifo-best-effort", "kant-stretch", "kant-turns", "kant", "backfill", "fifo", "baseline", "easy", "conservative",
    "aged", "sjf", "srtf", "srsf", "tiresias",
)  # fmt: skip
OURS = ("kant-stretch", "kant-turns")  # they learn run times, and stop who has run for long
TOLD = ("easy", "conservative", "sjf", "srtf", "srsf")  # they are told the run times
Outcome = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scene:
    """Jobs, the cluster that they come to, and when the run is cut (µs)."""

    jobs: Workload
    nodes: int
    until: int = FOREVER


def offered(jobs: Workload, gpus: int, span: float) -> float:
    """The GPU time that the jobs would take within `span` µs if each began at once, over what there is."""
    within = np.minimum(jobs.runtime, np.maximum(span - jobs.submit, 0))
    return float((jobs.total_gpus * within).sum() / (gpus * span))


def generated(row: str, gpus: int, days: float, seed: int) -> Scene:
    """Jobs after a row that offer at least LOAD of the cluster within the window."""
    load, span = LOAD, round(days * DAY)
    while offered(jobs := generate(row, gpus=gpus, load=load, days=days, seed=seed), gpus, span) < LOAD:
        load += 0.05
    return Scene(jobs, gpus // 8, span)


def philly(week: int) -> Scene:
    """A week of Philly, its jobs of several nodes eight times as wide, at such a pace that it offers LOAD."""
    trace = read_workload(DATA / "philly_jobs.csv.gz", format="philly")
    jobs = trace.take((trace.submit >= week * WEEK) & (trace.submit < (week + 1) * WEEK))
    gpus = np.where(jobs.gpus > SMALL, np.minimum(jobs.gpus * WIDER, WIDEST), jobs.gpus)
    jobs = replace(jobs, gpus=gpus, submit=jobs.submit - jobs.submit[0])
    pace = 1.0
    while offered(paced(jobs, pace), PHILLY_GPUS, WEEK * pace) > LOAD:
        pace *= 1.02
    while offered(paced(jobs, pace), PHILLY_GPUS, WEEK * pace) < LOAD:
        pace /= 1.02
    return Scene(paced(jobs, pace), PHILLY_GPUS // 8)


def paced(jobs: Workload, pace: float) -> Workload:
    return replace(jobs, submit=(jobs.submit * pace).astype(np.int64))


def run_one(scene: Scene, name: str, text: str, seed: int) -> Outcome:
    """One run: what it came to, by name of the number; times in seconds."""
    cluster = read_cluster(f"{scene.nodes}x8")
    result = simulate(scene.jobs, cluster, parse_profile(text, name), seed=seed, until=scene.until)
    found, jobs = result.summary, result.jobs
    gpus = -(-jobs.gpus // GPU)
    wait, done = jobs.wait / SECOND, np.where(jobs.end >= 0, jobs.end, result.end)
    large, small = wait[gpus > LARGE], wait[gpus <= SMALL]
    capacity = scene.nodes * 8 * result.end / SECOND
    print(f"{name} {seed}: {found['cpu_s']:.1f} CPU-s", flush=True)
    return {
        "large": float(np.quantile(large, 0.99)) if len(large) else math.nan,
        "small": float(small.mean()),
        "completion": float((done - jobs.submit).mean()) / SECOND,
        "sor": 100 * found["sor"],
        "useful": 100 * (found["sor"] - found["lost_gpu_s"] / capacity),
        "lost": found["lost_gpu_s"] / 3600,
        "evictions": float(found["evictions"]),
        "longest": float(wait.max()),
        "jobs": float(len(wait)),
        "large_jobs": float(len(large)),
    }


class Table:
    """Outcomes of several profiles on the same scenes; the first profile is the one to compare with."""

    def __init__(self, scenes: Sequence[tuple[int, Scene]], texts: Mapping[str, str]) -> None:
        self.names = tuple(texts)
        self.found = {
            name: [run_one(scene, name, text, seed) for seed, scene in scenes] for name, text in texts.items()
        }

    def ratio(self, name: str, key: str) -> Estimate:
        pairs = zip(self.found[name], self.found[self.names[0]], strict=True)
        return estimate([one[key] / base[key] for one, base in pairs])

    def gain(self, name: str, key: str) -> Estimate:
        pairs = zip(self.found[name], self.found[self.names[0]], strict=True)
        return estimate([one[key] - base[key] for one, base in pairs])

    def mean(self, name: str, key: str) -> float:
        return float(np.mean([one[key] for one in self.found[name]]))

    def lines(self) -> Iterator[str]:
        base = self.names[0]
        jobs, large = self.mean(base, "jobs"), self.mean(base, "large_jobs")
        wait, small, done = (self.mean(base, key) / 3600 for key in ("large", "small", "completion"))
        yield (
            f"{jobs:,.0f} jobs a run, {large:,.0f} of more than {LARGE} GPUs. Under `{base}` their P99 wait is "
            f"{wait:.1f} h, the mean wait of up to {SMALL} GPUs {small:.2f} h, the mean completion {done:.2f} h.\n"
        )
        yield (
            f"| profile | P99 >{LARGE} | mean wait <={SMALL} | mean completion | SOR, points | without lost work "
            "| evictions | GPU-hours lost | longest wait, h |"
        )
        yield "|---|---|---|---|---|---|---|---|---|"
        for name in self.names[1:]:
            cells = [ratio(self.ratio(name, key)) for key in ("large", "small", "completion")]
            cells += [percent(self.gain(name, key)) for key in ("sor", "useful")]
            cells += [f"{self.mean(name, key):,.0f}" for key in ("evictions", "lost")]
            cells.append(f"{self.mean(name, 'longest') / 3600:,.0f}")
            yield f"| `{name}` | " + " | ".join(cells) + " |"
        yield ""

    def one_by_one(self, name: str, scenes: Sequence[object], kind: str = "week") -> Iterator[str]:
        """The ratios of one profile on each scene."""
        columns = f"P99 >{LARGE} | mean wait <={SMALL} | mean completion | best-effort's mean wait <={SMALL}, h"
        yield f"| {kind} | {columns} |"
        yield "|---|---|---|---|---|"
        for scene, one, base in zip(scenes, self.found[name], self.found[self.names[0]], strict=True):
            cells = [f"{one[key] / base[key]:.2f}" for key in ("large", "small", "completion")]
            yield f"| {scene} | " + " | ".join(cells) + f" | {base['small'] / 3600:.2f} |"
        yield ""

    def verdict(self, where: str, name: str, small: bool = True) -> Iterator[str]:
        """The bars for one profile, as lines of a table."""
        bars = [("large", 0.5, f"P99 wait of >{LARGE} GPUs")]
        if small:
            bars += [("small", 1.0, f"mean wait of <={SMALL} GPUs"), ("completion", 1.0, "mean completion")]
        for key, most, label in bars:
            found = self.ratio(name, key)
            said = "missed" if found.mean > most else "met by the mean, not by the whole interval"
            if found.mean + found.half <= most:
                said = "met"
            yield f"| {where} | {label} / best-effort, at most {most:g} | {ratio(found)} | {said} |"
        gain = self.gain(name, "sor")
        said = "met" if gain.mean - gain.half >= 0 else "missed" if gain.mean + gain.half < 0 else "no difference seen"
        yield f"| {where} | no loss of SOR | {percent(gain)} points | {said} |"


def with_simulation(name: str) -> str:
    """A built-in profile whose jobs lose what their last checkpoint does not hold."""
    text, table = builtin_texts()[name], SIMULATED.strip() if name not in TOLD else "[simulation]\ncheckpoint_s = 1800"
    return text.replace("[simulation]", table) if "[simulation]" in text else f"{text}\n{table}\n"


def frontier(table: Table) -> str:
    """The picture: P99 wait of large jobs against the mean completion, both as ratios to best-effort, on logarithms."""
    at = {name: (table.ratio(name, "completion").mean, table.ratio(name, "large").mean) for name in table.names}
    wide, high, left, top = 560, 400, 60, 40
    xs, ys = zip(*((max(x, 0.05), max(y, 0.005)) for x, y in at.values()), strict=True)
    low_x, low_y = math.log(min(xs) / 1.2), math.log(min(ys) / 1.4)
    span_x, span_y = math.log(max(xs) * 1.5) - low_x, math.log(max(ys) * 1.4) - low_y

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (math.log(max(x, 0.05)) - low_x) / span_x, (math.log(max(y, 0.005)) - low_y) / span_y
        return left + wide * across, top + high * (1 - up)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 40}" height="{top + high + 50}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="8" y="20" font-weight="bold">P99 wait of jobs of more than {LARGE} GPUs and mean completion, '
        "best-effort = 1</text>",
        f'<path d="M{left} {top}v{high}h{wide}" fill="none" stroke="#222222"/>',
        f'<text x="{left + wide}" y="{top + high + 40}" text-anchor="end">mean completion</text>',
    ]
    for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10):
        x, y = place(tick, tick)
        if low_x <= math.log(tick) <= low_x + span_x:
            lines.append(f'<text x="{x:.0f}" y="{top + high + 18}" text-anchor="middle">{tick:g}</text>')
        if low_y <= math.log(tick) <= low_y + span_y:
            lines.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{tick:g}</text>')
    for name, (across, up) in at.items():
        x, y = place(across, up)
        fill = "#e45756" if name in OURS else "#f2a541" if name in TOLD else "#4c78a8"
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}"/>')
        lines.append(f'<text x="{x + 8:.1f}" y="{y - 5:.1f}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


ABOUT = f"""\
Every run is paired with best-effort FIFO on the same jobs; ratios are means over pairs, with 95 % intervals by
Student's t. The offered load is {LOAD} of the cluster, counting what could be done within the window. A stopped job
loses what it did since its last checkpoint, one every 30 minutes. Nobody says how long a job runs; only the profiles in
yellow in the picture are told. Intervals over few weeks or seeds are wide.

The switches: `large heads`: jobs of more than {LARGE} GPUs have a head of their own, which stops after an hour whoever
overtook it; smaller heads do so after three days. `falling behind`: the order is
[`stretch`](../policies.md#how-long-a-job-can-wait-under-stretch), by what jobs have run, so that a large head may also
stop who was there first and has run for long. `learned`: by learned run times (P50), too. `order`: that order alone,
under best effort. Victims that fit elsewhere move in the same plan in every line that stops anybody.
"""


def main() -> None:
    texts = {name: with_simulation(name) for name in ("fifo-best-effort", "kant-stretch")}
    weeks = Table([(1, philly(week)) for week in WEEKS], SWITCHES)
    rows = {
        row: Table([(seed, generated(row, 2048, 4, seed)) for seed in range(1, 6)], texts)
        for row in ("helios-venus", "seren")
    }
    profiles = Table(
        [(seed, generated("helios-venus", 256, 7, seed)) for seed in (1, 2, 3)],
        {name: with_simulation(name) for name in FRONTIER},
    )
    write_part(PAGE, "large_jobs", page(weeks, rows, profiles))
    PAGE.with_suffix(".svg").write_text(frontier(profiles), encoding="utf-8")


def page(weeks: Table, rows: Mapping[str, Table], profiles: Table) -> Iterator[str]:
    ours = "large heads, falling behind, learned"
    yield "# Large jobs start, and who pays for it\n"
    yield "Made by `python -m benchmarks.studies.large_jobs`.\n"
    yield ABOUT
    yield f"## Weeks of Philly on {PHILLY_GPUS} GPUs\n"
    yield (
        f"Weeks {', '.join(map(str, WEEKS))} of the trace, all queues on one cluster; the last two were looked "
        f"at only when all was decided. The trace has no job of more than 32 GPUs, so its jobs of several nodes are "
        f"{WIDER} times as wide here, up to {WIDEST} GPUs. Each run goes on until all jobs have ended, so SOR is "
        "that of a long tail.\n"
    )
    yield from weeks.lines()
    yield f"Week by week, under `{ours}`, the queue of `kant-stretch`:\n"
    yield from weeks.one_by_one(ours, WEEKS)
    for row, table in rows.items():
        yield f"## After `{row}`, 2,048 GPUs, four days, seeds 1 to 5\n"
        yield from table.lines()
    yield "## All built-in profiles that differ in who goes next\n"
    yield "Helios-like, 256 GPUs, a week, seeds 1 to 3. The profiles of placements are all best-effort FIFO.\n"
    yield from profiles.lines()
    yield "![The frontier](large-jobs.svg)\n"
    yield "## The bars\n"
    yield "| where | bar | found | verdict |\n|---|---|---|---|"
    yield from weeks.verdict("Philly, 320 GPUs, `kant-stretch`'s queue", ours)
    for row, table in rows.items():
        yield from table.verdict(f"`{row}`, 2,048 GPUs, `kant-stretch`", "kant-stretch")
    yield f"\n{WHY}"


WHY = """\
## What each switch is worth, and the default

What a job has run so far says most: a large head that may also stop who has run for hours waits a fraction of what
it waits under FIFO with late heads. The learned order among those that fit is what short jobs gain; with P90 instead of
P50 they gain less. `all, large jobs like others` (`large_gpus = 0` of `stretch`) is kinder to short jobs, and halves
the P99 wait of large ones less surely.

The bar for short jobs is missed on both weeks that were held back. Where they hardly waited under best-effort (week
7, and after `seren`), large jobs that take most of the cluster for days take it from them: no order makes up for that.
On `helios-venus` at 2,048 GPUs all is met but SOR, which loses half a point.

In the picture `kant-stretch` lies below `kant` on both axes, and below every profile that is told nothing but Tiresias,
whose short jobs wait less and whose large ones hardly start sooner. `srtf` and `srsf` are told the run times, heed no
quotas, and lose four times as much work. The default is `kant` all the same, as long as the bar for short jobs is
missed where it was held back: `kant-stretch` loses more work than `kant`, and whoever takes it should have large jobs
that starve and are not most of the load.

[Turns](#jobs-of-all-sizes-take-turns) are the other way: all sizes in one queue, and whoever has run for long
gives way. There short jobs
seldom pay. In the picture `kant-turns` lies beside `kant-stretch`, where mean completion is the shortest of all that
is told nothing.
"""

if __name__ == "__main__":
    main()
