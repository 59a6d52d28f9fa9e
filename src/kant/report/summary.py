"""Reading a run's summary where any key may be absent, and showing its numbers to people."""

from __future__ import annotations

import math
from typing import Any

from kant.model.units import SECOND, show_duration

NONE = "\u2013"
"""Shown where a run has no value."""


def dig(value: Any, *keys: str) -> Any:
    """The value under nested `keys`, or None where any of them is absent."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def number(value: Any) -> float | None:
    """`value` as a finite float, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def show(value: Any, kind: str) -> str:
    """`value` for people. Kinds: `share` (0..1), `time` (seconds), `count`, `factor`, else plain text."""
    if kind == "text":
        return NONE if value is None else str(value)
    amount = number(value)
    if amount is None:
        return NONE
    if kind == "share":
        return f"{amount:.2%}"
    if kind == "time":
        return show_duration(amount * SECOND)
    if kind == "factor":
        return f"{amount:.3f}"
    return f"{amount:,.0f}" if amount == int(amount) else f"{amount:,.2f}"


def show_gain(value: Any, base: Any, kind: str) -> str:
    """The change from `base` to `value`: points for shares, a difference for counts, else percent."""
    new, old = number(value), number(base)
    if new is None or old is None:
        return ""
    change = new - old
    if change == 0:
        return "no change"
    if kind == "count":
        return _signed(f"{change:+,.0f}")
    relative = f"{change / abs(old):+.1%}" if old else ""
    if kind == "share":
        return _signed(f"{change * 100:+.2f} pp") + (f" ({_signed(relative)})" if relative else "")
    if relative:
        return _signed(relative)
    return _signed(("+" if change > 0 else "-") + show(abs(change), kind))


def _signed(text: str) -> str:
    return text.replace("-", "\u2212")
