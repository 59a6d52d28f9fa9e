"""What it is worth that jobs of all sizes take turns: `python -m benchmarks.studies.turns`.

Writes docs/studies/turns.md. About three minutes of one core. It goes on from benchmarks/studies/large_jobs.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.studies.large_jobs import (
    BEST_EFFORT,
    FIFO,
    LARGE,
    LATE,
    LEARNED,
    PHILLY_GPUS,
    PLACED,
    SIMULATED,
    Table,
    generated,
    philly,
    with_simulation,
)
from benchmarks.studies.large_jobs import STRETCH as LARGE_SOONEST
from benchmarks.studies.large_jobs_bound import least_p99

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "turns.md"
TUNED, SEEN, HELD, SEEDS = (4, 5, 7), (3, 8, 9, 10), (2, 11, 12), (4, 5, 6)
"""Weeks of Philly on which the profile was chosen, among others; seen once; held back. Seeds held back."""

STRETCH, TURNS = '[order]\npolicy = "stretch"\n', '[discipline]\npolicy = "backfill"\ntimeout_s = 1800\n'
SOONER = STRETCH + "large_gpus = 65\nlarge_factor = 3\n"
RIGHTS, STAY = "\n[preemption]\n", "\n[preemption]\nmove_victims = false\n"
REST = PLACED + LEARNED + SIMULATED
BASE = {"best-effort": FIFO + BEST_EFFORT + PLACED + SIMULATED}
QUEUES = {"kant-stretch": LARGE_SOONEST + LATE + REST, "kant-turns": STRETCH + TURNS + RIGHTS + REST}
SWITCHES = {
    "kant-turns": QUEUES["kant-turns"],
    "without the order": FIFO + TURNS + RIGHTS + REST,
    "without turns": STRETCH + BEST_EFFORT + REST,
    "without what is learned": STRETCH + "probability = 0\n" + TURNS + RIGHTS + PLACED + SIMULATED,
    "without moves": STRETCH + TURNS + STAY + REST,
    "large jobs sooner": SOONER + TURNS + RIGHTS + REST,
}

ABOUT = f"""\
The measure is that of [the study of large jobs](large-jobs.md): ratios to best-effort FIFO on the same jobs at an
offered load of 1.05, with 95 % intervals by Student's t; a stopped job loses what it did since its last checkpoint, one
every 30 minutes, and its wait is all the time for which it does not run. Intervals over few weeks or seeds are wide.

