"""Questions about a live core, with the same answers under every driver.

A driver adds what only the driver knows: the jobs that users see, and their phase before the core has them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from kant.insight.expected_start import StartForecast, WaitingJob
from kant.live.core import Core
from kant.live.optimality import OptimalityLooks
from kant.live.record import RunRecord
from kant.live.sentences import public_id, public_sentence
from kant.live.start_forecasts import Forecaster, StartForecasts, forecast_trial
from kant.model.errors import InputError, StateError
from kant.model.job import Job
from kant.model.units import count_from

SOON = 2.0
"""Maximum seconds that an answer about why a job waits is delayed until its start has been forecast."""

MOST_JOBS = 100
"""Maximum number of running jobs that `top` lists."""


NOT_NAMED = "(not named)"
"""The text that replaces the name of another user's job."""


TRIAL = "this job"
"""The name of a job that has not been submitted."""


class UnknownJobError(InputError):
    """No job has that id."""


class Questions(ABC):
    """Questions about the present core. `kind` names the driver in the record that the page reads."""

    kind = ""

    def __init__(self, forecasts: StartForecasts, optimality: OptimalityLooks) -> None:
        self.forecasts = forecasts
        self.optimality = optimality
        self._rows: tuple[StartForecast, list[tuple[str, dict[str, Any]]]] | None = None  # of the latest forecast

    @abstractmethod
    def present(self) -> tuple[Core, RunRecord]:
        """Return the present core and its record. Raises InputError while there is none."""

    @abstractmethod
    def core_ids(self, job: str) -> Sequence[str]:
        """Return the core's ids of the jobs that `job` denotes (a job or an array), without ended jobs.

        Raises UnknownJobError if no such job ever existed.
        """

    @abstractmethod
    def phase_of(self, job: str) -> tuple[str, str]:
        """Return the phase of a job and a sentence about it, or "" (the core may know more). Raises UnknownJobError."""

    def waited(self, job: str) -> dict[str, int] | None:
        """Return the microseconds that a job has waited, in `total` and by cause; None if unknown."""
        core, run = self.present()
        return run.waited(job, core.now)

    def node_rows(self, core: Core) -> list[dict[str, Any]]:
        """Return the state of each node; empty for drivers that do not show individual nodes."""
        return []

    # --- answers --------------------------------------------------------------------------------------------------

    def record(self, cursor: str) -> dict[str, Any]:
        """Return what is new in the record since the answer that gave this `cursor` (docs/record.md)."""
        core, run = self.present()
        return run.since(cursor, core.now) | {"kind": self.kind}

    def queues(self) -> dict[str, Any]:
        """Return the queues, with their quotas and use."""
        from kant.live.answers import budget_rows, queue_rows

        core, _ = self.present()
        return times(core) | {"queues": queue_rows(core.state), "budgets": budget_rows(core.state, core.now)}

    def top(self) -> dict[str, Any]:
        """Return the capacity of the pools and nodes, and the largest running jobs."""
        from kant.live.answers import job_rows, pool_rows

        core, _ = self.present()
        jobs = [row | {"job": public_id(row["job"])} for row in job_rows(core.state, core.now)[:MOST_JOBS]]
        return times(core) | {"pools": pool_rows(core.state), "nodes": self.node_rows(core), "jobs": jobs}

    async def status(self, optimality: bool = False) -> dict[str, Any]:
        """Return the cluster's pools and job counts; with `optimality` also how far their use is from the optimum.

        Raises InputError if no solver answers.
        """
        from kant.live.answers import optimality_json, status_json

        core, _ = self.present()
        found = status_json(core.state, core.now, core.zero)
        if not optimality:
            return found | {"optimality": None}
        return found | {"optimality": optimality_json(await self.optimality.present(core))}

    async def eta(self, job: str = "") -> dict[str, Any]:
        """Return when the waiting jobs (or only those that `job` denotes) are expected to start. Raises InputError."""
        from kant.live.answers import budgets_json

        core, _ = self.present()
        waiting = [name for name in self.core_ids(job) if core.state.rows[name] in core.state.pending] if job else []
        if job and not waiting:
            raise InputError("JOB", f"a job that waits (`kant why {job}` shows its state)", job)
        forecast = await self.forecasts.latest(core, waiting)
        state, wanted = core.state, set(waiting) or forecast.jobs.keys()
        rows = [row for name, row in self._expecting(forecast) if name in wanted and state.rows[name] in state.pending]
        budgets = [] if job else budgets_json(forecast, public_id)
        return times(core) | {"as_of_us": forecast.now, "jobs": rows, "budgets": budgets}

    def _expecting(self, forecast: StartForecast) -> list[tuple[str, dict[str, Any]]]:
        """Return the rows of a forecast, which are built once."""
        from kant.live.answers import expectations

        if self._rows is None or self._rows[0] is not forecast:
            count_from(self.present()[0].zero)
            rows = expectations(forecast, public_sentence)
            self._rows = forecast, [(row["job"], row | {"job": public_id(row["job"])}) for row in rows]
        return self._rows[1]

    async def why(self, job: str) -> dict[str, Any]:
        """Return why a job waits. For a job that does not wait in the core, return its phase."""
        from kant.insight.explanation import explain
        from kant.live.explained import as_json, known

        while True:
            phase, sentence = self.phase_of(job)
            core, _ = self.present()
            found = {"job": job, "phase": phase, "sentence": sentence, "answer": None, "waited_us": self.waited(job)}
            name = next((name for name in self.core_ids(job) if core.state.rows[name] in core.state.pending), None)
            if name is None:
                return found
            count_from(core.zero)
            when = times(core)
            forecast = await self._forecast_of(core, name)
            try:
                own = None if forecast is None else forecast.jobs.get(name)
                explained = explain(core.scheduler, name, core.now, own, forecast.now if forecast is not None else -1)
            except StateError:
                continue  # the job has started or left the queue meanwhile
            answer = when | {"since_us": explained.since} | as_json(known(explained))
            return found | {"sentence": answer["sentence"] or "nothing keeps it from starting", "answer": answer}

    async def _forecast_of(self, core: Core, name: str) -> StartForecast | None:
        try:
            return await self.forecasts.latest(core, (name,), SOON)
        except InputError:
            return None  # the reason needs no forecast

    def history(self, job: str) -> dict[str, Any]:
        """Return the events of a job and the decisions about it. Raises UnknownJobError."""
        core, run = self.present()
        self.phase_of(job)
        recorded = run.history(job)
        entries, whole = self.entries(job, recorded, run.zero), recorded is not None
        own = {"time_us": core.now + run.ahead, "zero_us": run.zero}
        return {"job": job} | own | {"entries": entries, "whole": whole}

    def entries(self, job: str, recorded: list[dict[str, Any]] | None, zero: int) -> list[dict[str, Any]]:
        """Return the entries of a job's history: those `recorded`, plus what only the driver knows."""
        return recorded or []


