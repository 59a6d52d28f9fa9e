"""How often the gate is wrong: `python -m benchmarks.studies.gate` writes docs/studies/gate.md.

Equal policies are one profile with random placement under two seeds. Each slice of a pool is simulated under both; a
repetition draws slices from the pool and says by the toss of a coin which of the two is the new policy. A regression is
planted by making the new waits longer by a part. In a second pool the regression has a cause: the new policy costs each
job a part of its run time, on the same jobs and under the same seed. Takes about 4 CPU-minutes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kant.experiments.gate import floor_of, judge
from kant.scheduler.profile import builtin_profile
from kant.sim.run import simulate
from kant.workload.cluster_file import read_cluster
from kant.workload.generate import generate

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "gate.md"
POOL, REPETITIONS = 480, 1000
SLICES = (10, 20, 40, 80, 160, 320)
PLANTED = (0.0, 0.02, 0.05, 0.1)
ALLOWED, CONFIDENCE, METRIC = 0.02, 0.95, "wait_s.p90"
CAUSED_POOL, CAUSED_SLICES, CAUSES, JITTER = 160, (10, 20, 40, 80), (0.0, 0.025, 0.05), 0.01
"""The second pool: by what part jobs run longer under the new policy; by what part they may where it costs nothing."""
ROW, LARGEST, GPUS, LOAD, DAYS, PROFILE = "seren", 8, 64, 1.5, 1, "random"


def pairs(slices: int) -> NDArray[np.float64]:
    """The P90 of the waits of each slice under two seeds of the profile, seconds; shape (slices, 2)."""
    cluster, profile = read_cluster(f"{GPUS // 8}x8"), builtin_profile(PROFILE)
    rows = []
    for seed in range(slices):
        jobs = generate(ROW, days=DAYS, gpus=LARGEST, load=LOAD * GPUS / LARGEST, seed=seed)
        runs = (simulate(jobs, cluster, profile, seed=2 * seed + side).summary for side in (0, 1))
        rows.append([run["wait_s"]["p90"] for run in runs])
    return np.array(rows)


def caused(slices: int) -> NDArray[np.float64]:
    """The same under the old policy and under new ones, each of which costs a part of CAUSES; one seed for all.

    The policy that costs nothing is equal but for chance: run times differ by JITTER, up or down by the toss of a coin.
    """
    cluster, profile = read_cluster(f"{GPUS // 8}x8"), builtin_profile(PROFILE)
    rows = []
    for seed in range(slices):
        jobs = generate(ROW, days=DAYS, gpus=LARGEST, load=LOAD * GPUS / LARGEST, seed=seed)
        toss = np.random.Generator(np.random.PCG64(seed)).choice((-JITTER, JITTER), len(jobs))
        longer = [toss if part == 0 else part for part in CAUSES]
        changed = [replace(jobs, runtime=np.rint(jobs.runtime * (1 + part)).astype(np.int64)) for part in longer]
        rows.append([simulate(each, cluster, profile, seed=seed).summary["wait_s"]["p90"] for each in (jobs, *changed)])
    return np.array(rows)


def caused_block(pool: NDArray[np.float64]) -> str:
    """The table of the second pool, and what it says before it."""
    floor = floor_of(METRIC)
    felt = pool[pool.max(axis=1) > floor]
    logs = np.log((felt[:, 1:] + floor) / (felt[:, :1] + floor))
    typical = np.expm1(np.median(logs, axis=0))
    header = " | ".join(
        f"+{100 * part:g} %: {100 * longer:+.1f} %" for part, longer in zip(CAUSES, typical.tolist(), strict=True)
    )
    lines = [f"| slices | {header} |", f"|---|{'---|' * len(CAUSES)}"]
    for slices in CAUSED_SLICES:
        rng = np.random.Generator(np.random.PCG64(slices))
        found = np.zeros(len(CAUSES), dtype=int)
        for _ in range(REPETITIONS):
            drawn = pool[rng.choice(len(pool), slices, replace=False)]
            for side in range(len(CAUSES)):
                judged = judge(METRIC, drawn[:, 0], drawn[:, side + 1], allowed=ALLOWED, confidence=CONFIDENCE)
                found[side] += judged.outcome == "regression"
        lines.append(f"| {slices} | {' | '.join(share(int(count)) for count in found)} |")
    return CAUSED_TEXT.format(
        pool=CAUSED_POOL, jitter=100 * JITTER, off=100 * float(np.median(np.abs(logs[:, 0]))), allowed=100 * ALLOWED,
        table="\n".join(lines),
    )  # fmt: skip


def refused(pool: NDArray[np.float64], slices: int, planted: float, allowed: float = ALLOWED) -> int:
    """In how many of the repetitions the gate finds a regression."""
    rng = np.random.Generator(np.random.PCG64(slices))
    found = 0
    for _ in range(REPETITIONS):
        drawn = pool[rng.choice(len(pool), slices, replace=False)]
        old, new = np.where(rng.random(slices)[:, None] < 0.5, drawn, drawn[:, ::-1]).T
        judged = judge(METRIC, old, new * (1 + planted), allowed=allowed, confidence=CONFIDENCE)
        found += judged.outcome == "regression"
    return found


def share(found: int) -> str:
    """A share of the repetitions with its 95 % interval (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927)."""
    n, z = REPETITIONS, 1.959964
    middle, half = found + z * z / 2, z * (found * (n - found) / n + z * z / 4) ** 0.5
    low, high = (100 * max(middle - half, 0) / (n + z * z), 100 * (middle + half) / (n + z * z))
    return f"{100 * found / n:.1f} ({low:.1f} to {high:.1f})"


def page(pool: NDArray[np.float64], with_cause: str, cpu_s: float) -> str:
    """The page, from the pool and the text of the other."""
    floor = floor_of(METRIC)
    felt = pool[pool.max(axis=1) > floor]
    logs = np.abs(np.log((felt[:, 1] + floor) / (felt[:, 0] + floor)))
    blocks = []
    for allowed in (ALLOWED, 0.0):
        header = " | ".join(f"{planted:.0%} longer" for planted in PLANTED)
        lines = [f"| slices | {header} |", f"|---|{'---|' * len(PLANTED)}"]
        for slices in SLICES:
            cells = " | ".join(share(refused(pool, slices, planted, allowed)) for planted in PLANTED)
            lines.append(f"| {slices} | {cells} |")
        blocks.append(f"## Refused, %, where a regret of {allowed:.0%} is allowed\n\n" + "\n".join(lines))
    return TEXT.format(
        pool=POOL, row=ROW, largest=LARGEST, gpus=GPUS, load=LOAD, repetitions=REPETITIONS, profile=PROFILE,
        felt=len(felt), off=100 * float(np.median(logs)),
        far=100 * float(np.quantile(logs, 0.9)), median=float(np.median(felt)) / 3600, cpu=cpu_s / 60,
        blocks="\n\n".join(blocks), with_cause=with_cause, confidence=100 * CONFIDENCE, stated=100 * (1 - CONFIDENCE),
    )  # fmt: skip


TEXT = """# How often the gate is wrong

