"""A run's summary for the page: any key may be absent, numbers are finite, and only the largest parts are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kant.metrics.result import RunResult

MOST = 40
"""The maximum number of pools or queues in the page. Those with the most GPU-hours over all runs are kept."""

PARTS = ("by_pool", "by_queue")


def dig(value: Any, *keys: str) -> Any:
    """Return the value under nested `keys`, or None if any of them is absent."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def plain(value: Any) -> Any:
    """Return `value` in JSON types: infinite numbers, NaN and other objects become None, and keys become text."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return None


def trimmed(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """The summary of each run with at most MOST pools and queues, and `parts`: their numbers in all runs."""
    summaries = [plain(run.summary) for run in runs]
    parts = {}
    for part in PARTS:
        hours: dict[str, float] = {}
        for summary in summaries:
            own = dig(summary, part)
            for name in own if isinstance(own, dict) else ():
                amount = dig(own, name, "gpu_hours")
                hours[name] = hours.get(name, 0.0) + (amount if isinstance(amount, int | float) else 0.0)
        parts[part] = len(hours)
        names = sorted(hours, key=lambda name: (-hours[name], name))[:MOST]
        for summary in summaries:
            own = dig(summary, part)
            if isinstance(own, dict):
                summary[part] = {name: own[name] for name in names if name in own}
    return [{**summary, "parts": parts} for summary in summaries]