`kant-turns` has one queue for all sizes, in the order
[`stretch`](../policies.md#how-long-a-job-can-wait-under-stretch): a job falls behind by ten times what it is expected
to run, learned or found out. Who is first and has waited for half an hour stops who is behind. So a job that has run
for long gives way to short ones, and comes back in its turn. Under `kant-stretch` jobs of more than {LARGE} GPUs fall
behind once, not ten times, and small heads wait for three days before they stop anybody.
"""


def main() -> None:
    held = Table([(1, philly(week)) for week in HELD], BASE | QUEUES)
    seen = Table([(1, philly(week)) for week in SEEN], BASE | QUEUES)
    texts = {name: with_simulation(name) for name in ("fifo-best-effort", "kant-turns")}
    loads = {
        row: Table([(seed, generated(row, 2048, 4, seed)) for seed in SEEDS], texts)
        for row in ("helios-venus", "seren")
    }  # fmt: skip
    switches = Table([(1, philly(week)) for week in TUNED], BASE | SWITCHES)
    small = Table([(seed, generated("helios-venus", 256, 7, seed)) for seed in (1, 2, 3)], texts)
    least = [
        least_p99(philly(week), 1.1 * base["small"] / 3600)
        for week, base in zip(HELD, held.found["best-effort"], strict=True)
    ]
    PAGE.write_text("\n".join(page(held, least, seen, loads, switches, small)) + "\n", encoding="utf-8")


def listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def page(
    held: Table, least: Sequence[float], seen: Table, loads: Mapping[str, Table], switches: Table, small: Table
) -> Iterator[str]:
    yield "# Jobs of all sizes take turns\n"
    yield "Made by `python -m benchmarks.studies.turns`.\n"
    yield ABOUT
    yield f"## Weeks of Philly on {PHILLY_GPUS} GPUs\n"
    yield (
        f"Weeks {listed(HELD)} were held back until all was decided. Each run goes on until all jobs have ended, so "
        "SOR is that of a long tail.\n"
    )
    yield from held.lines()
    for name in QUEUES:
        yield f"Week by week, under the queue of `{name}`:\n"
        yield from held.one_by_one(name, HELD)
    yield (
        "What nobody could do better: a linear program that knows all run times, cuts GPUs and jobs at will, and lets "
        "small jobs wait 1.1 times as long as best-effort (`benchmarks/studies/large_jobs_bound.py`).\n"
    )
    yield f"| week | P99 >{LARGE} under best-effort, h | at least, h | at least, of best-effort's |\n|---|---|---|---|"
    for week, base, hours in zip(HELD, held.found["best-effort"], least, strict=True):
        before = base["large"] / 3600
        yield f"| {week} | {before:,.0f} | {hours:,.0f} | {hours / before:.2f} |"
    yield ""
    yield (
        f"Weeks {listed(SEEN)} were looked at once before, when large jobs fell behind by three times; after that, and "
        "after seed 2 of the loads below, they fall behind like all others.\n"
    )
    yield from seen.lines()
    yield "Week by week, under the queue of `kant-turns`:\n"
    yield from seen.one_by_one("kant-turns", SEEN)
    for row, table in loads.items():
        yield f"## After `{row}`, 2,048 GPUs, four days, seeds {listed(SEEDS)}, held back\n"
        yield from table.lines()
    yield "## Beside all built-in profiles\n"
    yield "Helios-like, 256 GPUs, a week, seeds 1 to 3: the line for the table of [large jobs](large-jobs.md).\n"
    yield from small.lines()
    yield f"## What each part is worth, on weeks {listed(TUNED)}\n"
    yield from switches.lines()
    yield "Week by week, under the queue of `kant-turns`:\n"
    yield from switches.one_by_one("kant-turns", TUNED)
    yield "## The bars\n"
    yield "| where | bar | found | verdict |\n|---|---|---|---|"
    for name in QUEUES:
        yield from held.verdict(f"Philly, held back, `{name}`'s queue", name)
    for row, table in loads.items():
        yield from table.verdict(f"`{row}`, 2,048 GPUs, `kant-turns`", "kant-turns")
    yield f"\n{WHY}"


WHY = """\
## Why, and which to take

Turns keep short jobs from paying: who has run for long gives way, large or small. In every week where small jobs
waited for an hour or more under best-effort, and on both loads at 2,048 GPUs, their mean wait and the mean completion
fall. The P99 wait of large jobs about halves, or better, where they are up to a fifth of the work (weeks 3, 4, 5, 8,
`helios-venus`). In weeks 2, 7, 9 and 12 they are most of it, and small jobs hardly waited under best-effort, because
large ones ran when nobody else was there. Any start of a large job is then a wait of small ones, and no ratio to next
to nothing can be kept. For week 2 it is proven that no policy meets both bars; in the others the bound leaves room, for
somebody who knows all run times.

After `seren` most of the work is that of large jobs, up to half of the cluster each, and the longest of them wait for
each other. `kant-stretch` puts them before all small ones, and comes to half of best-effort's P99 there
([large jobs](large-jobs.md)). Turns spare the small ones instead. They cost work there: jobs that stop lose what they
have not saved, and less of the GPU time is of use than under best-effort (`without lost work`).

Of the parts, turns are what large jobs gain by: without them they start no sooner. The order is what keeps short jobs
from paying. What is learned helps both a little; how long a job has run says nearly as much. Moves make no difference
that can be seen: who is stopped seldom fits elsewhere at once.

`kant` stays the default, as it stops few jobs and loses little. Take `kant-turns` where short jobs wait for hours and
training saves its work often; take `kant-stretch` where large jobs must start, whoever pays.
"""

if __name__ == "__main__":
    main()
