"""Who waits when a cluster is shared: `python -m benchmarks.studies.fairness`.

Orders and rights of preemption under the same load. Writes docs/studies/fairness.md and its plot.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.studies.parts import write_part
from benchmarks.studies.sharing import ROW_NAMES, Case, Results, Setting, bars, percent, ratio, run_all, table

SETTING = Setting(nodes=32, days=1, largest=64)
PAGE = Path(__file__).parents[2] / "docs" / "studies" / "fairness.md"

COMMON = """
[discipline]
policy = "best-effort"

[placement]
policy = "consolidated"

[simulation]
checkpoint_s = 1800
"""
RECLAIM = """
[preemption]
priority = true
reclaim = "{reclaim}"
"""


def case(order: str, reclaim: str) -> Case:
    """An order, and what may be stopped for a newcomer: `off` is nobody at all."""
    text = f"[order]\n{order}\n" + COMMON
    return Case(text if reclaim == "off" else text + RECLAIM.format(reclaim=reclaim))


ORDERS = {
    "fifo": 'policy = "fifo"',
    "drf": 'policy = "drf"',
    "fair-share": 'policy = "fair-share"',
}
CASES = {
    f"{name}, {reclaim}": case(order, reclaim)
    for name, order in ORDERS.items()
    for reclaim in ("off", "nominal", "fair-share")
}


BASE = "fifo, off"

ABOUT = """\
Every profile is best-effort. The first word is the order; the second says what a new job may reclaim by preemption:
nothing, what others use beyond their nominal quota, or beyond their fair share. Where it may take something back, it
may also stop jobs of lower priority. [rho](../metrics.md#finish-time-fairness) is what sharing costs a queue; 1 is
nothing.
"""

WHY = """\
Orders of queues need no victim: they give freed capacity to the queue that is behind. Reclaim to the nominal quota
lets every queue within its quota stop borrowers. Under overload all idle capacity is borrowed, so it stops a job
nearly each time that such a queue has a new job, and SOR without lost work is lower by the repeated work of victims.
Reclaim to the fair share stops fewer, because a queue that wants more than its quota may keep what others leave.
"""


def page(results: Results) -> Iterator[str]:
    yield "# Fairness among queues on an overloaded cluster\n"
    yield "Made by `python -m benchmarks.studies.fairness`.\n"
    yield str(SETTING)
    yield ABOUT
    for row in ROW_NAMES:
        yield f"## After `{row}`\n"
        yield from table(results, row, tuple(CASES))
        yield ""
    yield f"## Against `{BASE}`\n"
    yield "| workload | profile | worst rho / its | mean rho / its | SOR - its, points |"
    yield "|---|---|---|---|---|"
    for row in ROW_NAMES:
        for name in CASES:
            if name != BASE:
                worst, mean = (ratio(results.ratio(row, name, BASE, key)) for key in ("worst", "mean"))
                yield f"| `{row}` | `{name}` | {worst} | {mean} | {percent(results.gain(row, name, BASE, 'sor'))} |"
    yield "\n## Why\n"
    yield WHY
    yield "![rho of the worst queue after seren](fairness.svg)"


def main() -> None:
    results = run_all(SETTING, CASES)
    PAGE.parent.mkdir(exist_ok=True)
    write_part(PAGE, "fairness", page(results))
    found = [(name, results.of("seren", name, "worst")) for name in CASES]
    plot = bars("rho of the worst queue (seren)", found, "")
    PAGE.with_suffix(".svg").write_text(plot, encoding="utf-8")


if __name__ == "__main__":
    main()
