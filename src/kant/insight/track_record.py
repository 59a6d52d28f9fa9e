"""The accuracy of earlier answers as a sentence. This module imports nothing, so that clients can use it, too."""

from __future__ import annotations

UNCALIBRATED = "not calibrated: too few earlier answers about such jobs are known, so this is the uncorrected forecast"
"""The sentence that is used if nothing is known about similar answers."""


FEW_QUARTERS, FEW_JAMS = 5, 3
"""Minimum number of quarters of a day, and of periods of congestion, to calibrate the answers of one class.

A period of congestion (a jam) lasts until no job with a kept forecast waits."""


def track_record(answers: int, kept: int, kept_p50: int, calibrated: bool = True) -> str:
    """Return a sentence: of the earlier `answers`, `kept` held for the P90 and `kept_p50` for the P50; "" for no
    answers. If they are not `calibrated` (they come from simulated futures alone), the sentence says so.
    """
    if not answers:
        return ""
    few = (
        ""
        if calibrated
        else f"; not calibrated: fewer than {FEW_JAMS} congestions, or {FEW_QUARTERS} quarters of a day, had such waits"
    )
    shares = f"the P90 held for {100 * kept / answers:.0f} %, the P50 for {100 * kept_p50 / answers:.0f} %"
    return f"of {answers:,} earlier answers for about this far ahead, {shares}{few}"
