"""How good earlier answers were, as a sentence that clients can use too: this module imports nothing."""

from __future__ import annotations

UNCALIBRATED = "not calibrated: too few earlier answers about such jobs are known, so this is what the futures say"
"""Used instead where nothing is known about similar answers."""


def track_record(answers: int, kept: int, kept_p50: int) -> str:
    """Return a sentence that of `answers` earlier answers `kept` held, and `kept_p50` by their P50; "" where there were
    none."""
    if not answers:
        return ""
    shares = f"the P90 held for {100 * kept / answers:.0f} %, the P50 for {100 * kept_p50 / answers:.0f} %"
    return f"of {answers:,} earlier answers that looked about as far ahead {shares}"
