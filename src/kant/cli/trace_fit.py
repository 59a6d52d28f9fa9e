"""Prints a fit: the quantiles of the trace and of what was drawn from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kant.cli.show import console, print_table


def show_quality(name: str, rows: Sequence[Mapping[str, Any]], out: Path | None) -> None:
    """Print for each quantity the quantiles of the trace and of the drawn workload, and how far they are apart."""
    parts = list(rows[0]["trace"])
    lines = []
    for row in rows:
        cells = (f"{_short(row['trace'][part])} / {_short(row['generated'][part])}" for part in parts)
        lines.append((str(row["quantity"]), f"{row['distance']:.3f}", *cells))
    print_table(["quantity", "distance", *parts], lines, f"{name}: trace / generated")
    console.print("distance: the largest difference of the two distribution functions", style="dim")
    if out is not None:
        console.print(f"generator: {out} (kant trace generate {out} --seed 1 --out jobs.csv)", soft_wrap=True)


def _short(value: float) -> str:
    """Format as three digits, and thousands as such: `12.3k`."""
    for size, unit in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e6 if unit == 'M' else 1e3):.3g}{unit}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
