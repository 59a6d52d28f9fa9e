"""Which replica is stopped for urgent training: `python -m benchmarks.studies.serving_price`, some minutes.

The services of `serving_services`, half a week, and urgent jobs that stop bursts: by the work that these have done, or
by what their removal costs. Writes docs/studies/serving-services.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.studies.parts import write_part
from benchmarks.studies.serving_services import services
from benchmarks.studies.topology import interval
from kant.live.profile_file import read_profile
from kant.model.units import SECOND
from kant.serving.kept import kept_shares
from kant.serving.removal_price import RemovalPrice
from kant.serving.services_file import Declared
from kant.sim.run import simulate
from kant.testing import make_cluster, make_jobs
from kant.workload.workload import Workload

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "serving-services.md"
DAYS, SEEDS = 3, range(5)
SIZES, HOURS = (1, 2, 4), (1, 3)


class Case(NamedTuple):
    """A cluster, how many urgent jobs come, and how many others."""

    nodes: int
    urgent: int
    others: int


CASES = {"room to come back": Case(8, 60, 340), "no room": Case(3, 200, 0)}


def training(seed: int, case: Case) -> Workload:
    """Urgent jobs, above bursts and below cores, and others that fill the cluster."""
    draw = np.random.Generator(np.random.PCG64([seed, 0x9]))
    count = case.urgent + case.others
    urgent = np.sort(draw.choice(count, case.urgent, replace=False))
    priority = np.zeros(count, dtype=np.int64)
    priority[urgent] = 75
    runtime = np.clip(draw.lognormal(np.log(7200), 1.0, count), 1800, 86_400).astype(np.int64)
    runtime[urgent] = draw.integers(HOURS[0] * 3600, HOURS[1] * 3600, case.urgent)
    gpus = draw.choice([1, 2, 4, 8], count, p=[0.3, 0.2, 0.3, 0.2])
    gpus[urgent] = draw.choice(SIZES, case.urgent)
    return make_jobs(
        submit=np.sort(draw.integers(0, DAYS * 86_400, count)).tolist(),
        runtime=runtime.tolist(),
        gpus=gpus.tolist(),
        priority=priority.tolist(),
    )


def priced(declared: Declared) -> Declared:
    """The same service, whose replicas cost what their removal costs."""
    away = declared.table.start_s + declared.table.every_s
    price = RemovalPrice(kept_shares(declared.service, declared.curve), declared.curve, declared.gpus, away)
    return replace(declared, price=price)


def run(seed: int, declared: list[Declared], case: Case) -> dict[str, float]:
    summary = simulate(
        training(seed, case), make_cluster(*[8] * case.nodes), read_profile("kant", "study"), seed=seed,
        until=DAYS * 86_400 * SECOND, services=declared,
    ).summary  # fmt: skip
    rows = summary["services"]
    minutes = sum(row["minutes"] for row in rows)
    return {
        "short": sum((1 - row["kept_by_capacity"]) * row["minutes"] for row in rows),
        "worst": 100 * min(row["kept_by_capacity"] for row in rows),
        "engine": 100 * sum(row["engine"]["share"] * row["minutes"] for row in rows) / minutes,
        "gpu_hours": sum(row["gpu_hours"] for row in rows),
        "preemptions": summary["preemptions"],
    }


def page() -> Iterator[str]:
    shares = kept_shares(services(0)[0].service, services(0)[0].curve)
    yield "# Which replica is stopped\n"
    yield "Made by `python -m benchmarks.studies.serving_price`.\n"
    yield f"""\
The three services of [the study before](#services-that-follow-a-forecast-beside-training), {DAYS} days
under the profile `kant`, and urgent jobs of
{SIZES[0]} to {SIZES[-1]} GPUs, {HOURS[0]} to {
        HOURS[1]
    } hours each, which may stop bursts but no cores. Whom they stop costs what it has
done since it began (*work done*, as of training), or what taking it away costs the service (*removal*,
`price = "removal"`). {len(SEEDS)} seeds, 95 % intervals.

The price is measured on the engine as by [`kant serve removal`](../serving.md#the-capacity-of-replicas): while one of
four replicas is away, {", ".join(f"{100 * s:.1f}" for s in shares.shares)} % of the requests come late where they are
{", ".join(f"{load:g}" for load in shares.loads)} times what the three bear.

- *room to come back*: {CASES["room to come back"].nodes} nodes of 8 GPUs, {
        CASES["room to come back"].urgent
    } urgent jobs, and {CASES["room to come back"].others} others that fill the rest and give way to bursts.
- *no room*: {CASES["no room"].nodes} nodes, {
        CASES["no room"].urgent
    } urgent jobs and no others; a burst that is stopped waits for one of them to end.
"""
    names = (
        ("short", "minutes beyond capacity, all services", "{:,.0f}"),
        ("worst", "minutes within capacity, worst service, %", "{:.2f}"),
        ("engine", "minutes kept as the engine says, %", "{:.2f}"),
        ("gpu_hours", "GPU-hours of services", "{:,.0f}"),
        ("preemptions", "preemptions", "{:,.0f}"),
    )
    saved = []
    yield "| | " + " | ".join(f"{name}: {price}" for name in CASES for price in ("work done", "removal")) + " |"
    yield "|---|" + "---:|" * 2 * len(CASES)
    columns: list[list[dict[str, float]]] = []
    for case in CASES.values():
        weeks = [services(seed) for seed in SEEDS]
        plain = [run(seed, week, case) for seed, week in zip(SEEDS, weeks, strict=True)]
        dear = [run(seed, [priced(d) for d in week], case) for seed, week in zip(SEEDS, weeks, strict=True)]
        columns += [plain, dear]
        saved.append(interval([a["short"] - b["short"] for a, b in zip(plain, dear, strict=True)]))
    for key, label, form in names:
        cells = [interval([row[key] for row in rows]) for rows in columns]
        yield f"| {label} | " + " | ".join(f"{form.format(c.mean)} ± {form.format(c.half)}" for c in cells) + " |"
    room, none = saved
    yield f"""
On the same seeds the price of removal saves {room.mean:.0f} ± {room.half:.0f} minutes beyond capacity where there is
room to come back, and {none.mean:.0f} ± {none.half:.0f} where there is none.

## What it says

These seeds show no gain, so the work done stays the default. The reason was not measured. A burst has a
higher priority than the jobs that fill the rest, and takes another place if there is one; and the price is of the next
minutes, while an urgent job stays for hours.
"""


if __name__ == "__main__":
    print(write_part(PAGE, "serving_price", page()))
