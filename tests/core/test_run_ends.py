"""A run ends with the last thing that happens: what was announced for later changes no metric and no journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.small_runs import MACHINE
from tests.core.tenant_runs import draw_queues
from tests.examples import examples
from tests.profiles import few

from kant.metrics.result import RunResult
from kant.model.event import GpusBooked
from kant.model.node import ClusterSpec
from kant.model.placement import WIDTH
from kant.model.status import NodeStatus
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER, GPU, SECOND
from kant.scheduler.profile import Profile, builtin_profile, builtin_texts
from kant.sim.replay import replay
from kant.sim.run import RunHooks, simulate
from kant.testing import make_cluster, make_jobs
from kant.testing.drawn import generator
from kant.workload.faults_file import NodeHealth
from kant.workload.workload import Workload

pytestmark = pytest.mark.long

PROFILES = [name for name in builtin_texts() if not builtin_profile(name).simulation]
FAR = 10**6 * SECOND
"""After the end of every drawn run."""

LATE = ("drain", "cordon", "booking")


def metrics(run: RunResult) -> dict[str, Any]:
    """The summary without what is about the machine or the plans: these may hold a job more, or name a later look."""
    return {key: value for key, value in run.summary.items() if key not in (*MACHINE, "digest", "decisions")}


def drawn_jobs(draw: np.random.Generator, jobs: int, heeds: bool) -> Workload:
    """Jobs with and without limits, elastic gangs, burst replicas; the last one may ask for what there is not."""
    base = [-1] * jobs
    for i in range(1, jobs):
        if heeds and draw.integers(4) == 0 and base[i - 1] < 0:
            base[i] = i - 1
    runtime = draw.integers(1, 900, jobs)
    pods = draw.choice([1, 1, 2, 3], jobs)
    return make_jobs(
        submit=np.sort(draw.integers(0, 600, jobs)),
        runtime=runtime,
        limit=np.where(draw.integers(3, size=jobs) > 0, runtime * draw.integers(1, 3, jobs), -1 / SECOND),
        gpus=draw.integers(1, 4, jobs),
        pods=pods,
        floor=np.where((pods > 1) & (draw.integers(2, size=jobs) == 0), 1, 0),
        priority=draw.choice([0, 0, 1], jobs),
        preemptible=draw.integers(2, size=jobs),
        base_job=base,
    )


def drawn_faults(draw: np.random.Generator, nodes: int) -> list[NodeHealth]:
    """Nodes that fail, are drained by a time, and come back or not."""
    found = []
    for node in range(nodes):
        kind = int(draw.integers(4))
        at = int(draw.integers(0, 900)) * SECOND
        if kind == 1:
            found.append(NodeHealth(at, node, NodeStatus.FAILED))
        elif kind == 2:
            deadline = at + int(draw.choice([0, 300, 10**7])) * SECOND
            found.append(NodeHealth(at, node, NodeStatus.DRAINING, 0, deadline))
        if kind in (1, 2) and draw.integers(2):
            found.append(NodeHealth(at + 400 * SECOND, node, NodeStatus.IN_SERVICE))
    return sorted(found)


def booked(node: int, devices: int, start: int, end: int) -> GpusBooked:
    """All GPUs of a node, from `start` to `end`."""
    row = np.zeros((1, WIDTH), dtype=np.int64)
    row[0, :7] = node, 1, (1 << devices) - 1, GPU, 0, 0, 1
    return GpusBooked(0, f"booking{node}", start, end, row)


def drawn_bookings(draw: np.random.Generator, cluster: ClusterSpec) -> list[GpusBooked]:
    """Some nodes are booked for a while; some of these bookings last longer than all jobs."""
    found = []
    for node, spec in enumerate(cluster.nodes):
        if draw.integers(4) == 0:
            start = int(draw.integers(0, 2000)) * SECOND
            found.append(booked(node, spec.gpus, start, start + int(draw.choice([60, 600, 10**7])) * SECOND))
    return found


def drawn_run(seed: int, profile: Profile, **more: Any) -> tuple[RunResult, bytes]:
    """A run of drawn jobs, nodes that fail, bookings, quotas and a time to end; its journal. `more` is added last."""
    draw = generator(seed)
    heeds = profile.discipline.quotas
    cluster = make_cluster(*draw.integers(3, 6, int(draw.integers(2, 5))).tolist())
    queues = draw_queues(draw, cluster) if heeds and draw.integers(2) else []
    jobs = drawn_jobs(draw, 20, heeds)
    if queues:
        names = tuple(queue.name for queue in queues)
        jobs = replace(jobs, queues=names, queue=draw.integers(len(names), size=len(jobs)))
    faults = drawn_faults(draw, len(cluster.nodes)) if draw.integers(2) else []
    bookings = drawn_bookings(draw, cluster) if draw.integers(2) else []
    until = int(draw.choice([FOREVER, FOREVER, 700 * SECOND]))
    lines: list[bytes] = []
    run = simulate(
        jobs, cluster, profile, seed=seed, until=until, hooks=RunHooks(lines.append),
        queue_config=QueueConfig(tuple(queues)),
        faults=[*faults, *more.get("faults", ())], reservations=[*bookings, *more.get("reservations", ())],
    )  # fmt: skip
    return run, b"".join(lines)


@pytest.mark.parametrize("name", few(PROFILES, "order", "discipline", "preemption"))
@given(seed=st.integers(0, 10**6))
@example(seed=131071)  # a promise, then a cycle that decides nothing
@settings(max_examples=examples(12), deadline=None)
def test_every_journal_of_a_run_replays_equal(name: str, seed: int) -> None:
    """Over nodes that fail or are to be empty by a time, bookings, quotas, elastic gangs and burst replicas."""
    run, journal = drawn_run(seed, builtin_profile(name))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        path.write_bytes(journal)
        again = replay(path)
    assert again.equal, again.difference
    assert again.recorded == run.summary["digest"]
    assert again.result.end == run.end
    found = metrics(again.result)
    for key in ("sor", "sor_all_nodes", "by_pool", "end_s", "makespan_s", "jct_s", "wait_s", "by_queue", "evictions"):
        assert found[key] == run.summary[key], key
    for key in ("gar", "gfr"):
        assert found[key] == pytest.approx(run.summary[key]), key


def far(what: str, cluster: ClusterSpec, at: int) -> dict[str, Any]:
    """What is announced for the last node at `at`, and concerns the time after the last job."""
    node = len(cluster.nodes) - 1
    if what == "booking":
        return {"reservations": [booked(node, cluster.nodes[node].gpus, FAR, 2 * FAR)]}
    until = FAR if what == "drain" else -1
    return {"faults": [NodeHealth(at, node, NodeStatus.DRAINING, 0, until)]}


def run_of(jobs: Workload, profile: Profile, cluster: ClusterSpec, **more: Any) -> RunResult:
    return simulate(jobs, cluster, profile, hooks=RunHooks(ledger=True), **more)


@pytest.mark.parametrize("name", few(PROFILES, "order", "discipline", "preemption"))
@given(seed=st.integers(0, 10**6))
@settings(max_examples=examples(8), deadline=None)
def test_a_deadline_after_the_last_job_changes_no_metric(name: str, seed: int) -> None:
    """A node that is drained by a time after the last end counts as one that is drained without a time."""
    draw, profile = generator(seed), builtin_profile(name)
    jobs, cluster = drawn_jobs(draw, 12, profile.discipline.quotas), make_cluster(5, 4, 3)
    at = int(draw.integers(0, 900)) * SECOND
    runs = [run_of(jobs, profile, cluster, **far(what, cluster, at)) for what in ("drain", "cordon")]
    assert metrics(runs[0]) == metrics(runs[1])
    assert runs[0].end < FAR


@pytest.mark.parametrize("name", few(PROFILES, "order", "discipline", "preemption"))
@given(seed=st.integers(0, 10**6))
@settings(max_examples=examples(8), deadline=None)
def test_a_booking_after_the_last_job_changes_no_metric(name: str, seed: int) -> None:
    """Every job has a limit, so it is known to end before the booking begins."""
    draw, own = generator(seed), builtin_profile(name)
    profile = replace(own, simulation={**own.simulation, "enforce_limits": True})
    cluster = make_cluster(5, 4, 3)
    jobs = drawn_jobs(draw, 12, profile.discipline.quotas)
    jobs = replace(jobs, limit=np.where(jobs.limit > 0, jobs.limit, 1000 * SECOND))
    found, without = (run_of(jobs, profile, cluster, **more) for more in (far("booking", cluster, 0), {}))
    assert metrics(found) == metrics(without)


@pytest.mark.parametrize("until", [FOREVER, 1000 * SECOND])
@pytest.mark.parametrize("what", LATE)
def test_two_jobs_and_a_node_that_nobody_needs(what: str, until: int, tmp_path: Path) -> None:
    """What is announced for 500 s leaves the end at 100 s, and the journal is one that can be replayed."""
    lines: list[bytes] = []
    jobs, cluster = make_jobs(submit=[0, 10], runtime=[100, 50], gpus=[1, 2]), make_cluster(4, 4)
    hooks = RunHooks(lines.append, ledger=True)
    run = simulate(jobs, cluster, builtin_profile("fifo"), hooks=hooks, until=until, **far(what, cluster, 5 * SECOND))
    assert (run.end, run.series.time[-1]) == (100 * SECOND, 100 * SECOND)
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines))
    assert replay(tmp_path / "journal.jsonl").equal


@pytest.mark.parametrize("name", ["kant", "fifo", "easy"])
def test_the_record_ends_no_earlier_than_what_it_says_last(name: str, tmp_path: Path) -> None:
    """A job loses its only node. Under `kant` it backs off, and the cycle after that says why it waits."""
    lines: list[bytes] = []
    faults = [NodeHealth(10 * SECOND, 0, NodeStatus.FAILED)]
    jobs = make_jobs(submit=[0], runtime=[100], gpus=[4])
    run = simulate(jobs, make_cluster(4), builtin_profile(name), hooks=RunHooks(lines.append), faults=faults)
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines))
    again = replay(tmp_path / "journal.jsonl")
    assert again.equal and again.result.end == run.end
    assert run.summary["wait_s"]["max"] == (run.end - 10 * SECOND) / SECOND
