"""How good earlier answers were, in a sentence that clients can say too: this module loads nothing."""

from __future__ import annotations

UNCALIBRATED = "not calibrated: too few earlier answers about such jobs are known, so this is what the futures say"
"""In place of it, where nothing is known of such answers."""


def track_record(answers: int, kept: int) -> str:
    """Of `answers` earlier answers `kept` held; "" where there were none."""
    if not answers:
        return ""
    return (
        f"of {answers:,} earlier answers that looked about as far ahead the P90 held for {100 * kept / answers:.0f} %"
    )
