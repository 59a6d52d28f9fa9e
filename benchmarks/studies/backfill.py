"""What backfilling gives an overloaded cluster: `python -m benchmarks.studies.backfill`.

Writes docs/studies/backfill.md and its plot.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.studies.sharing import (
    ROW_NAMES,
    SETTING,
    Results,
    bars,
    percent,
    ratio,
    run_all,
    table,
)

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
LEARNED = '\n[estimates]\nsource = "learned"\n'

PROFILES = {
    "strict": '[discipline]\npolicy = "strict"\n' + COMMON,
    "best-effort": '[discipline]\npolicy = "best-effort"\n' + COMMON,
    "backfill": '[discipline]\npolicy = "backfill"\n' + COMMON,
    "easy, users": '[discipline]\npolicy = "easy"\n' + COMMON + USERS,
    "easy, learned": '[discipline]\npolicy = "easy"\n' + COMMON + USERS + LEARNED,
    "conservative, users": '[discipline]\npolicy = "conservative"\ndepth = 32\n' + COMMON + USERS,
    "conservative, learned": '[discipline]\npolicy = "conservative"\ndepth = 32\n' + COMMON + USERS + LEARNED,
}


def page(results: Results) -> Iterator[str]:
    names = list(dict.fromkeys(name for _, name, _ in results.outcomes))
    yield "# Backfill on an overloaded cluster\n"
    yield "Made by `python -m benchmarks.studies.backfill`.\n"
    yield SETTING
    yield (
        "`strict` and `best-effort` are the two FIFO disciplines; `backfill` is Kant's own (a head that has waited for "
        "an hour stops jobs that overtook it); `easy` and `conservative` plan with reservations, on the users' "
        "estimates (run times times a factor from 1 to 5) or on learned run times. `conservative` holds 32 promises at a time.\n"
    )
    for row in ROW_NAMES:
        yield f"## After `{row}`\n"
        yield f"{results.of(row, names[0], 'jobs').mean:,.0f} jobs a run; "
        yield f"{results.of(row, names[0], 'large_jobs').mean:,.0f} of them have more than 64 GPUs.\n"
        yield from table(results, row, names)
        yield ""
    yield "## Against the two baselines\n"
    heads = ("P99 wait of >64 GPUs / best-effort", "SOR - best-effort, points", "GAR median - strict, points")
    yield f"| workload | profile | {' | '.join(heads)} |"
    yield "|---|---|---|---|---|"
    for row in ROW_NAMES:
        for name in names[2:]:
            yield (
                f"| `{row}` | `{name}` | {ratio(results.ratio(row, name, 'best-effort', 'large'))} "
                f"| {percent(results.gain(row, name, 'best-effort', 'sor'))} "
                f"| {percent(results.gain(row, name, 'strict', 'gar_median'))} |"
            )
    yield "\n![P99 wait of jobs of more than 64 GPUs after seren](backfill.svg)"


def main() -> None:
    chosen = {name: text for name, text in PROFILES.items() if len(sys.argv) < 2 or name in sys.argv[1:]}
    results = run_all(chosen)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(page(results)) + "\n", encoding="utf-8")
    found = [(name, results.of("seren", name, "large")) for name in chosen]
    plot = bars("P99 wait of jobs of more than 64 GPUs, hours (seren)", found, "h", 1 / 3600)
    PAGE.with_suffix(".svg").write_text(plot, encoding="utf-8")


if __name__ == "__main__":
    main()
