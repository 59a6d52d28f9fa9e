"""Anti-affinity and co-location: who has to stay apart does, in every discipline, and who likes to be near is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.test_domains import POLICIES, filled, nodes_of, place, taken_nodes, topology
from tests.examples import examples, part

from kant.cluster import columns as c
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NeverFits, NoFit, sentence
from kant.model.errors import StateError
from kant.model.event import JobFinished, JobStarted
from kant.model.job import LEVELS, Job
from kant.model.placement import NODE, Allocation
from kant.model.units import GPU, SECOND
from kant.placement.placer import Placer
from kant.queueing.preemption.policy import Preemption
from kant.sim.run import RunHooks, simulate
from kant.testing import make_group, make_job, make_jobs, make_named_policy, make_profile, submitted
from kant.testing.drawn import generator
from kant.testing.naive import domains_of, fits_anywhere_of, pods_that_fit_apart, too_close, wrong_with
from kant.testing.strategies import demands


def start(state: ClusterState, job: Job, policy: Any = "best-fit") -> Allocation:
    """The job runs where the policy places it."""
    result = place(state, job, policy)
    assert not isinstance(result, NoFit)
    state.apply(submitted(job, at=0))
    state.apply(JobStarted(0, job.id, result))
    return result


@st.composite
def peopled(draw: st.DrawFn) -> tuple[ClusterState, list[Allocation]]:
    """A filled cluster in which some jobs of the affinity group `a` hold the last GPU of a node, and what they hold."""
    state, held = draw(filled()), []
    for number, node in enumerate(draw(st.lists(st.integers(0, len(state.spec.nodes) - 1), max_size=3, unique=True))):
        last = state.spec.nodes[node].gpus - 1
        if state.table[node, c.DEVICES + last] == GPU:
            state.apply(submitted(make_job(f"a{number}", affinity_group="a"), at=0))
            held.append(np.array([[node, 1, 1 << last, GPU, 0, 0, 1, 0, 0]], dtype=np.int64))
            state.apply(JobStarted(0, f"a{number}", held[-1]))
    return state, held


ASKS = st.sampled_from(LEVELS), st.sampled_from(("", *LEVELS)), st.booleans(), st.sampled_from(POLICIES)


@given(peopled(), st.integers(1, 5), demands(), st.sampled_from(("", "a")), *ASKS)
def test_pods_are_kept_apart_exactly_if_they_can_be(
    case: tuple[ClusterState, list[Allocation]], pods: int, demand: Any, group: str, apart: Any, within: Any,
    required: bool, policy: str,
) -> None:  # fmt: skip
    (state, held), groups = case, (make_group(1, pods),)
    groups = (type(groups[0])(pods, demand),)
    wish = {"affinity_group": group, "apart": apart, "within": within, "within_required": required}
    job = make_job("j", groups=groups, apart_required=True, **wish)
    domains = domains_of(state.spec, within) if within and required and pods > 1 else [None]
    others = held if group else []
    fits = max(pods_that_fit_apart(state.spec, state.table, job, others, domain) for domain in domains)
    result = place(state, job, policy)
    if isinstance(result, NoFit):
        assert min(fits, pods) < pods and (result.fits, result.pods) == (fits, pods)
        return
    alone = pods == 1 and not group
    assert alone or fits >= pods
    assert not wrong_with(state.spec, state.table, job, result)
    assert alone or not too_close(state.spec, job, result, others)
    kinder = place(state, make_job("j", groups=groups, **wish), policy)
    assert str(kinder) == str(result), "what is only preferred is kept where it can be"


@settings(max_examples=examples(25))
@given(peopled(), st.integers(1, 6), demands(), *ASKS)
def test_who_only_prefers_it_never_waits_for_it(
    case: tuple[ClusterState, list[Allocation]], pods: int, demand: Any, apart: Any, near: Any, both: bool, policy: str
) -> None:
    state, _ = case
    groups = (type(make_group())(pods, demand),)
    plain = place(state, make_job("j", groups=groups), policy)
    fields = {"near": near, "apart": apart if both else ""}
    result = place(state, make_job("j", groups=groups, affinity_group="a", **fields), policy)
    assert isinstance(result, NoFit) == isinstance(plain, NoFit)
    if isinstance(result, NoFit):
        assert result == plain
    else:
        assert not wrong_with(state.spec, state.table, make_job("j", groups=groups), result)


@given(peopled(), st.integers(1, 4), demands(), st.sampled_from(LEVELS), st.sampled_from(POLICIES))
def test_who_likes_to_be_near_is_where_it_can_be(
    case: tuple[ClusterState, list[Allocation]], pods: int, demand: Any, near: Any, policy: str
) -> None:
    state, held = case
    job = make_job("j", groups=(type(make_group())(pods, demand),), affinity_group="a", near=near)
    result = place(state, job, policy)
    hosts = {int(node) for allocation in held for node in allocation[:, NODE]}
    hosting = [set(domain) for domain in domains_of(state.spec, near) if hosts & set(domain)]
    could = any(fits_anywhere_of(state.spec, state.table, job, domain) >= pods for domain in hosting)
    used = set() if isinstance(result, NoFit) else set(result[:, NODE].tolist())
    assert could == (bool(used) and any(used <= domain for domain in hosting)) or (not could and not hosting)


def test_replicas_survive_a_leaf() -> None:
    """Four leaves of two nodes; three services' replicas are each a job of their own."""
    state = ClusterState(topology(2, 2, 2, 2))
    wish = {"affinity_group": "web", "apart": "leaf", "apart_required": True}
    used = [int(start(state, make_job(f"w{i}", 4, **wish))[0, NODE]) // 2 for i in range(4)]
    assert sorted(used) == [0, 1, 2, 3]
    full = place(state, make_job("w4", 4, **wish))
    assert full == NoFit(0, 1, 0, apart="leaf")
    assert sentence(full) == (
        "not enough free capacity: 0 of 1 pods fit now, each in one leaf without others of its group"
    )
    assert start(state, make_job("other", 4, affinity_group="db", apart="leaf", apart_required=True))[0, NODE] == 0
    state.apply(JobFinished(0, "w2"))
    assert place(state, make_job("w5", 4, **wish))[0, NODE] // 2 == used[2]  # type: ignore[index]
    placer = Placer(Snapshot(state), make_named_policy("placement", "best-fit"), 0)
    assert placer.never_fits(state.shapes.of(make_job("w6", 4, **wish))) is None, "not for ever"
    never = placer.never_fits(state.shapes.of(make_job("wide", 1, 5, apart="leaf", apart_required=True)))
    assert never == NeverFits(0, 5, 4, apart="leaf")


def test_what_is_placed_in_a_cycle_counts_for_what_comes_after_it_there() -> None:
    state = ClusterState(topology(2, 2))
    placer = Placer(Snapshot(state), make_named_policy("placement", "best-fit"), 0)
    shape = state.shapes.of(make_job("j", affinity_group="a", apart="node", apart_required=True))
    mark = placer.trial.checkpoint()
    results = [placer.place(shape) for _ in range(5)]
    assert isinstance(results[4], NoFit)
    placed = [result for result in results if not isinstance(result, NoFit)]
    assert len({int(result[0, NODE]) for result in placed}) == 4
    placer.trial.evict(placed[1])
    again = placer.place(shape)
    assert not isinstance(again, NoFit) and again[0, NODE] == placed[1][0, NODE]
    placer.trial.rollback(mark)
    assert not isinstance(placer.place(shape), NoFit)


def test_what_is_preferred_spreads_evenly_once_all_domains_are_taken() -> None:
    state = ClusterState(topology(2, 2, 2))
    used = nodes_of(place(state, make_job("j", 1, 8, apart="leaf")))
    assert [sum(used.get(node, 0) for node in domain) for domain in domains_of(state.spec, "leaf")] == [3, 3, 2]


def test_a_cache_goes_to_the_node_of_its_service_until_that_is_full() -> None:
    state = ClusterState(topology(2, 2))
    taken_nodes(state, 0)
    home = int(start(state, make_job("service", 4, affinity_group="s"), "worst-fit")[0, NODE])
    near = {"affinity_group": "s", "near": "node"}
    assert int(start(state, make_job("one", 2, **near), "worst-fit")[0, NODE]) == home
    assert int(start(state, make_job("two", 2, **near), "worst-fit")[0, NODE]) == home
    assert int(start(state, make_job("three", 2, **near), "worst-fit")[0, NODE]) != home


def test_wishes_that_make_no_sense_are_refused() -> None:
    state = ClusterState(topology(2))
    for fields, message in (
        ({"apart": "row"}, "expected one of node, hbd"),
        ({"near": "leaf"}, "expected the name of one"),
        (
            {"apart": "node", "groups": (type(make_group())(4, make_group().demand, "leaf", 2),)},
            "expected only one of these",
        ),
    ):
        with pytest.raises(StateError, match=message):
            state.apply(submitted(make_job("j", **fields), at=0))  # type: ignore[arg-type]


@pytest.mark.parametrize("discipline", ["strict", "best-effort", "backfill", "easy", "conservative", "preemptive"])
@pytest.mark.parametrize("placement", ["worst-fit", "e-binpack"])
def test_a_replica_waits_until_one_of_its_group_has_left_a_leaf(discipline: str, placement: str) -> None:
    """Two leaves of two nodes and four replicas; the fifth job is of no group, and is not kept waiting for long."""
    jobs = make_jobs(
        submit=[0, 0, 10, 20, 30],
        runtime=[100, 200, 100, 50, 50],
        gpus=[2, 2, 2, 2, 2],
        pods=[1, 1, 1, 1, 1],
        affinity=[1, 1, 1, 1, 0],
        affinities=("", "web"),
        apart=[3, 3, 3, 3, 0],
        apart_required=[1, 1, 1, 1, 0],
    )
    run = simulate(jobs, topology(2, 2), make_profile("fifo", discipline, placement), hooks=RunHooks(ledger=True))
    assert (run.jobs.wait // SECOND).tolist()[:4] == [0, 0, 90, 180]
    assert run.summary["completed"] == 5
    assert run.wait_by_cause is not None
    assert int(run.wait_by_cause["topology"][2]) == 90 * SECOND


def test_who_is_stopped_for_a_replica_makes_a_leaf_free_of_its_group() -> None:
    """Both leaves host a replica of low priority beside others; only to stop a replica helps the newcomer."""
    jobs = make_jobs(
        submit=[0, 0, 10, 10, 20],
        runtime=[1000] * 5,
        gpus=[2, 2, 1, 1, 2],
        pods=[1, 1, 1, 1, 1],
        priority=[0, 0, 0, 0, 1],
        affinity=[1, 1, 0, 0, 1],
        affinities=("", "web"),
        apart=[3, 3, 0, 0, 3],
        apart_required=[1, 1, 0, 0, 1],
    )
    profile = make_profile("fifo", "best-effort", "first-fit", preemption=Preemption(min_run_s=0))
    run = simulate(jobs, topology(1, 1), profile)
    assert run.jobs.wait[4] == 0
    stopped = np.flatnonzero(run.jobs.preemptions).tolist()
    assert len(stopped) == 1 and stopped[0] in (0, 1)


RUNS: list[tuple[Any, Preemption | None]] = [
    (name, None)
    for name in ("strict", "easy", "conservative", "preemptive", "repack", {"policy": "repack", "keep": True})
]
RUNS += [("best-effort", Preemption(min_run_s=0)), ("easy", Preemption(min_run_s=0))]


@pytest.mark.parametrize(
    ("discipline", "preemption", "seed"), [(*run, seed) for i, run in enumerate(RUNS) for seed in part((0, 1), i)]
)
def test_nobody_is_ever_beside_his_group_in_a_run(discipline: Any, preemption: Preemption | None, seed: int) -> None:
    """Services of one and two pods that come, go and are stopped; each leaf hosts one pod of a group at a time."""
    draw, count = generator(seed), 80
    jobs = make_jobs(
        submit=np.sort(draw.integers(0, 900, count)),
        runtime=draw.integers(20, 200, count),
        gpus=draw.integers(1, 5, count),
        pods=draw.integers(1, 3, count),
        priority=draw.integers(0, 2, count),
        affinity=draw.integers(0, 3, count),
        affinities=("", "a", "b"),
        apart=np.full(count, 3),
        apart_required=np.ones(count),
    )
    spec = topology(2, 1, 3)
    profile = make_profile("fifo", discipline, "e-binpack" if seed else "best-fit", preemption)
    run = simulate(jobs, spec, profile, hooks=RunHooks(keep_intervals=True))
    assert run.summary["completed"] == count
    there: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row, node, _, _, begin, end in run.intervals.tolist():
        group = int(jobs.affinity[row]) or -1 - row  # without a group a job keeps its own pods apart
        there.setdefault((group, int(spec.nodes[node].leaf[4:])), []).append((begin, end))
    assert max(len(spans) for spans in there.values()) > 5
    for spans in there.values():
        ordered = sorted(spans)
        assert all(first[1] <= second[0] for first, second in pairwise(ordered))
