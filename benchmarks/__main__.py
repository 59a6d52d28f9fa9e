"""Run the benchmarks, all or those named, and hold each against its range: `python -m benchmarks [--short] [NAME …]`.

With --short those of SHORT run on a part of their traces, in a minute; their figures have ranges of their own.

`kubernetes` runs only where it is named: it starts real API servers and takes half an hour. So does `service`: it fills
a store with a million jobs, and its figures are seconds by the clock. `starts` has a Kant start a thousand short jobs;
`routing` starts a router and the processes around it; `front_ends` has two of them take jobs;
`decisions` needs its extra; `scheduler_perf` runs workloads of Kubernetes on API servers.
A range in ranges.toml bounds the value, the ratio to the rival, or both. Exits with 1 when one is left.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure
from kant.compiled import compiling_ahead

MODULES = (
    "startup",
    "placement",
    "scale",
    "philly",
    "saturated",
    "packing",
    "ricc",
    "tardiness",
    "timeline",
    "backfill",
    "serving",
    "prefix",
    "steps",
    "sweep",
    "habits",
    "preferences",
)
NAMED = ("kubernetes", "scheduler_perf", "service", "starts", "routing", "decisions", "front_ends")
SHORT = ("philly", "saturated")
RANGES: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "ranges.toml").read_text(encoding="utf-8"))


def main() -> int:
    short = "--short" in sys.argv[1:]
    known = SHORT if short else MODULES + NAMED
    names = [word for word in sys.argv[1:] if word != "--short"] or list(SHORT if short else MODULES)
    if unknown := [name for name in names if name not in known]:
        print(f"benchmarks: expected names among {', '.join(known)}, got {unknown[0]}", file=sys.stderr)
        return 2
    modules = [importlib.import_module(f"benchmarks.{name}") for name in names]
    with compiling_ahead():  # what is measured runs compiled
        failed = sum(
            show(map(as_short, module.measure(short=True)) if short else module.measure()) for module in modules
        )
    return 1 if failed else 0


def as_short(figure: Figure) -> Figure:
    """The figure under the name that its range has in the short form."""
    return replace(figure, name=f"{figure.name}-short")


def show(figures: Iterable[Figure]) -> int:
    """Print each figure as it comes; how many are out of range."""
    failed = 0
    for figure in figures:
        complaint = outside(figure)
        failed += bool(complaint)
        ratio = "" if figure.ratio is None else f"  {figure.ratio:8.3f} x {figure.rival}"
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
