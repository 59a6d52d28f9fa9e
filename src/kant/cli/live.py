"""Answers of `kubectl kant` about a cluster now: why a pod waits, when it starts, queue usage, free capacity.

The state is built from the API server; `kant why` and `kant eta` ask a journal such questions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kant import __version__
from kant.cli.output import Reply
from kant.model.errors import InputError
from kant.model.units import show_duration

if TYPE_CHECKING:
    from kant.cli.leader import LeaderWords
    from kant.cli.own_pods import OwnPods
    from kant.cli.show import StandardOutput
    from kant.cluster.state import ClusterState
    from kant.insight.expected_start import StartForecast
    from kant.kube.connect.config import Config
    from kant.kube.serve.asked import Question
    from kant.kube.user.overview import Overview
    from kant.kube.user.rebuilt_state import RebuiltState


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
        """Return the job of a pod; a job's own name works too. Raises InputError."""
        namespace = namespace or self.namespace
        if wrong := self.found.complaints.get((namespace, pod)):
            raise InputError(f"pod {namespace}/{pod}", f"a pod that can be read: {wrong}")
        for name in (self.found.jobs.get((namespace, pod)), pod, f"{namespace}/{pod}"):
            if name is not None and name in self.state.rows:
                return name
        raise InputError("POD", f"a pod of namespace {namespace} with schedulerName kant", pod)

    def waiting(self, namespace: str, pod: str) -> tuple[str, ...]:
        """Return the job of a pod if it waits, otherwise nothing."""
        try:
            job = self.job(namespace, pod)
        except InputError:
            return ()
        return (job,) if self.is_pending(job) else ()

    def is_pending(self, job: str) -> bool:
        """Whether a job of the state waits."""
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
        with _console().recorded(question.columns, question.colours) as text:
            reply.show()
        return text.getvalue().encode()

    def why(self, namespace: str, pod: str) -> Reply:
        """Return why a pod waits, or where it runs."""
        from kant.cli.show import section
        from kant.insight.explanation import explain
        from kant.live.explained import as_json, known
        from kant.model.decision import Closed, NoFit

        namespace = namespace or self.namespace
        if wrong := self.found.complaints.get((namespace, pod), ""):
            return Reply(
                {"job": f"{namespace}/{pod}", "status": "untried", "sentence": wrong},
                lambda: _show_untried(f"{namespace}/{pod}", wrong),
            )
        job = self.job(namespace, pod)
        answer = facts(self, job)
        if answer["status"] != "pending":
            return Reply(answer, lambda: _show_place(answer["job"], answer, self.now))
        forecast = self.forecast(job)
        found = known(explain(self.found.scheduler, job, self.now, forecast.jobs.get(job), forecast.now))
        remarks = self._remarks(job) if isinstance(found.reason, NoFit) else []
        gone = [self.found.queues_gone] if self.found.queues_gone and isinstance(found.reason, Closed) else []
        whole = answer | as_json(found)
        unforeseen = [] if job in forecast.jobs else ["when it may start is being forecast: ask again"]

        def show() -> None:
            _show().show_explanation(whole)
            section("nodes", remarks)
            section("queues", gone)
            section("not reported yet", unforeseen)

        return Reply(whole | {"remarks": remarks + gone}, show)

    def _remarks(self, job: str) -> list[str]:
        """Return how rules among pods and the nodes affect a job that finds no place."""
        from kant.kube.reconcile.rule_words import rule_words

        said = [self.found.scale_ups[job]] if job in self.found.scale_ups else []
        return [*said, *rule_words(self.state, self.state.rows[job]), *self.found.remarks]

    def eta(self, namespace: str, pod: str | None) -> Reply:
        """Return when the waiting jobs are expected to start."""
        from kant.live.answers import budgets_json, expectations
        from kant.live.sentences import public_id, public_sentence

        job = self.job(namespace, pod) if pod is not None else None
        if job is not None and not self.is_pending(job):
            raise InputError("POD", "a pod that waits (see `kubectl kant why`)", pod)
        forecast = self.forecast(job or "")
        meant = [row for row in expectations(forecast, public_sentence) if job in (None, row["job"])]
        rows = [row | {"job": public_id(row["job"])} for row in meant if self.is_pending(row["job"])]
        budgets = budgets_json(forecast, public_id) if job is None else []

        def show() -> None:
            _show().show_expectations(rows, self.now)
            _show().show_dry(budgets, self.now)

        return Reply({"time_us": self.now, "as_of_us": forecast.now, "jobs": rows, "budgets": budgets}, show)

    def forecast(self, job: str = "") -> StartForecast:
        """Return when the waiting jobs start, or only `job`."""
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
        """Return each queue's quota, use, borrowing, lending and waiting jobs, of all namespaces."""
        from kant.live.answers import budget_rows, queue_rows

        rows, budgets, gone = queue_rows(self.state), budget_rows(self.state, self.now), self.found.queues_gone

        def show() -> None:
            from kant.cli.show import section

            _show().show_queues(rows)
            _show().show_budgets(budgets)
            section("nothing starts", [gone] if gone else [])

        return Reply({"time_us": self.now, "queues": rows, "budgets": budgets, "queues_gone": gone}, show)

    def status(self, optimality: bool) -> Reply:
        """Return the capacity, use and demand of the cluster, and how far its use is from the best possible."""
        from kant.cli.status import show
        from kant.live.answers import optimality_json, status_json

        found = status_json(self.state, self.now) | {"optimality": None}
        if optimality:
            from kant.optimize.optimality import optimality as look

            found["optimality"] = optimality_json(look(self.found.scheduler, self.now))
        return Reply(found, lambda: show(found))

    def top(self, namespace: str = "") -> Reply:
        """Return the capacity of the pools, and the largest running jobs, of all namespaces."""
        from kant.cli.show import section
        from kant.live.answers import job_rows, pool_rows
        from kant.live.sentences import public_id

        pools = pool_rows(self.state)
        jobs = [row | {"job": public_id(row["job"])} for row in job_rows(self.state, self.now)]
        answer = {"time_us": self.now, "pools": pools, "jobs": jobs, "unread": list(self.found.unread)}
        answer["profile"] = self.found.scheduler.profile.name

        def show() -> None:
            _show().show_top(pools, jobs)
            section("not understood", list(self.found.unread))

        return Reply(answer, show)


