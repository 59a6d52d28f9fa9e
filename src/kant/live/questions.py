"""Questions about a live core, with the same answers whichever driver runs it.

A driver adds what it alone knows: the jobs that people see, and where they stand before the core has them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from kant.insight.expected_start import StartForecast, WaitingJob
from kant.live.answers import budget_rows, budgets_json, expectations, job_rows, pool_rows, queue_rows
from kant.live.core import Core
from kant.live.optimality import OptimalityLooks, optimality_json, status_json
from kant.live.record import RunRecord
from kant.live.sentences import public_id, public_sentence
from kant.live.solver import Solver, no_solver
from kant.live.start_forecasts import Forecaster, StartForecasts, forecast_trial
from kant.model.errors import InputError, StateError
from kant.model.job import Job
from kant.model.units import count_from

SOON = 2.0
"""Seconds that the answer why a job waits waits itself for a forecast of its start."""

MOST_JOBS = 100
"""Running jobs that `top` lists."""


NOT_NAMED = "(not named)"
"""Stands for the job of somebody else."""


TRIAL = "this job"
"""What a job is called that nobody has submitted."""


class UnknownJobError(InputError):
    """There is no job of that id."""


class Questions(ABC):
    """What can be asked about the present core. `kind` names the driver in the record that the page reads."""

    kind = ""

    def __init__(self, forecasts: StartForecasts, solver: Solver = no_solver) -> None:
        self.forecasts = forecasts
        self.optimality = OptimalityLooks(solver)
        self._rows: tuple[StartForecast, list[tuple[str, dict[str, Any]]]] | None = None  # of the latest forecast

    @abstractmethod
    def present(self) -> tuple[Core, RunRecord]:
        """The present core and its record. Raises InputError while there is none."""

    @abstractmethod
    def core_ids(self, job: str) -> Sequence[str]:
        """The ids by which the core knows the jobs that `job` means, of those that are not over.

        Raises UnknownJobError where no such job ever was.
        """

    @abstractmethod
    def phase_of(self, job: str) -> tuple[str, str]:
        """The phase of a job, and why it is in that phase, unless the core says so. Raises UnknownJobError."""

    def waited(self, job: str) -> dict[str, int] | None:
        """Microseconds that a job has waited, in `total` and by cause; None where that is not known."""
        core, run = self.present()
        return run.waited(job, core.now)

    def node_rows(self, core: Core) -> list[dict[str, Any]]:
        """What each node holds, where the driver shows nodes one by one."""
        return []

    # --- answers --------------------------------------------------------------------------------------------------

    def record(self, cursor: str) -> dict[str, Any]:
        """What is new since an answer with this cursor (docs/record.md)."""
        core, run = self.present()
        return run.since(cursor, core.now) | {"kind": self.kind}

    def queues(self) -> dict[str, Any]:
        """The queues, with their quotas and what they use."""
        core, _ = self.present()
        return times(core) | {"queues": queue_rows(core.state), "budgets": budget_rows(core.state, core.now)}

    def top(self) -> dict[str, Any]:
        """What the pools and nodes hold, and the largest jobs that run."""
        core, _ = self.present()
        jobs = [row | {"job": public_id(row["job"])} for row in job_rows(core.state, core.now)[:MOST_JOBS]]
        return times(core) | {"pools": pool_rows(core.state), "nodes": self.node_rows(core), "jobs": jobs}

    async def status(self, optimality: bool = False) -> dict[str, Any]:
        """What the cluster has, runs and is waited for; with `optimality` also how far that is from the best.

        Raises InputError where no solver answers.
        """
        core, _ = self.present()
        found = status_json(core.state, core.now, core.zero)
        if not optimality:
            return found | {"optimality": None}
        return found | {"optimality": optimality_json(await self.optimality.present(core))}

    async def eta(self, job: str = "") -> dict[str, Any]:
        """When the waiting jobs are expected to start, or only those that `job` means. Raises InputError."""
        core, _ = self.present()
        waiting = [name for name in self.core_ids(job) if core.state.rows[name] in core.state.pending] if job else []
        if job and not waiting:
            raise InputError("JOB", f"a job that waits (`kant why {job}` says where it stands)", job)
        forecast = await self.forecasts.latest(core, waiting)
        state, wanted = core.state, set(waiting) or forecast.jobs.keys()
        rows = [row for name, row in self._expecting(forecast) if name in wanted and state.rows[name] in state.pending]
        budgets = [] if job else budgets_json(forecast, public_id)
        return times(core) | {"as_of_us": forecast.now, "jobs": rows, "budgets": budgets}

    def _expecting(self, forecast: StartForecast) -> list[tuple[str, dict[str, Any]]]:
        """The rows of a forecast, which are made once."""
        if self._rows is None or self._rows[0] is not forecast:
            count_from(self.present()[0].zero)
            rows = expectations(forecast, public_sentence)
            self._rows = forecast, [(row["job"], row | {"job": public_id(row["job"])}) for row in rows]
        return self._rows[1]

    async def why(self, job: str) -> dict[str, Any]:
        """Why a job waits. Of a job that does not wait in the core it gives the phase."""
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
                continue  # it has started, or left, meanwhile
            answer = when | {"since_us": explained.since} | as_json(known(explained))
            return found | {"sentence": answer["sentence"] or "nothing keeps it", "answer": answer}

    async def _forecast_of(self, core: Core, name: str) -> StartForecast | None:
        try:
            return await self.forecasts.latest(core, (name,), SOON)
        except InputError:
            return None  # why it waits can be said without

    def history(self, job: str) -> dict[str, Any]:
        """What happened to a job and what was decided about it. Raises UnknownJobError."""
        core, run = self.present()
        self.phase_of(job)
        told = run.history(job)
        entries, whole = self.entries(job, told, run.zero), told is not None
        own = {"time_us": core.now + run.ahead, "zero_us": run.zero}
        return {"job": job} | own | {"entries": entries, "whole": whole}

    def entries(self, job: str, told: list[dict[str, Any]] | None, zero: int) -> list[dict[str, Any]]:
        """The entries of a job's history: those that the record has `told`, and what the driver knows besides."""
        return told or []


async def trial_answer(core: Core, forecaster: Forecaster, job: Job) -> dict[str, Any]:
    """When a job would start if it were submitted now, as `eta` answers of one that waits; other jobs are not named.

    The job is not submitted. Raises InputError where no forecast can be made.
    """
    forecast = await forecast_trial(forecaster, core, job)
    if job.id not in forecast.jobs:
        raise InputError("the job", "one that would wait or start as the cluster and its queues are")
    count_from(core.zero)
    unnamed = replace(forecast, jobs={name: _without_names(each) for name, each in forecast.jobs.items()})
    return times(core) | {"as_of_us": forecast.now, "jobs": expectations(unnamed, public_sentence)}


def _without_names(found: WaitingJob) -> WaitingJob:
    """What is expected of a job, with the number of others that it waits for in place of their names."""
    start, reason = found.start, found.reason
    if start.basis is not None:
        count = len(start.basis.jobs) + start.basis.more
        start = replace(start, basis=replace(start.basis, jobs=(), more=count))
    if reason is not None and hasattr(reason, "job"):
        reason = replace(reason, job=NOT_NAMED)
    return replace(found, start=start, reason=reason)


def times(core: Core) -> dict[str, int]:
    """The present moment on the run's clock, and the zero of that clock in microseconds since the Unix epoch."""
    return {"time_us": core.now, "zero_us": core.zero}
