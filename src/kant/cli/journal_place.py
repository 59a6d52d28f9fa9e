"""Answers the questions of verbs from a journal, as of a given time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kant.cli.inputs import parse_at
from kant.cli.output import Reply
from kant.model.errors import InputError
from kant.model.units import clock

if TYPE_CHECKING:
    from kant.sim.past import Past
    from kant.sim.state_at import StateAt


class JournalPlace:
    """Reads a journal up to `at` (None: its end). With `learn`, start forecasts are calibrated on earlier ones."""

    def __init__(self, journal: Path, at: str | None = None, learn: bool = True) -> None:
        self.journal = journal
        self.at = parse_at(at)
        self.learn = learn

    def why(self, job: str) -> Reply:
        from kant.insight.explanation import explain
        from kant.live.explained import as_json
        from kant.sim.state_at import state_at

        rebuilt = state_at(self.journal, self.at, keep_ledger=True, keep_answers=self.learn)
        self._check(rebuilt, job)
        answer = history(rebuilt, job)
        if answer["status"] != "pending":
            return Reply(answer, lambda: _show().show_history(answer))
        own = rebuilt.forecast(job)
        found = explain(rebuilt.scheduler, job, rebuilt.now, own.jobs[job], own.now)
        whole = answer | as_json(found)
        return Reply(whole, lambda: _show().show_explanation(whole))

    def eta(self, job: str | None) -> Reply:
        from kant.live.answers import budgets_json, expectations
        from kant.sim.state_at import state_at

        rebuilt = state_at(self.journal, self.at, keep_answers=self.learn)
        state, now = rebuilt.state, rebuilt.now
        if job is not None:
            self._check(rebuilt, job)
            if state.rows[job] not in state.pending:
                raise InputError("JOB", f"a job that waits at {clock(now)} (see `kant why`)", job)
        forecast = rebuilt.forecast(job or "")
        rows, budgets = expectations(forecast), budgets_json(forecast)
        answer = {"time_us": now, "as_of_us": now, "jobs": rows, "budgets": budgets}
        return Reply(answer, lambda: _show().show_expectations(rows, now, budgets))

    def status(self, optimality: bool) -> Reply:
        from kant.cli.status import show
        from kant.live.answers import optimality_json, status_json
        from kant.sim.state_at import state_at

        rebuilt = state_at(self.journal, self.at)
        found = status_json(rebuilt.state, rebuilt.now, rebuilt.header.zero) | {"optimality": None}
        if optimality:
            from kant.optimize.optimality import optimality as look

            found["optimality"] = optimality_json(look(rebuilt.scheduler, rebuilt.now))
        return Reply(found, lambda: show(found))

    def past(self) -> Past:
        from kant.sim.past import read_past

        return read_past(self.journal, self.at)

    def _check(self, rebuilt: StateAt, job: str) -> None:
        """Raise InputError unless the job had arrived by the time of the answer."""
        if job in rebuilt.state.rows:
            return
        if job in rebuilt.coming:
            come = clock(rebuilt.coming[job])
            raise InputError("--at", f"a time from {come} on, when job {job} arrives", clock(rebuilt.now))
        raise InputError("JOB", f"a job of {self.journal}", job)


def history(rebuilt: StateAt, job: str) -> dict[str, Any]:
    """Return what happened to a job so far, with its waits split by cause."""
    from kant.cluster.columns import J_END
    from kant.live.answers import job_facts

    assert rebuilt.ledger is not None
    state = rebuilt.state
    row = state.rows[job]
    waited = {cause: int(column[row]) for cause, column in rebuilt.ledger.columns(rebuilt.now).items()}
    return job_facts(state, job, rebuilt.now) | {
        "end_us": int(state.jobs[row, J_END]),
        "rejected_because": rebuilt.rejected.get(job),
        "waited_us": {"total": sum(waited.values())} | waited,
    }


def _show() -> Any:
    from kant.cli import show_answers

    return show_answers