def _console() -> StandardOutput:
    from kant.cli.show import console

    return console


def _show() -> Any:
    from kant.cli import show_answers

    return show_answers


def _show_untried(pod: str, sentence: str) -> None:
    """Print why a pod that is no job yet waits."""
    from kant.cli.show import console

    console.print(f"{pod}: it is not tried: {sentence}", style="bold", soft_wrap=True)


def _show_place(job: str, answer: dict[str, Any], now: int) -> None:
    """Print where a job runs that does not wait."""
    from kant.cli.show import console, section

    since = show_duration(now - answer["started_us"])
    size = f", and {answer['size']}" if answer["size"] else ""
    what = f"it runs since {since}{size}" if answer["status"] == "running" else f"it is {answer['status']}"
    console.print(f"{job}: it does not wait, {what}", style="bold", soft_wrap=True)
    section("on", [f"{node}: {pods} pod{'s' if pods > 1 else ''}" for node, pods in answer["nodes"].items()])


def facts(live: LiveCluster, job: str) -> dict[str, Any]:
    """Return the facts about a job."""
    from kant.live.answers import job_facts
    from kant.live.sentences import public_id, size_sentence
    from kant.model.placement import NODE, PODS

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


PLAIN_UP_TO, PLAIN_FUTURES_UP_TO = 2_000, 300
"""The largest number of nodes at which uncompiled kernels answer one question sooner than compiled ones, which take
longer to load than to run. The second number is for a question about the future, which runs kernels more often.
"""


def stand(
    kubeconfig: Path | None, context: str | None, profile: str = "", system: str = "kant-system", futures: bool = False
) -> LiveCluster | LeaderWords | OwnPods:
    """Return the object that answers about a cluster: its leader, if the caller may ask it; otherwise its present
    state, read from the API server; or the caller's own pods, if they may see no others.

    Without a `profile`, the one on the Lease of the leading Kant is used, otherwise the default one. With `futures`,
    start forecasts will be needed. If no Kant leads, standard error says so.
    """
    import asyncio
    import sys

    from kant.cli.own_pods import OwnPods
    from kant.kube.connect.config import load
    from kant.kube.user.overview import overview

    config = load(kubeconfig, context)
    seen = asyncio.run(overview(config, system))
    if seen.nodes is None:
        return OwnPods(config)
    if seen.unled:
        print(f"kant: no leader: {seen.unled}. This is what a Kant that starts now would say.", file=sys.stderr)
    alone = partial(_reckoned, config, seen, profile, system, futures)
    if seen.ticket and seen.version == __version__ and not profile and not seen.unled:
        from kant.cli.leader import LeaderWords

        return LeaderWords(config, system, seen.ticket, alone)
    return alone()


def _reckoned(config: Config, seen: Overview, profile: str, system: str, futures: bool) -> LiveCluster:
    """Return the present state of a cluster, read from its API server. `profile` "": the one that was seen."""
    import asyncio
    import os
    import sys

    if (seen.nodes or 0) <= (PLAIN_FUTURES_UP_TO if futures else PLAIN_UP_TO) and "kant.compiled" not in sys.modules:
        os.environ.setdefault("NUMBA_DISABLE_JIT", "1")
    from kant.cli.inputs import load_profile
    from kant.kube.user.rebuild import rebuilt
    from kant.model.units import count_from
    from kant.scheduler.profile import parse_profile

    where = "the profile on the Lease of Kant"
    if seen.version not in ("", __version__):
        where += f" (of version {seen.version}; this is {__version__}, and --profile names another)"
    from_leader = seen.profile and not profile
    own = parse_profile(seen.profile, where) if from_leader else load_profile(profile or "kant")
    found = asyncio.run(rebuilt(config, own, namespace=system))
    count_from(found.zero)
    return LiveCluster(found, config.namespace)
