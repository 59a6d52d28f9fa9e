"""Who waits when a cluster is shared: `python -m benchmarks.studies.fairness`.

Orders and rights of preemption under the same load. Writes docs/studies/fairness.md and its plot.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.studies.sharing import ROW_NAMES, SETTING, Results, bars, ratio, run_all, table

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


def profile(order: str, reclaim: str) -> str:
    """An order, and what may be stopped for a newcomer: `off` is nobody at all."""
    text = f"[order]\n{order}\n" + COMMON
    return text if reclaim == "off" else text + RECLAIM.format(reclaim=reclaim)


ORDERS = {
    "fifo": 'policy = "fifo"',
    "aged": 'policy = "aged"',
    "drf": 'policy = "drf"',
    "fair-share": 'policy = "fair-share"',
}
PROFILES = {
    f"{name}, {reclaim}": profile(order, reclaim)
    for name, order in ORDERS.items()
    for reclaim in ("off", "nominal", "fair-share")
}


def page(results: Results) -> Iterator[str]:
    names = list(dict.fromkeys(name for _, name, _ in results.outcomes))
    yield "# Fairness among queues on an overloaded cluster\n"
    yield "Made by `python -m benchmarks.studies.fairness`.\n"
    yield SETTING
    yield (
        "Every profile is best-effort. The first word is the order; the second says what a newcomer may take back by "
        "preemption: nothing, what others use beyond their nominal quota, or beyond their fair share. "
        "[rho](../metrics.md#finish-time-fairness) is what sharing costs a queue; 1 is nothing.\n"
    )
    rows = list(dict.fromkeys(row for row, _, _ in results.outcomes))
    for row in rows:
        yield f"## After `{row}`\n"
        yield from table(results, row, names)
        yield ""
    yield "## Worst queue against FIFO without preemption\n"
    yield "| workload | profile | rho of the worst queue / that of `fifo, off` |"
    yield "|---|---|---|"
    for row in rows:
        for name in names[1:]:
            yield f"| `{row}` | `{name}` | {ratio(results.ratio(row, name, names[0], 'worst'))} |"
    yield "\n![rho of the worst queue after seren](fairness.svg)"


def main() -> None:
    chosen = {name: text for name, text in PROFILES.items() if len(sys.argv) < 2 or name in sys.argv[1:]}
    results = run_all(chosen, ROW_NAMES)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(page(results)) + "\n", encoding="utf-8")
    found = [(name, results.of("seren", name, "worst")) for name in chosen]
    plot = bars("rho of the worst queue (seren)", found, "")
    PAGE.with_suffix(".svg").write_text(plot, encoding="utf-8")


if __name__ == "__main__":
    main()
