"""What spreading replicas costs training, and what a zone saves: `python -m benchmarks.studies.spreading`.

Writes docs/studies/spreading.md and its plot (some minutes on two cores). With a number of nodes it prints the page.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np

from benchmarks.studies.sharing import SEEDS, Estimate, Outcome, Results, hours, percent, plain
from kant.metrics.result import RunResult
from kant.model.node import ClusterSpec, Node
from kant.model.units import DAY, GPU, HOUR, SECOND
from kant.scheduler.profile import parse_profile
from kant.sim.run import RunHooks, simulate
from kant.workload.generate import ROWS, generate
from kant.workload.workload import Workload

NODES, LEAF, DAYS = 128, 8, 2.0
LOAD, SERVICES, TENANTS = 0.9, 0.2, 8
ROW_NAMES = ("seren", "helios-venus")
REPLICAS = (2, 3, 4, 8)
GANG = 64
PAGE = Path(__file__).parents[2] / "docs" / "studies" / "spreading.md"

COMMON = '[order]\npolicy = "fifo"\n[discipline]\npolicy = "backfill"\n'


def strategy(training: str, services: str = "") -> str:
    """A profile: where training goes, and where services do if elsewhere."""
    text = f'{COMMON}[placement]\npolicy = "{training}"\n'
    return text + (f'[[workloads]]\nnames = ["service*"]\nplacement = {{ policy = {services} }}\n' if services else "")


CASES = {
    "spread": strategy("worst-fit", '"spread"'),
    "binpack": strategy("best-fit"),
    "e-binpack": strategy("e-binpack"),
    "e-binpack + spread": strategy("e-binpack", '"spread"'),
    "e-binpack + e-spread": strategy("e-binpack", '"e-spread"'),
    "e-binpack + e-spread, 4 leaves": strategy("e-binpack", '"e-spread", least = 4'),
}

ABOUT = """\
| strategy | training | services |
|---|---|---|
| `spread` | `worst-fit`: the emptiest node | `spread`: the node, then the leaf with the fewest of its replicas |
| `binpack` | `best-fit`: the fullest node | `best-fit` |
| `e-binpack` | `e-binpack`: the fewest, most broken leaves and nodes | `e-binpack` |
| `e-binpack + spread` | `e-binpack` | `spread`, over the whole cluster |
| `e-binpack + e-spread` | `e-binpack`, outside the inference zone as long as it fits there | `e-spread`, inside it |
| `..., 4 leaves` | the same | the same in a zone of at least four leaves instead of two |

**Lost** is the share of a service's replicas that fail with its worst node, or its worst leaf: the mean over the
services of replicas below a whole node that have at least two, and over the hours from the first half day on.
**Dead** is the share of these services that lose all replicas so. **Least** is the smallest share lost that any
placement could reach for these replicas. **Whole leaves** counts those in which every node is free: there a
gang of 64 GPUs that needs one leaf can start; **gang** is the share of hours in which there is one.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """A cluster of `nodes` nodes of eight GPUs in leaves of LEAF nodes, and how long it is watched."""

    nodes: int

    def cluster(self) -> ClusterSpec:
        leaves = ((f"n{i}", f"leaf{i // LEAF}", f"spine{i // LEAF // 4}") for i in range(self.nodes))
        return ClusterSpec("study", tuple(Node(name, 8, leaf=leaf, spine=spine) for name, leaf, spine in leaves))

    def workload(self, row: str, seed: int) -> Workload:
        """Training after `row` up to a quarter of the cluster, and services of several replicas beside it."""
        name = f"{row}-cut"
        sizes = tuple(size for size in ROWS[row].sizes if size.gpus <= 2 * self.nodes)
        ROWS[name] = replace(ROWS[row], sizes=sizes)
        load, gpus = LOAD, 8 * self.nodes
        try:
            while True:
                jobs = generate(name, gpus=gpus, load=load, days=DAYS, services=SERVICES, tenants=TENANTS, seed=seed)
                within = np.minimum(jobs.runtime, np.maximum(DAYS * DAY - jobs.submit, 0))
                if float((jobs.total_gpus * within).sum()) >= LOAD * gpus * DAYS * DAY:
                    return with_replicas(jobs, seed)
                load += 0.05
        finally:
            del ROWS[name]

    def __str__(self) -> str:
        return f"""\
{8 * self.nodes:,} GPUs in {self.nodes} nodes, leaves of {LEAF} nodes, {DAYS:g} days. The load is {LOAD:g} of the
cluster, counting only what could be done within the window; {SERVICES:.0%} of it is that of inference services, the
rest is drawn after the rows {" and ".join(f"`{row}`" for row in ROW_NAMES)} without jobs of more than {2 * self.nodes}
GPUs. The generator's bases are put together to services of {REPLICAS[0]} to {REPLICAS[-1]} replicas of one size (1, 2,
4 or 8 GPUs); burst replicas are further replicas by the hour. FIFO with Kant's backfill, no quotas. Seeds {SEEDS[0]} to
{SEEDS[-1]}; intervals are 95 % by Student's t over the seeds.
"""


