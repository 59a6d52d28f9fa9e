"""Answers of `kubectl kant` about the present cluster: why a pod waits, when it starts, queue usage, free capacity.

The state is built from the API server; `kant why` and `kant eta` get theirs from a journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kant.cli.output import Reply
from kant.cluster.state import ClusterState
from kant.insight.expected_start import StartForecast
from kant.kube.user.rebuilt_state import RebuiltState, rebuilt_state
from kant.live.answers import (
    budget_rows,
    budgets_json,
    expectations,
    job_facts,
    job_rows,
    optimality_json,
    pool_rows,
    queue_rows,
    status_json,
)
from kant.live.sentences import public_id, public_sentence, size_sentence
from kant.model.errors import InputError
from kant.model.placement import NODE, PODS
from kant.model.units import count_from

if TYPE_CHECKING:
    from kant.kube.lead.driver import KubeDriver
    from kant.kube.serve.asked import Question
    from kant.live.core import Core
    from kant.live.start_forecasts import StartForecasts

SOON = 1.5
"""Seconds for which a question waits for a forecast before the caller must ask again."""


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """Answers from the state of a cluster. `namespace` is the default namespace, `made` an existing forecast."""

    found: RebuiltState
    namespace: str = "default"
    made: StartForecast | None = None

    @property
    def state(self) -> ClusterState:
        return self.found.scheduler.state

    @property
    def now(self) -> int:
        return self.found.now

    def job(self, namespace: str, pod: str) -> str:
        """Return the job of a pod; the job's own name is accepted too. Raises InputError."""
        namespace = namespace or self.namespace
        if wrong := self.found.complaints.get((namespace, pod)):
            raise InputError(f"pod {namespace}/{pod}", f"a pod that Kant can schedule ({wrong})")
        for name in (self.found.jobs.get((namespace, pod)), pod, f"{namespace}/{pod}"):
            if name is not None and name in self.state.rows:
                return name
        raise InputError("POD", f"a pod of namespace {namespace} with schedulerName kant", pod)

    def waiting(self, namespace: str, pod: str) -> tuple[str, ...]:
        """Return the job of a pod, as a tuple, if it waits; otherwise an empty tuple."""
        try:
            job = self.job(namespace, pod)
        except InputError:
            return ()
        return (job,) if self.is_pending(job) else ()

    def is_pending(self, job: str) -> bool:
        """Whether a job waits."""
        return self.state.rows[job] in self.state.pending

    def said(self, question: Question) -> bytes:
        """Return the answer to a question as text to print. Raises InputError."""
        space, name = question.namespace, question.name
        replies: dict[str, Callable[[], Reply]] = {
            "why": lambda: self.why(space, name),
            "eta": lambda: self.eta(space, name or None),
            "queue": self.queues,
            "top": self.top,
        }
        reply = replies[question.word]()
        if question.json:
            import msgspec

            return msgspec.json.encode(reply.json) + b"\n"
        from kant.cli.show import console

        with console.recorded(question.columns, question.colours) as text:
            reply.show()
        return text.getvalue().encode()

    def why(self, namespace: str, pod: str) -> Reply:
        """Return why a pod waits, or where it runs."""
        from kant.insight.explanation import explain
        from kant.live.explained import as_json, known
        from kant.model.decision import Closed, NoFit

        namespace = namespace or self.namespace
        if wrong := self.found.complaints.get((namespace, pod), ""):
            return Reply(
                {"job": f"{namespace}/{pod}", "status": "untried", "sentence": wrong},
                lambda: _show().show_untried(f"{namespace}/{pod}", wrong),
            )
        job = self.job(namespace, pod)
        answer = facts(self, job)
        if answer["status"] != "pending":
            return Reply(answer, lambda: _show().show_place(answer, self.now))
        forecast = self.forecast(job)
        found = known(explain(self.found.scheduler, job, self.now, forecast.jobs.get(job), forecast.now))
        remarks = self._remarks(job) if isinstance(found.reason, NoFit) else []
        gone = [self.found.queues_gone] if self.found.queues_gone and isinstance(found.reason, Closed) else []
        whole = answer | as_json(found)
        unforeseen = [] if job in forecast.jobs else ["its expected start is being computed: try again"]
        notes = {"nodes": remarks, "queues": gone, "not reported yet": unforeseen}
        return Reply(whole | {"remarks": remarks + gone}, lambda: _show().show_explanation(whole, notes))

    def _remarks(self, job: str) -> list[str]:
        """Return sentences about expected scale-ups, affinity rules and nodes that concern a waiting job."""
        from kant.kube.reconcile.rule_words import rule_words

        said = [self.found.scale_ups[job]] if job in self.found.scale_ups else []
        return [*said, *rule_words(self.state, self.state.rows[job]), *self.found.remarks]

    def eta(self, namespace: str, pod: str | None) -> Reply:
        """Return when the waiting jobs are expected to start."""
        job = self.job(namespace, pod) if pod is not None else None
        if job is not None and not self.is_pending(job):
            raise InputError("POD", "a pod that waits (see `kubectl kant why`)", pod)
        forecast = self.forecast(job or "")
        meant = [row for row in expectations(forecast, public_sentence) if job in (None, row["job"])]
        rows = [row | {"job": public_id(row["job"])} for row in meant if self.is_pending(row["job"])]
        budgets = budgets_json(forecast, public_id) if job is None else []
        answer = {"time_us": self.now, "as_of_us": forecast.now, "jobs": rows, "budgets": budgets}
        return Reply(answer, lambda: _show().show_expectations(rows, self.now, budgets))

    def forecast(self, job: str = "") -> StartForecast:
        """Return the forecast of when the waiting jobs start; with `job`, only of that job."""
        if self.made is not None:
            return self.made
        from kant.insight.moment import moment_of
        from kant.insight.past_jobs import PastJobs
        from kant.sim.forecast_starts import forecast_starts

        past = PastJobs()
        past.begin(self.state)
        found = forecast_starts(moment_of(self.found.scheduler, past, self.now), job)
        return self.found.calibration.corrected(found) if self.found.calibration is not None else found

    def queues(self, namespace: str = "") -> Reply:
        """Return the quota, use, borrowing, lending and waiting jobs of each queue, for all namespaces."""
        rows, budgets, gone = queue_rows(self.state), budget_rows(self.state, self.now), self.found.queues_gone
        answer = {"time_us": self.now, "queues": rows, "budgets": budgets, "queues_gone": gone}
        return Reply(answer, lambda: _show().show_queues(rows, budgets, gone))

    def status(self, optimality: bool) -> Reply:
        """Return the capacity, use and demand of the cluster, and how far its use is from the best possible."""
        from kant.cli.status import show

        found = status_json(self.state, self.now) | {"optimality": None}
        if optimality:
            from kant.optimize.optimality import optimality as look

            found["optimality"] = optimality_json(look(self.found.scheduler, self.now))
        return Reply(found, lambda: show(found))

    def top(self, namespace: str = "") -> Reply:
        """Return the capacity of the pools, and the largest running jobs, for all namespaces."""
        pools = pool_rows(self.state)
        jobs = [row | {"job": public_id(row["job"])} for row in job_rows(self.state, self.now)]
        answer = {"time_us": self.now, "pools": pools, "jobs": jobs, "unread": list(self.found.unread)}
        answer["profile"] = self.found.scheduler.profile.name
        return Reply(answer, lambda: _show().show_top(pools, jobs, self.found.unread))


