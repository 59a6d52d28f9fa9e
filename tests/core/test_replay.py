"""A journal replays to the same decisions, whatever the profile and whatever happened in the run."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.elastic_runs import elastic_arrivals
from tests.core.tenant_runs import draw_queues, draw_tenants_jobs
from tests.core.test_bookings import place
from tests.examples import examples
from tests.profiles import few

from kant.model.event import Event, GpusBooked, JobCancelled, JobSubmitted, QueuesChanged
from kant.model.node import ClusterSpec
from kant.model.status import NodeStatus
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER, SECOND
from kant.scheduler.profile import Profile, builtin_profile, builtin_texts, parse_profile
from kant.sim.options import read_options
from kant.sim.replay import replay
from kant.sim.run import Run, RunHooks
from kant.testing import make_cluster, make_group, make_job
from kant.testing.drawn import draw_cluster, generator
from kant.workload.faults_file import NodeHealth

SHIPPED = tuple(
    name
    for name in builtin_texts()
    if not builtin_profile(name).simulation.get("static") and builtin_profile(name).discipline.quotas
)
ORDERS = ("fifo", "sjf", "aged", "drf", "fair-share", "srtf")
RECLAIMS = ("off", "nominal", "fair-share")


def own_profile(draw: np.random.Generator) -> str:
    """A profile that no file has: an order, a discipline, a preemption."""
    discipline = str(draw.choice(["strict", "best-effort", "backfill", "easy", "conservative"]))
    late = "" if discipline in ("strict", "best-effort") else "timeout_s = 300\n"
    text = f"[order]\npolicy = '{draw.choice(ORDERS)}'\n[discipline]\npolicy = '{discipline}'\n{late}"
    text += "[placement]\npolicy = 'best-fit'\n"
    if draw.integers(4):
        text += f"[preemption]\nmin_run_s = {draw.choice([0, 60, 300])}\nreclaim = '{draw.choice(RECLAIMS)}'\n"
    if draw.integers(2):
        text += "[requeue]\nbase_s = 30\n"
    return text + "[elastic]\ngrow_s = 100\n"


def draw_faults(draw: np.random.Generator, spec: ClusterSpec, end: int) -> list[NodeHealth]:
    """Nodes that fail, drain and come back; in the end all are back."""
    found = []
    for time in sorted(draw.integers(1, end + 2, 8).tolist()):
        node = int(draw.integers(len(spec.nodes)))
        status = (NodeStatus.IN_SERVICE, NodeStatus.FAILED, NodeStatus.DRAINING, NodeStatus.CORDONED)[draw.integers(4)]
        until = time + int(draw.integers(0, 600)) * SECOND if status == NodeStatus.DRAINING and draw.integers(2) else -1
        found.append(NodeHealth(time, node, status, 0, until))
    return found + [NodeHealth(end + 600 * SECOND, node, NodeStatus.IN_SERVICE) for node in range(len(spec.nodes))]


def draw_orders(
    draw: np.random.Generator, spec: ClusterSpec, coming: list[JobSubmitted], quotas: bool, booked: bool
) -> list[Event]:
    """What people do: they withdraw jobs, and perhaps change quotas and book GPUs."""
    end, found = coming[-1].time, list[Event]()
    for at in draw.integers(0, len(coming), 3).tolist():
        found.append(JobCancelled(coming[at].time + int(draw.integers(0, 500)) * SECOND, coming[at].job.id))
    if quotas:
        found.append(QueuesChanged(int(draw.integers(1, end + 2)), QueueConfig(tuple(draw_queues(draw, spec)))))
    at = int(draw.integers(len(spec.nodes)))
    if booked and spec.nodes[at].gpus:
        start, devices = int(draw.integers(1, end + 2)), (1 << int(draw.integers(1, spec.nodes[at].gpus + 1))) - 1
        found.append(GpusBooked(0, "r", start, start + 900 * SECOND, place((at, devices))))
    return sorted(found, key=lambda event: event.time)


def drawn_run(seed: int, name: str, path: Path) -> Run:
    """The journal of a run drawn by the seed under a shipped profile, or under one of its own (``""``)."""
    draw = generator(seed)
    spec = draw_cluster(draw, 6)
    queues, quotas, booked = draw_queues(draw, spec), bool(draw.integers(2)), bool(draw.integers(2))
    coming = draw_tenants_jobs(draw, queues, 40, gap=int(draw.choice([40, 120, 300])))
    coming = elastic_arrivals(draw, coming) if draw.integers(2) else coming
    if draw.integers(2):
        coming = [with_limit(event, int(draw.choice([-1, -1, 100, 900])) * SECOND) for event in coming]
    faults = draw_faults(draw, spec, coming[-1].time) if draw.integers(2) else []
    text = own_profile(draw) if not name else builtin_profile(name).text
    orders = draw_orders(draw, spec, coming, quotas, booked)
    return written(
        path, spec, parse_profile(text, "test"), coming, QueueConfig(tuple(queues)) if quotas else None, faults, orders
    )


def with_limit(event: JobSubmitted, limit: int) -> JobSubmitted:
    return msgspec.structs.replace(event, job=msgspec.structs.replace(event.job, limit=limit if limit > 0 else -1))


def written(
    path: Path,
    spec: ClusterSpec,
    profile: Profile,
    coming: list[JobSubmitted],
    queue_config: QueueConfig | None = None,
    faults: list[NodeHealth] | None = None,
    orders: list[Event] | None = None,
) -> Run:
    options = read_options(profile.simulation, "test")
    with path.open("wb") as file:
        run = Run("drawn", spec, profile, options, 3, FOREVER, RunHooks(journal=file.write), queue_config, faults or [])
        run.external = deque(orders or [])
        run.result(iter(coming), len(coming))
    return run


def as_earlier(path: Path) -> int:
    """Make a journal one of Kant 0.2, without `cycled` lines. Returns how many it had."""
    first, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if '"event":"cycled"' not in line]
    header = json.loads(first) | {"version": "0.2.0"}
    path.write_text(json.dumps(header) + "\n" + "".join(kept), encoding="utf-8")
    return len(lines) - len(kept)


@pytest.mark.long
@pytest.mark.parametrize("name", ["", *few(SHIPPED, "order", "discipline", "preemption")])
@given(seed=st.integers(0, 10**9), earlier=st.booleans())
@settings(max_examples=examples(2), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_happened_in_a_run_its_journal_replays_equal(
    name: str, seed: int, earlier: bool, tmp_path: Path
) -> None:
    """Tenants, quotas that change, elastic gangs, limits, faults, drains, bookings, withdrawn jobs; also without the
    lines `cycled` that Kant 0.2 did not write."""
    path = tmp_path / "journal.jsonl"
    drawn_run(seed, name, path)
    if earlier:
        as_earlier(path)
    again = replay(path)
    assert again.equal, again.difference


SJF = "[order]\npolicy='sjf'\n[discipline]\npolicy='best-effort'\n[placement]\npolicy='best-fit'\n"
PREEMPTING = SJF + "[preemption]\nmin_run_s=60\nreclaim='off'\n"


def arrives(at: int, name: str, gpus: int, runtime: int, **fields: Any) -> JobSubmitted:
    time = at * SECOND
    return JobSubmitted(time, make_job(name, gpus, submit=time, estimate=runtime * SECOND, **fields), runtime * SECOND)


TWO_GROUPS: dict[str, Any] = {"groups": (make_group(6), make_group(2)), "priority": 1}
RETRIED = [
    arrives(0, "stays", 2, 1000, preemptible=False),
    arrives(1, "low", 4, 1000),
    arrives(40, "high", 1, 100, **TWO_GROUPS),
    arrives(70, "shorter", 1, 10, **TWO_GROUPS),
]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_cycle_that_a_plan_asked_for_counts_although_nothing_had_happened(earlier: bool, tmp_path: Path) -> None:
    """At 61 s `low` may be stopped, which does not help `high`. So nobody is told at 70 s that `shorter` waits."""
    path = tmp_path / "journal.jsonl"
    written(path, make_cluster(8), parse_profile(PREEMPTING, "test"), RETRIED)
    if earlier:
        assert as_earlier(path)
    again = replay(path)
    assert again.equal, again.difference


def test_a_live_journal_of_an_earlier_kant_is_said_to_lack_cycles(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, make_cluster(8), parse_profile(SJF, "test"), RETRIED)
    assert not replay(path).lacks_cycles
    as_earlier(path)
    assert not replay(path).lacks_cycles
    first, rest = path.read_text(encoding="utf-8").split("\n", 1)
    path.write_text(json.dumps(json.loads(first) | {"zero": 1}) + "\n" + rest, encoding="utf-8")
    assert replay(path).lacks_cycles