Made by `python -m benchmarks.studies.gate` ({cpu:.1f} CPU-minutes).

`kant gate` refuses a change of policy when it finds that the P90 of the waits is worse by more than is allowed. It says
that it refuses a policy that is no worse than that at most {stated:.0f} % of the time ([the
method](../experiments.md#how-it-judges)). Here it judges equal policies, and policies with a planted regression,
{repetitions} times each.

The pool is {pool} slices of a day, drawn after `{row}` with jobs of up to {largest} GPUs, at {load} times what {gpus}
GPUs can do. Each is simulated twice under the profile `{profile}` with two seeds of its placement: equal policies that
decide differently. In {felt} slices somebody waits (median of the P90: {median:.1f} h); there the P90 of one is off
from that of the other by {off:.0f} % in the median, and by more than {far:.0f} % in a tenth of the slices: this is the
effect of chance alone on a day. A repetition draws slices without replacement, and tosses a coin for each which of the
two is the new policy. A planted regression makes each P90 of the new policy longer by a part of itself. Intervals are
Wilson's, 95 %, over the repetitions; these share the slices of the pool.

{blocks}

{with_cause}

## What it takes

The effect of chance on single days is far larger than the regressions to be found, so many days are needed: as many
pairs as the row says in which the column of 5 % reaches what one wants. Where a policy draws, seeds (`--seeds`) make
pairs as well as slices do. Where the waits of a slice change less by chance, as on the same seed, it takes fewer, and
none where both policies decide alike.
"""

CAUSED_TEXT = """## A regression that has a cause, on the same jobs and the same seed

The tables above are the hardest case: two policies with independent random choices. `kant gate` runs both on the
same jobs and under the same seed. Here the new policy adds to the run time of each job, like a worse place, on
{pool} slices; the heads of the columns say how much, and by how much the P90 of the typical slice is longer by that.
Where it costs nothing run times differ by {jitter:.0f} %, up or down by chance, and the P90 by {off:.1f} % in the
median. Refused, %, where a regret of {allowed:.0f} % is allowed:

{table}"""


def main() -> None:
    began = time.process_time()
    pool, with_cause = pairs(POOL), caused_block(caused(CAUSED_POOL))
    PAGE.write_text(page(pool, with_cause, time.process_time() - began), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