def _show() -> Any:
    from kant.cli import show_answers

    return show_answers


def facts(live: LiveCluster, job: str) -> dict[str, Any]:
    """Return the facts about a job."""
    state = live.state
    row = state.rows[job]
    nodes: dict[str, int] = {}
    for piece in state.running[row].tolist() if row in state.running else ():
        name = state.nodes[piece[NODE]].name
        nodes[name] = nodes.get(name, 0) + piece[PODS]
    found = job_facts(state, job, live.now)
    waited = live.now - found["since_us"] if found["status"] == "pending" else 0
    size = size_sentence(live.state.live[row], found["pods"]) if row in live.state.elastic and nodes else ""
    return found | {"job": public_id(job), "nodes": nodes, "size": size, "waited_us": {"total": waited}}


async def answer(driver: KubeDriver, forecasts: StartForecasts, question: Question) -> bytes:
    """Answer a question in the leader; return text to print. Raises NotLeadingError, NotYetError, and InputError."""
    from kant.kube.serve.asked import NotYetError
    from kant.kube.serve.led_run import NotLeadingError

    only = (question.namespace, question.name)

    def live() -> LiveCluster:
        if driver.core is None or not driver.core.is_settled:
            raise NotLeadingError
        found = rebuilt_state(driver, only)
        count_from(found.zero)
        return LiveCluster(found, question.namespace)

    found, made = live(), None
    if question.word in ("why", "eta"):
        assert driver.core is not None
        wanted = found.waiting(question.namespace, question.name)
        if wanted or not question.name:
            made = await _forecast(driver.core, forecasts, wanted)
            found = live()
            now = found.waiting(question.namespace, question.name)
            if made is None and question.word == "why" and question.brief:
                made = StartForecast(-1, 0, 0, {})
            elif made is None or any(job not in made.jobs for job in now):
                raise NotYetError("the forecast", "to be finished; try again")
    return LiveCluster(found.found, question.namespace, made).said(question)


async def _forecast(core: Core, forecasts: StartForecasts, jobs: tuple[str, ...]) -> StartForecast | None:
    """Return the latest forecast; None while it is being computed. Raises NoForecastError if none can be computed."""
    from kant.kube.serve.asked import NoForecastError

    try:
        return await forecasts.latest(core, jobs, SOON)
    except InputError as error:
        if forecasts.trouble:
            raise NoForecastError("the forecaster", str(error)) from None
        return None
