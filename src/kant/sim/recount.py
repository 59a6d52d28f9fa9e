"""Recount: the result of the run behind a journal, from its events alone. No decision is made again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kant.live.journal_walk import read_journal
from kant.metrics.result import RunResult
from kant.model.decision import Plan
from kant.sim.journal_metrics import JournalMetrics


@dataclass(frozen=True, slots=True)
class Recount:
    """The result of a journal, and when its clock was at zero (microseconds since 1970; None: simulated time)."""

    result: RunResult
    zero: int | None


def recount(path: Path) -> Recount:
    """Recount the journal of a live or simulated run, ended or not. Raises InputError for a broken journal."""
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
