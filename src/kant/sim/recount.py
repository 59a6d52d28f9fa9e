"""Recount: what the run behind a journal leaves, from its events alone. Nothing is decided again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kant.live.journal_walk import read_journal
from kant.metrics.result import RunResult
from kant.model.decision import Plan
from kant.sim.journal_metrics import JournalMetrics


@dataclass(frozen=True, slots=True)
class Recount:
    """What a journal tells, and when its clock was at zero (microseconds since 1970; None: simulated time)."""

    result: RunResult
    zero: int | None


def recount(path: Path) -> Recount:
    """The journal of a run, live or simulated, that is over or still goes on. Raises InputError for a broken one."""
    walk = read_journal(path)
    metrics = JournalMetrics(walk, keep_ledger=True)
    for line in walk:
        if isinstance(line, Plan):
            metrics.decided(line)
        else:
            metrics.happened(line)
    digests = {"decisions": metrics.recorded.decisions, "digest": metrics.recorded.digest}
    interrupted = walk.footer is not None and walk.footer.interrupted
    return Recount(metrics.result(digests, interrupted), walk.header.zero or None)
