"""What `kubectl kant` answers about a cluster as it stands: why a pod waits, when, who uses what, what is free.

The same questions as `kant why` and `kant eta` ask a journal, put to a state that was built from the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kant.cli.simulate import print_json
from kant.model.errors import InputError
from kant.model.units import show_duration

if TYPE_CHECKING:
    from kant.cluster.state import ClusterState
    from kant.scheduler.calibration import Calibration
    from kant.scheduler.cycle import Scheduler

LONGEST_LIST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A scheduler before the state of a cluster. `jobs` has the job of each pod, as (namespace, name).

    `complaints` has what is wrong with a pod in one sentence, where it could not be read. `calibration` is what the
    Kant that runs there has learned about expected starts.
    """

    scheduler: Scheduler
    now: int
    jobs: Mapping[tuple[str, str], str]
    complaints: Mapping[tuple[str, str], str] = field(default_factory=dict)
    calibration: Calibration | None = None

    @property
    def state(self) -> ClusterState:
        return self.scheduler.state

    def job(self, namespace: str, pod: str) -> str:
        """The job that a pod belongs to; a job's own name will do. Raises InputError."""
        if (namespace, pod) in self.complaints:
            raise InputError(f"pod {namespace}/{pod}", f"a pod that can be read: {self.complaints[namespace, pod]}")
        for name in (self.jobs.get((namespace, pod)), pod, f"{namespace}/{pod}"):
            if name is not None and name in self.state.rows:
                return name
        raise InputError("POD", f"a pod of namespace {namespace} with schedulerName kant", pod)


def why(live: Live, namespace: str, pod: str, json: bool) -> int:
    """Why a pod waits, or where it runs."""
    from kant.cli.show import console
    from kant.cli.why import section, show
    from kant.live.answers import as_json
    from kant.scheduler.explain import explanation

    job = live.job(namespace, pod)
    answer = facts(live, job)
    if answer["status"] == "pending":
        found = explanation(live.scheduler, job, live.now, live.calibration)
        print_json(answer | as_json(found)) if json else show(found, answer)
    elif json:
        print_json(answer)
    else:
        since = show_duration(live.now - answer["started_us"])
        what = f"it runs since {since}" if answer["status"] == "running" else f"it is {answer['status']}"
        console.print(f"{job}: it does not wait, {what}", style="bold", soft_wrap=True)
        section("on", [f"{node}: {pods} pod{'s' if pods > 1 else ''}" for node, pods in answer["nodes"].items()])
    return 0


def facts(live: Live, job: str) -> dict[str, Any]:
    """What is known of a job."""
    from kant.live.answers import job_facts
    from kant.model.placement import NODE, PODS

    state = live.state
    row = state.rows[job]
    nodes: dict[str, int] = {}
    for piece in state.running[row].tolist() if row in state.running else ():
        name = state.spec.nodes[piece[NODE]].name
        nodes[name] = nodes.get(name, 0) + piece[PODS]
    found = job_facts(state, job, live.now)
    waited = live.now - found["since_us"] if found["status"] == "pending" else 0
    return found | {"nodes": nodes, "waited_us": {"total": waited}}


def eta(live: Live, namespace: str, pod: str | None, json: bool) -> int:
    """When the waiting jobs are expected to start."""
    from kant.cli.eta import show_expectations
    from kant.live.answers import expectations

    job = live.job(namespace, pod) if pod is not None else None
    if job is not None and live.state.rows[job] not in live.state.pending:
        raise InputError("POD", "a pod that waits (see `kubectl kant why`)", pod)
    rows = expectations(live.scheduler, live.now, job, live.calibration)
    print_json({"time_us": live.now, "jobs": rows}) if json else show_expectations(rows, live.now)
    return 0


def queues(live: Live, json: bool) -> int:
    """What each queue may use, uses, borrows, lends and waits for."""
    from kant.live.answers import queue_rows

    rows = queue_rows(live.state)
    print_json({"time_us": live.now, "queues": rows}) if json else show_queues(rows)
    return 0


def show_queues(rows: list[dict[str, Any]]) -> None:
    """The queues for the terminal."""
    names = {"nominal_gpus": "quota", "used_gpus": "used", "borrowed_gpus": "borrowed", "lent_gpus": "lent"}
    counts = {"running": "running", "waiting": "waiting", "waiting_gpus": "GPUs waited for"}
    table("Queues", rows, {"queue": "queue", "model": "model"} | names | counts)


def top(live: Live, json: bool) -> int:
    """What the pools hold, and the largest jobs that run."""
    from kant.live.answers import job_rows, pool_rows

    pools, jobs = pool_rows(live.state), job_rows(live.state, live.now)
    print_json({"time_us": live.now, "pools": pools, "jobs": jobs}) if json else show_top(pools, jobs)
    return 0


def show_top(pools: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> None:
    """Pools and jobs for the terminal."""
    shown = [
        row | {part: f"{100 * row[part]:.1f} %" if row[part] is not None else None for part in ("gar", "gfr")}
        for row in pools
    ]
    table(
        "Pools",
        shown,
        {"pool": "pool", "nodes": "nodes", "gpus": "GPUs", "allocated": "allocated", "gar": "GAR", "gfr": "GFR"}
        | {"idle_node_gpus": "on idle nodes", "waiting_gpus": "GPUs waited for"},
    )
    lasted = [row | {"running_us": show_duration(row["running_us"])} for row in jobs[:LONGEST_LIST]]
    table(
        "Largest jobs", lasted, {"job": "job", "queue": "queue", "gpus": "GPUs", "nodes": "nodes", "running_us": "for"}
    )


def table(title: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Rows for the terminal; `columns` has the heading of each key."""
    from rich.table import Table

    from kant.cli.show import console

    if not rows:
        console.print(f"{title}: none")
        return
    shown = Table(title=title, title_justify="left")
    for key, name in columns.items():
        numbers = any(isinstance(row[key], int | float) for row in rows)
        shown.add_column(name, justify="right" if numbers or key in ("gar", "gfr") else "left")
    for row in rows:
        shown.add_row(*(_cell(row[key]) for key in columns))
    console.print(shown)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
