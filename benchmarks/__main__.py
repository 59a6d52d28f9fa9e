"""Run the benchmarks, all or those named, and hold each against its range: `python -m benchmarks [NAME …]`.

`kubernetes` runs only where it is named: it starts real API servers and takes half an hour. So does `service`: it fills
a store with a million jobs, and its figures are seconds by the clock.
A range in ranges.toml bounds the value, the ratio to the rival, or both. Exits with 1 when one is left.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure

MODULES = ("startup", "placement", "scale", "philly", "packing", "ricc", "tardiness", "timeline", "backfill")
NAMED = ("kubernetes", "service")
RANGES: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "ranges.toml").read_text(encoding="utf-8"))


def main() -> int:
    names = sys.argv[1:] or list(MODULES)
    unknown = [name for name in names if name not in MODULES + NAMED]
    if unknown:
        print(f"benchmarks: expected names among {', '.join(MODULES + NAMED)}, got {unknown[0]}", file=sys.stderr)
        return 2
    failed = sum(show(importlib.import_module(f"benchmarks.{name}").measure()) for name in names)
    return 1 if failed else 0


def show(figures: Iterable[Figure]) -> int:
    """Print each figure as it comes; how many are out of range."""
    failed = 0
    for figure in figures:
        complaint = outside(figure)
        failed += bool(complaint)
        ratio = "" if figure.ratio is None else f"  {figure.ratio:8.2f} x {figure.rival}"
        print(f"{figure.name:22} {figure.value:12,.4g} {figure.unit:20}{ratio}", flush=True)
        print(f"{'':22} bound by {figure.bound_by}{complaint}", flush=True)
    return failed


def outside(figure: Figure) -> str:
    """What is out of range, for the end of the line; empty where all is well."""
    limits = RANGES[figure.name]
    parts = []
    for key, value in (("value", figure.value), ("ratio", figure.ratio)):
        low, high = limits.get(f"{key}_min"), limits.get(f"{key}_max")
        if value is not None and ((low is not None and value < low) or (high is not None and value > high)):
            parts.append(f"{key} {value:,.4g} outside {low} to {high}")
    return "  << " + "; ".join(parts) if parts else ""


if __name__ == "__main__":
    sys.exit(main())