def is_service(jobs: Workload) -> np.ndarray:
    """Which jobs are replicas."""
    return np.array([title.startswith("service") for title in jobs.titles])[jobs.title]


def with_replicas(jobs: Workload, seed: int) -> Workload:
    """The same jobs, where several base jobs of one size are one service of one owner; replicas belong to theirs."""
    draw = np.random.Generator(np.random.PCG64([seed, 0x5B]))
    title, queue, user, titles = jobs.title.copy(), jobs.queue.copy(), jobs.user.copy(), list(jobs.titles)
    bases = np.flatnonzero(is_service(jobs) & (jobs.base_job < 0))
    for gpus in np.unique(jobs.gpus[bases]).tolist():
        own = draw.permutation(bases[jobs.gpus[bases] == gpus])
        while len(own):
            count = int(draw.choice(REPLICAS))
            replicas, own = own[:count], own[count:]
            title[replicas] = len(titles)
            queue[replicas], user[replicas] = queue[replicas[0]], user[replicas[0]]
            titles.append(f"service-{len(titles)}")
    replicas = jobs.base_job >= 0
    for column in (title, queue, user):
        column[replicas] = column[jobs.base_job[replicas]]
    return replace(jobs, title=title, queue=queue, user=user, titles=tuple(titles))


def run_one(task: tuple[Setting, str, int, str]) -> tuple[str, int, str, Outcome]:
    """One run: what it came to, by name of the number."""
    setting, row, seed, name = task
    jobs = setting.workload(row, seed)
    result = simulate(
        jobs,
        setting.cluster(),
        parse_profile(CASES[name], name),
        seed=seed,
        until=round(DAYS * DAY),
        hooks=RunHooks(keep_intervals=True),
    )
    place = {job: i for i, job in enumerate(jobs.ids)}
    rows = np.array([place[job] for job in result.jobs.id])
    small = is_service(jobs) & (jobs.gpus < 8)
    service = np.where(small, jobs.title, -1)[rows]
    found = [seen_at(result, service, time) for time in np.arange(DAY // 2, round(DAYS * DAY), HOUR)]
    outcome = {key: float(np.mean([hour[key] for hour in found])) for key in found[0]}
    large = result.jobs.gpus >= GANG * GPU
    outcome |= {
        "gfr": 100 * result.summary["gfr"]["mean"],
        "sor": 100 * result.summary["sor"],
        "wait": float(np.quantile(result.jobs.wait[large], 0.9)) / SECOND if large.any() else math.nan,
        "mean_wait": result.summary["wait_s"]["mean"],
        "jobs": float(len(rows)),
        "large_jobs": float(large.sum()),
        "cpu_s": result.summary["cpu_s"],
    }
    return row, seed, name, outcome


def seen_at(result: RunResult, service: np.ndarray, time: int) -> Outcome:
    """The cluster at one moment. `service` is that of each job, -1 for none."""
    nodes = len(result.cluster.nodes)
    pieces = result.intervals
    now = pieces[(pieces[:, 4] <= time) & (pieces[:, 5] > time)]
    taken = np.bincount(now[:, 1], minlength=nodes) > 0
    whole = np.bincount(np.arange(nodes) // LEAF, ~taken, nodes // LEAF) == LEAF
    of = service[now[:, 0]]
    lost = []
    for one in np.unique(of[of >= 0]):
        hosts = now[of == one, 1]
        if len(hosts) > 1:
            by_node, by_leaf = np.bincount(hosts).max(), np.bincount(hosts // LEAF).max()
            fewest = -(-len(hosts) // nodes), -(-len(hosts) // (nodes // LEAF))
            dead = by_node == len(hosts), by_leaf == len(hosts)
            lost.append((by_node / len(hosts), by_leaf / len(hosts), *dead, *(n / len(hosts) for n in fewest)))
    means = 100 * np.array(lost).mean(axis=0) if lost else np.full(6, math.nan)
    return {
        **dict(
            zip(("node", "leaf", "dead_node", "dead_leaf", "least_node", "least_leaf"), means.tolist(), strict=True)
        ),
        "services": float(len(lost)),
        "hosts": float(len(np.unique(now[of >= 0, 1] // LEAF))),
        "whole": float(whole.sum()),
        "gang": 100 * float(whole.any()),
    }


def run_all(setting: Setting) -> Results:
    """Every strategy on every row and seed, on two processes."""
    tasks = [(setting, row, seed, name) for seed in SEEDS for row in ROW_NAMES for name in CASES]
    found: dict[tuple[str, str, int], Outcome] = {}
    with ProcessPoolExecutor(2) as pool:
        for row, seed, name, outcome in pool.map(run_one, tasks):
            found[row, name, seed] = outcome
            print(f"{row} {seed} {name}: {outcome}", flush=True)
    return Results(found)


# --- the page --------------------------------------------------------------------------------------------------

COLUMNS = (
    ("lost with a node %", "node", percent),
    ("dead", "dead_node", percent),
    ("lost with a leaf %", "leaf", percent),
    ("dead", "dead_leaf", percent),
    ("GFR %", "gfr", percent),
    ("whole leaves", "whole", percent),
    ("gang %", "gang", percent),
    ("P90 wait >=64 GPUs, h", "wait", hours),
    ("mean wait, h", "mean_wait", hours),
    ("SOR %", "sor", percent),
    ("leaves with replicas", "hosts", percent),
    ("CPU-s", "cpu_s", plain),
)


def page(setting: Setting, results: Results) -> Iterator[str]:
    yield "# Spreading replicas beside training\n"
    yield "Made by `python -m benchmarks.studies.spreading`.\n"
    yield str(setting)
    yield ABOUT
    for row in ROW_NAMES:
        yield f"## Beside `{row}`\n"
        first = {
            key: results.of(row, "spread", key)
            for key in ("jobs", "large_jobs", "services", "least_node", "least_leaf")
        }
        yield (
            f"{plain(first['jobs'])} jobs a run, {plain(first['large_jobs'])} of them of {GANG} GPUs or more; "
            f"{plain(first['services'])} services at a time. Least lost: {percent(first['least_node'])} % with a node, "
            f"{percent(first['least_leaf'])} % with a leaf.\n"
        )
        yield "| strategy | " + " | ".join(label for label, _, _ in COLUMNS) + " |"
        yield "|---|" + "---|" * len(COLUMNS)
        for name in CASES:
            yield f"| `{name}` | " + " | ".join(show(results.of(row, name, key)) for _, key, show in COLUMNS) + " |"
        yield ""
    yield "## Against each other\n"
    yield "Differences on the same workload.\n"
    yield "| workload | strategy | against | lost with a node, points | with a leaf | GFR, points | gang, points |"
    yield "|---|---|---|---|---|---|---|"
    for row in ROW_NAMES:
        for base in ("spread", "e-binpack + spread", "e-binpack"):
            gains = [results.gain(row, "e-binpack + e-spread", base, key) for key in ("node", "leaf", "gfr", "gang")]
            yield f"| `{row}` | `e-binpack + e-spread` | `{base}` | " + " | ".join(map(percent, gains)) + " |"
    yield f"\n{WHY}"
    yield "![Replicas lost against GFR, beside seren](spreading.svg)"


WHY = """\
Spread over the whole cluster, a service of n replicas loses one of them with any node or leaf, the smallest possible
loss. But replicas everywhere fragment the cluster: more than a third of all nodes are fragmented, jobs of 64 GPUs
and more wait about twice as long, and the cluster does a sixth to a fifth less work. Packing training better around
the spread replicas (`e-binpack + spread`) hardly helps.

Inside a zone they lose no more with a node, to a few tenths of a point. With a leaf they lose what the zone's few
leaves allow: more than spread, less than packed, and never all. GFR stays two to four points above that of
`e-binpack`; the work done and the waits of large gangs differ from it by less than the intervals. There are fewer hours
with a wholly free leaf than under `e-binpack` in the mean, though not beyond chance.
A zone of at least four leaves instead of two loses less with a leaf at about the same cost. A service of n replicas
needs n nodes, so with services as small as these no zone brings GFR below 1 %.

At this load hardly any leaf is ever wholly free, under any strategy; what the strategies do for large gangs shows in
their waits. Replicas of whole nodes are not spread: under `e-spread` they are placed as training is.
"""


def scatter(results: Mapping[str, tuple[Estimate, Estimate, Estimate]]) -> str:
    """Two plots side by side as SVG: GFR against what is lost with a node, and with a leaf; crosses are intervals."""
    left, top, wide, high = 60, 50, 330, 260
    most = max(gfr.mean + gfr.half for gfr, _, _ in results.values()) * 1.05
    colours = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * wide + 170}" height="{top + high + 150}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for panel, what in enumerate(("node", "leaf")):
        x0, y0 = left + panel * (wide + 70), top + high
        lines += [
            f'<text x="{x0}" y="24" font-weight="bold">Replicas lost with the worst {what}, %</text>',
            f'<path d="M{x0} {top}V{y0}H{x0 + wide}" stroke="#222222" fill="none"/>',
            f'<text x="{x0 + wide}" y="{y0 + 34}" text-anchor="end">GFR, %</text>',
        ]
        for share in range(0, 101, 20):
            y = y0 - high * share / 100
            lines.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{share}</text>')
        for tick in range(0, int(most) + 1, 10):
            x = x0 + wide * tick / most
            lines.append(f'<text x="{x:.1f}" y="{y0 + 17}" text-anchor="middle">{tick}</text>')
        for colour, found in zip(colours, results.values(), strict=False):
            gfr, lost = found[0], found[1 + panel]
            x, y = x0 + wide * gfr.mean / most, y0 - high * lost.mean / 100
            dx, dy = wide * gfr.half / most, high * lost.half / 100
            lines.append(
                f'<path d="M{x - dx:.1f} {y:.1f}h{2 * dx:.1f}M{x:.1f} {y - dy:.1f}v{2 * dy:.1f}" stroke="{colour}"/>'
            )
            lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
    for i, (colour, name) in enumerate(zip(colours, results, strict=False)):
        x, y = left + i % 2 * 360, top + high + 66 + i // 2 * 24
        lines.append(
            f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{colour}"/><text x="{x + 12}" y="{y}">{escape(name)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    setting = Setting(nodes)
    results = run_all(setting)
    text = "\n".join(page(setting, results)) + "\n"
    if nodes != NODES:
        print(text)
        return
    PAGE.write_text(text, encoding="utf-8")
    found = {name: tuple(results.of("seren", name, key) for key in ("gfr", "node", "leaf")) for name in CASES}
    PAGE.with_suffix(".svg").write_text(scatter(found), encoding="utf-8")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
