"""How good earlier answers were, as a sentence that clients can use too: this module imports nothing."""

from __future__ import annotations

UNCALIBRATED = "not calibrated: too few earlier answers about such jobs are known, so this is the uncorrected forecast"
"""Used instead if nothing is known about similar answers."""


FEW_QUARTERS, FEW_JAMS = 5, 3
"""With such waits in fewer quarters of a day, or in fewer jams, answers of a class of horizons are not calibrated.

A jam lasts until no job waits that was asked about."""


def track_record(answers: int, kept: int, kept_p50: int, calibrated: bool = True) -> str:
    """Return a sentence: of the earlier `answers`, `kept` were right, and `kept_p50` even by their P50; "" if there
    were none. It says so if they are not `calibrated`: they then come from the futures alone.
    """
    if not answers:
        return ""
    few = (
        ""
        if calibrated
        else f"; not calibrated: fewer than {FEW_JAMS} jams, or {FEW_QUARTERS} quarters of a day, had such waits"
    )
    shares = f"the P90 held for {100 * kept / answers:.0f} %, the P50 for {100 * kept_p50 / answers:.0f} %"
    return f"of {answers:,} earlier answers that looked about as far ahead {shares}{few}"
