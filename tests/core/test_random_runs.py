"""Random workloads and random scripts of events, under any policies: counts add up, and runs repeat bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster.state import ClusterState
from kant.model.event import Event
from kant.model.job import Job
from kant.model.node import ClusterSpec
from kant.model.status import JobStatus
from kant.model.units import MINUTE, SECOND
from kant.scheduler.registry import policies
from kant.sim.run import simulate
from kant.testing import Harness, make_cluster, make_profile
from kant.testing.strategies import Step, clusters, jobs, scripts, workloads
from kant.workload.workload import Workload

pytestmark = pytest.mark.long

CHOICES = st.tuples(*(st.sampled_from(list(policies(kind))) for kind in ("order", "discipline", "placement")))
SIMULATIONS = st.sampled_from(
    (
        {},
        {"shape": "gpu"},
        {"resume_cost": ((1, 7), (1000, 30))},
        {"extra_runtime_s": 1, "recheck_s": 1},
        {"speed": "interval-overhead", "slowdown_permille": 1015, "merge_ends": 1e-9},
        {"estimates": "none"},
        {"speed": "placed"},
        {"speed": "placed", "checkpoint_s": 7, "resume_cost": ((1, 7), (1000, 30))},
    )
)


@given(workloads(), CHOICES, SIMULATIONS, st.integers(0, 9), st.integers(1, 20) | st.none())
@settings(max_examples=examples(50))
def test_no_job_is_lost_and_a_run_repeats_bit_for_bit(
    workload: Workload, choice: Any, simulation: Any, seed: int, minutes: int | None
) -> None:
    cluster = make_cluster(8, 4, 1)
    profile = make_profile(*choice, **simulation)
    until = {} if minutes is None else {"until": minutes * MINUTE}
    result = simulate(workload, cluster, profile, seed=seed, **until)
    summary, status = result.summary, result.jobs.status
    assert summary["completed"] + summary["censored"] + summary["rejected"] == summary["jobs"] == len(status)
    assert len(status) <= len(workload)
    ended = status == JobStatus.FINISHED
    assert np.all(result.jobs.end[ended] - result.jobs.submit[ended] - result.jobs.wait[ended] > 0)
    assert np.all(result.jobs.wait >= 0)
    if minutes is None:
        assert len(status) == len(workload) and summary["censored"] == 0
        assert summary["rejected"] > 0 or summary["completed"] == len(workload)
    again = simulate(workload, cluster, profile, seed=seed, **until).summary
    assert (again["digest"], again["decisions"]) == (summary["digest"], summary["decisions"])


@given(clusters(), st.lists(jobs("any"), min_size=1, max_size=6), scripts(), CHOICES, st.integers(0, 99))
@settings(max_examples=examples(50))
def test_a_script_of_events_leaves_a_state_that_its_events_alone_make_again(
    spec: ClusterSpec, kinds: list[Job], script: list[Step], choice: Any, seed: int
) -> None:
    harness = Harness(spec, make_profile(*choice), seed=seed)
    play(harness, kinds, script)
    again = replayed(spec, harness.events)
    state = harness.state
    assert np.array_equal(state.table, again.table)
    assert np.array_equal(state.pools, again.pools)
    assert np.array_equal(state.jobs, again.jobs)
    assert (list(state.pending), list(state.running)) == (list(again.pending), list(again.running))


def play(harness: Harness, kinds: list[Job], script: list[Step]) -> None:
    """Each step names what happens and picks to whom; a cycle follows each."""
    for what, pick in script:
        running, live = harness.running(), list(harness.state.live)
        match what:
            case "submit":
                kind = kinds[pick % len(kinds)]
                fields = {name: getattr(kind, name) for name in kind.__struct_fields__}
                harness.submit(Job(**{**fields, "id": f"j{len(harness.state.ids)}", "submit": harness.now}))
            case "time":
                harness.now += pick * SECOND
            case "finish" | "evict":
                if running:
                    getattr(harness, what)(running[pick % len(running)])
            case "cancel":
                if live:
                    harness.cancel(harness.state.ids[live[pick % len(live)]])
            case _:
                nodes = harness.state.spec.nodes
                getattr(harness, what)(nodes[pick % len(nodes)].name)
        harness.cycle()


def replayed(spec: ClusterSpec, events: list[Event]) -> ClusterState:
    state = ClusterState(spec)
    for event in events:
        state.apply(event)
    return state