async def trial_answer(core: Core, forecaster: Forecaster, job: Job) -> dict[str, Any]:
    """Return when a job would start if submitted now, in the form of `eta`, without the names of other jobs.

    The job is not submitted. Raises InputError if no forecast can be made.
    """
    from kant.live.answers import expectations

    forecast = await forecast_trial(forecaster, core, job)
    if job.id not in forecast.jobs:
        raise InputError("the job", "one that can start with the cluster and its queues as they are")
    count_from(core.zero)
    unnamed = replace(forecast, jobs={name: _without_names(each) for name, each in forecast.jobs.items()})
    return times(core) | {"as_of_us": forecast.now, "jobs": expectations(unnamed, public_sentence)}


def _without_names(found: WaitingJob) -> WaitingJob:
    """Return the forecast of a job, with the number of jobs that it waits for instead of their names."""
    start, reason = found.start, found.reason
    if start.basis is not None:
        count = len(start.basis.jobs) + start.basis.more
        start = replace(start, basis=replace(start.basis, jobs=(), more=count))
    if reason is not None and hasattr(reason, "job"):
        reason = replace(reason, job=NOT_NAMED)
    return replace(found, start=start, reason=reason)


def times(core: Core) -> dict[str, int]:
    """Return the present time on the run's clock, and that clock's zero in microseconds since the Unix epoch."""
    return {"time_us": core.now, "zero_us": core.zero}
