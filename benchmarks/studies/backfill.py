"""What backfilling gives an overloaded cluster: `python -m benchmarks.studies.backfill`.

Writes docs/studies/backfill.md and its plot. With a number of nodes (256 takes an hour) it prints the page instead.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.studies.parts import write_part
from benchmarks.studies.sharing import (
    LARGE,
    ROW_NAMES,
    SEEDS,
    Case,
    Estimate,
    Results,
    Setting,
    bars,
    percent,
    plain,
    ratio,
    run_all,
    table,
)
from kant.metrics.fairness import nominal_gpus

NODES = 64
PAGE = Path(__file__).parents[2] / "docs" / "studies" / "backfill.md"

COMMON = """
[order]
policy = "fifo"

[placement]
policy = "consolidated"

[simulation]
checkpoint_s = 1800
"""
USERS = "estimate_factor = 5.0\n"

CASES = {
    "strict": Case('[discipline]\npolicy = "strict"\n' + COMMON),
    "best-effort": Case('[discipline]\npolicy = "best-effort"\n' + COMMON),
    "backfill": Case('[discipline]\npolicy = "backfill"\n' + COMMON),
    "backfill, no quotas": Case('[discipline]\npolicy = "backfill"\n' + COMMON, quotas=False),
    "easy": Case('[discipline]\npolicy = "easy"\n' + COMMON + USERS),
    "conservative": Case('[discipline]\npolicy = "conservative"\ndepth = 32\n' + COMMON + USERS),
}
BASELINES = ("strict", "best-effort")

ABOUT = """\
`strict` and `best-effort` are the two FIFO disciplines. `backfill` is Kant's own: a first job that has waited for an
hour stops jobs that passed it; it needs no estimates. `easy` and `conservative` plan with reservations on the users'
estimates, which are the run times multiplied by 1 to 5; `conservative` holds 32 reservations at a time. Under
`backfill, no quotas` the queues are only names. For the other disciplines quotas that do not limit have no effect, so
they have one line each. [rho](../metrics.md#finish-time-fairness) is what sharing costs a queue, relative to its quota
alone.
"""

WHY = """\
These profiles reclaim nothing, so a first job may stop all jobs that passed it, and `backfill` is about as good as
without quotas. If a profile reclaims lent quota ([note 9](../design/quotas-and-preemption.md)), a first job that would
bring its queue beyond its nominal quota may stop only jobs that are beyond too, or of its own queue: otherwise two
queues could take one place from each other in turn.

If a profile's size classes have nearly the same P99 wait, all wait about in the order of their arrival, and that
wait is the backlog of an overloaded cluster. A profile that keeps this order can only be below it
by wasting less. Best-effort's large jobs exceed it at most by the length of the window: they count with their wait so
far.

The first bar judges only jobs of more than 64 GPUs, so it says nothing about workloads without them.
"""

WAIT_BAR, SOR_BAR = 0.5, 4.1
"""At most this part of best-effort's P99 wait; at least so many points over strict, which is Kant's published gain."""


def verdict(found: Estimate, met: bool, whole: bool) -> str:
    """Says whether a bar is met by the mean, and `whole`: also by the far end of the interval."""
    if math.isnan(found.mean):
        return "nothing to judge"
    return ("met" if whole else "met by the mean, not by the whole interval") if met else "missed"


def judged(results: Results, row: str, name: str) -> Iterator[str]:
    """The two bars for one profile, as lines of a table."""
    wait = results.ratio(row, name, "best-effort", "large")
    sor = results.gain(row, name, "best-effort", "sor")
    held = sor.mean + sor.half >= 0
    met = wait.mean <= WAIT_BAR and held
    yield (
        f"| `{row}` | `{name}` | P99 wait of >{LARGE} GPUs / best-effort, at most {WAIT_BAR}, at no loss of SOR "
        f"| {ratio(wait)}, SOR {percent(sor)} | {verdict(wait, met, held and wait.mean + wait.half <= WAIT_BAR)} |"
    )
    gain = results.gain(row, name, "strict", "sor_median")
    yield (
        f"| `{row}` | `{name}` | median SOR - strict, at least +{SOR_BAR} points "
        f"| {percent(gain)} | {verdict(gain, gain.mean >= SOR_BAR, gain.mean - gain.half >= SOR_BAR)} |"
    )


def beyond_quota(setting: Setting, row: str) -> tuple[int, int]:
    """How many jobs of more than LARGE GPUs there are over all seeds, and how many exceed their queue's whole quota."""
    large = beyond = 0
    for seed in SEEDS:
        workload = setting.workload(row, seed)
        queue_config = setting.entitlements(workload)
        quotas = np.array([nominal_gpus(queue_config, name) for name in workload.queues])
        gpus = workload.total_gpus
        large += int((gpus > LARGE).sum())
        beyond += int(((gpus > LARGE) & (gpus > quotas[workload.queue])).sum())
    return large, beyond


def page(setting: Setting, results: Results) -> Iterator[str]:
    yield "# Backfill on an overloaded cluster\n"
    yield "Made by `python -m benchmarks.studies.backfill`.\n"
    yield str(setting)
    yield ABOUT
    for row in ROW_NAMES:
        yield f"## After `{row}`\n"
        large, beyond = beyond_quota(setting, row)
        yield (
            f"{plain(results.of(row, 'strict', 'jobs'))} jobs a run. Over all seeds {large} have more than {LARGE} "
            f"GPUs; {beyond} of these are larger than the whole quota of their queue.\n"
        )
        yield from table(results, row, tuple(CASES))
        yield ""
    yield "## The bars\n"
    yield "| workload | profile | bar | found | verdict |"
    yield "|---|---|---|---|---|"
    for row in ROW_NAMES:
        for name in CASES:
            if name not in BASELINES:
                yield from judged(results, row, name)
    yield "\n## Why\n"
    yield WHY
    yield "![P99 wait of jobs of more than 64 GPUs after seren](backfill.svg)"


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    setting = Setting(nodes=nodes, days=4, largest=2 * nodes)  # the largest jobs take a quarter of the cluster
    results = run_all(setting, CASES)
    text = "\n".join(page(setting, results)) + "\n"
    if nodes != NODES:
        print(text)
        return
    PAGE.parent.mkdir(exist_ok=True)
    write_part(PAGE, "backfill", [text])
    found = [(name, results.of("seren", name, "large")) for name in CASES]
    plot = bars(f"P99 wait of jobs of more than {LARGE} GPUs, hours (seren)", found, "h", 1 / 3600)
    PAGE.with_suffix(".svg").write_text(plot, encoding="utf-8")


if __name__ == "__main__":
    main()
