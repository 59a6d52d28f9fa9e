"""Elastic gangs: they hold between floor and ceiling, do all their work, and take what nobody else can use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.elastic_runs import check_plan, elastic_arrivals, made_elastic
from tests.core.small_runs import uniform
from tests.core.tenant_runs import draw_queues, draw_tenants_jobs
from tests.core.test_random_runs import CHOICES, play, replayed
from tests.examples import examples, part

from kant.cluster.columns import J_ATTAINED, J_SINCE
from kant.cluster.elastic import above_floor, pods_by_group, without
from kant.cluster.state import ClusterState
from kant.insight.start_explanation import explain_start
from kant.model.decision import Grow, Plan, Shrink, Start
from kant.model.errors import InputError, StateError
from kant.model.event import JobGrown, JobPreempted, JobProgressed, JobScaled, JobShrunk, JobStarted, QueuesChanged
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.placement import CPU, GROUP, PODS
from kant.model.status import JobStatus
from kant.model.tenant import QueueConfig
from kant.model.units import GPU, MINUTE, SECOND
from kant.queueing.growth import Elastic
from kant.queueing.preemption.policy import Preemption
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import builtin_profile, builtin_texts, parse_profile
from kant.sim.replay import replay
from kant.sim.run import RunHooks, simulate
from kant.testing import Harness, at_random, make_cluster, make_job, make_profile, submitted
from kant.testing.builders import make_group, make_queue
from kant.testing.drawn import draw_cluster, generator
from kant.testing.harness import never
from kant.testing.strategies import Step, clusters, jobs, scripts
from kant.workload.workload import Workload, make_workload

DISCIPLINES = ["strict", "best-effort", {"policy": "backfill", "timeout_s": 600}, "easy", "conservative"]
RIGHTS = {"none": None, "nominal": Preemption(min_run_s=60)}
NOW_AND_THEN = Elastic(grow_s=100)


def held(harness: Harness, job: str) -> int:
    return int(harness.state.running[harness.state.rows[job]][:, PODS].sum())


# --- random runs -----------------------------------------------------------------------------------------------


@given(clusters(), st.lists(jobs("any"), min_size=1, max_size=6), scripts(), CHOICES, st.integers(0, 99))
@settings(max_examples=examples(30))
def test_a_script_of_events_keeps_every_gang_between_floor_and_ceiling(
    spec: ClusterSpec, kinds: list[Job], script: list[Step], choice: Any, seed: int
) -> None:
    """The harness checks every invariant after every event; the events alone make the same state again."""
    kinds = [made_elastic(job, generator(seed)) for job in kinds]
    harness = Harness(spec, make_profile(*choice, elastic=NOW_AND_THEN), seed=seed)
    play(harness, kinds, script)
    again = replayed(spec, harness.events)
    assert np.array_equal(harness.state.table, again.table)
    assert np.array_equal(harness.state.jobs, again.jobs)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.integers(0, 6)), max_size=12), st.booleans())
@settings(max_examples=examples(40))
def test_whoever_scales_jobs_finds_them_between_their_new_floors_and_ceilings(
    script: list[tuple[int, int, int]], rigid: bool
) -> None:
    """Rigid jobs become elastic and rigid again; quotas stay exact, and the events alone make the same state."""
    spec = make_cluster(4, 4)
    harness = Harness(spec, make_profile(elastic=Elastic(grow_s=10**6)))
    harness.set_queues(make_queue("a", 5, borrowing=0))
    ids = ["x", "y", "z"]
    harness.submit(*(make_job(one, pods=2, floor=0 if rigid else 1, queue="a") for one in ids))
    for step, (which, floor, more) in enumerate(script, 1):
        harness.cycle(step * SECOND)
        row = harness.state.rows[ids[which]]
        if row not in harness.state.running:
            continue
        pods, (group,) = held(harness, ids[which]), harness.state.live[row].groups
        count, floor = pods + more, min(floor, pods)
        group = msgspec.structs.replace(group, count=count, floor=floor if floor < count else 0)
        done = harness.state.jobs[row, J_ATTAINED] + harness.now - harness.state.jobs[row, J_SINCE]
        harness.happen(JobScaled(harness.now, ids[which], (group,)))
        harness.state.check()
        assert held(harness, ids[which]) == pods
        assert harness.state.jobs[row, J_ATTAINED] + harness.now - harness.state.jobs[row, J_SINCE] == done
        harness.cycle(step * SECOND + 1)
        used = sum(held(harness, one) for one in ids if harness.state.rows[one] in harness.state.running)
        assert used <= 5 and (used == 5 or held(harness, ids[which]) == count)  # it grows at once as far as it may
    again = replayed(spec, harness.events)
    assert np.array_equal(harness.state.table, again.table)
    assert np.array_equal(harness.state.jobs, again.jobs)


def test_a_job_is_scaled_to_no_other_pods_than_it_holds() -> None:
    harness = Harness(make_cluster(8))
    harness.submit(make_job("a", pods=4), make_job("waits", pods=8))
    harness.cycle()
    (group,) = harness.state.live[harness.state.rows["a"]].groups
    for wrong in (PodGroup(3, group.demand), PodGroup(6, group.demand), PodGroup(6, group.demand, floor=5)):
        with pytest.raises(StateError, match="groups that do not match the pods"):
            harness.happen(JobScaled(0, "a", (wrong,)))
    with pytest.raises(StateError, match="other requests"):
        harness.happen(JobScaled(0, "a", (PodGroup(4, Demand(2)),)))
    with pytest.raises(StateError, match="while it was not running"):
        harness.happen(JobScaled(0, "waits", (PodGroup(8, group.demand),)))


@pytest.mark.parametrize("rights", RIGHTS)
@pytest.mark.parametrize("discipline", DISCIPLINES, ids=str)
@pytest.mark.parametrize("refuses", [False, True])
def test_runs_of_tenants_end_and_keep_their_quotas(discipline: Any, rights: str, refuses: bool) -> None:
    changed = 0

    def look(plan: Plan) -> None:
        nonlocal changed
        changed += sum(check_plan(harness, plan))

    seeds = part(range(4), DISCIPLINES.index(discipline) + list(RIGHTS).index(rights) + refuses)
    for seed in seeds:
        draw = generator(seed)
        spec = draw_cluster(draw, 5)
        queues = draw_queues(draw, spec)
        refuse = at_random(0.3, seed) if refuses else never
        profile = make_profile("fifo", discipline, "best-fit", RIGHTS[rights], elastic=NOW_AND_THEN)
        harness = Harness(spec, profile, seed=seed, refuse=refuse)
        if seed % 4:
            harness.happen(QueuesChanged(0, QueueConfig(tuple(queues))))
        harness.before_carrying_out = look
        harness.run(elastic_arrivals(draw, draw_tenants_jobs(draw, queues, 30, parts=seed % 2 == 1)))
        assert all(harness.status(job) in (JobStatus.FINISHED, JobStatus.REJECTED) for job in harness.state.rows)
    assert changed >= len(seeds)


@st.composite
def elastic_workloads(draw: st.DrawFn) -> Workload:
    """Gangs of up to 12 pods on 48 GPUs, most of them elastic, some of higher priority."""
    count = draw(st.integers(1, 20))

    def column(low: int, high: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)), dtype=np.int64)

    pods = column(1, 12)
    return make_workload(
        "elastic", np.cumsum(column(0, 40)) * SECOND, column(1, 3_000_000_007), column(1, 4),
        pods=pods, floor=np.minimum(column(0, 12), pods), priority=column(0, 1),
    )  # fmt: skip


@given(
    elastic_workloads(),
    st.sampled_from(["strict", "best-effort", "backfill", "easy", "conservative", "preemptive"]),
    st.sampled_from(["best-fit", "e-binpack"]),
    st.sampled_from([{}, {"checkpoint_s": 7, "resume_cost": ((1, 7), (1000, 30))}, {"speed": "placed"}]),
    st.booleans(),
)
@settings(max_examples=examples(30))
def test_all_work_is_done_exactly_and_the_journal_replays(
    tmp_path_factory: pytest.TempPathFactory,
    workload: Workload,
    discipline: str,
    placement: str,
    simulation: dict[str, Any],
    stops: bool,
) -> None:
    """GPU time held is the work asked for and what stops and new sizes cost, up to the last microsecond."""
    lines: list[bytes] = []
    rights = Preemption(min_run_s=0) if stops else None
    profile = make_profile("srtf" if discipline == "preemptive" else "fifo", discipline, placement, rights,
                           elastic=NOW_AND_THEN, **simulation)  # fmt: skip
    hooks = RunHooks(journal=lines.append, keep_intervals=True)
    result = simulate(workload, uniform(), profile, hooks=hooks)
    done = np.zeros(len(workload), dtype=object)
    for row, _, mask, milli, start, end in result.intervals.tolist():
        done[row] += mask.bit_count() * milli * (end - start)
    costs: dict[str, int] = {}
    for line in map(msgspec.json.decode, lines):
        if line["event"] in ("preempted", "grown", "shrunk"):
            costs[line["job"]] = costs.get(line["job"], 0) + line.get("cost", 0)
    for row, name in enumerate(result.jobs.id):
        if result.jobs.status[row] == JobStatus.REJECTED:
            continue
        at = workload.ids.index(name)
        each, pods = int(workload.gpus[at]) * GPU, int(workload.pods[at])
        surplus = done[row] - (int(workload.runtime[at]) + costs.get(name, 0)) * pods * each
        assert surplus >= 0
        if simulation.get("speed") != "placed":
            assert surplus < pods * each
        assert result.jobs.gpus[row] == pods * each
    if profile.preemption is None and discipline != "preemptive":
        path = tmp_path_factory.mktemp("run") / "journal.jsonl"
        path.write_bytes(b"".join(lines))
        state = journal_state(path, profile)
        assert not state.live


def journal_state(path: Path, profile: Any) -> ClusterState:
    """The state that the events of a journal lead to."""
    from kant.cluster.journal import Cycled, Footer, Header, read_lines

    lines = iter(read_lines(iter(path.open("rb")), str(path)))
    header = next(lines)
    assert isinstance(header, Header)
    state = ClusterState(header.cluster)
    for line in lines:
        if not isinstance(line, Plan | Cycled | Footer | Header):
            state.apply(line)
    return state


# --- small examples --------------------------------------------------------------------------------------------


def test_a_gang_starts_with_what_is_there_and_grows_when_it_has_had_its_size_for_long_enough() -> None:
    """14,400 pod-seconds with 12 pods while the rigid job runs, and the other 43,200 with all 16."""
    harness = Harness(make_cluster(8, 8), make_profile(elastic=Elastic(grow_s=1000)))
    harness.submit(make_job("rigid", pods=4), runtime=500 * SECOND)
    harness.submit(make_job("elastic", pods=16, floor=6), runtime=3600 * SECOND)
    harness.cycle()
    assert held(harness, "elastic") == 12
    harness.run()
    grown = [event for event in harness.events if isinstance(event, JobGrown)]
    assert [(event.time, len(event.allocation)) for event in grown] == [(1000 * SECOND, 1)]
    assert harness.now == 1000 * SECOND + (3600 * 16 - 12 * 1000) * SECOND // 16


def test_a_gang_waits_for_its_floor_and_does_not_grow_where_the_profile_says_so() -> None:
    harness = Harness(make_cluster(8), make_profile(elastic=Elastic(grow_s=-1)))
    harness.submit(make_job("rigid", pods=5), make_job("elastic", pods=8, floor=4))
    harness.cycle()
    assert harness.waiting() == ["elastic"]
    harness.finish("rigid")
    harness.submit(make_job("two", pods=2))
    harness.cycle(1)
    assert (held(harness, "elastic"), held(harness, "two")) == (6, 2)
    harness.finish("two")
    harness.cycle(SECOND * 10**6)
    assert held(harness, "elastic") == 6


def test_everybody_who_waits_gets_his_floor_before_anybody_gets_more() -> None:
    harness = Harness(make_cluster(8))
    harness.submit(*(make_job(f"e{i}", pods=8, floor=2) for i in range(3)), make_job("rigid"))
    harness.cycle()
    assert [held(harness, job) for job in ("e0", "e1", "e2", "rigid")] == [3, 2, 2, 1]


def test_growth_stays_in_the_domain_that_the_gang_requires() -> None:
    """Two nodes to a leaf; the gang lies in the second leaf, and only there it grows."""
    harness = Harness(make_cluster(4, 4, 4, 4, leaf=2), make_profile(placement="e-binpack", elastic=Elastic(grow_s=0)))
    harness.submit(make_job("a", pods=8), make_job("b", 2, pods=3))
    harness.cycle()
    harness.submit(make_job("elastic", pods=12, floor=2, within="leaf", within_required=True))
    harness.cycle()
    assert held(harness, "elastic") == 2
    harness.finish("a")
    harness.cycle()
    assert held(harness, "elastic") == 2
    harness.finish("b")
    harness.cycle()
    assert held(harness, "elastic") == 8
    assert set(harness.nodes_of("elastic")) == {"n2", "n3"}


def test_a_quota_limits_what_a_gang_gets_above_its_floor() -> None:
    harness = Harness(make_cluster(8), make_profile(elastic=Elastic(grow_s=0)))
    harness.set_queues(make_queue("a", 5, borrowing=0))
    harness.submit(make_job("elastic", pods=8, floor=2, queue="a"))
    harness.cycle()
    assert held(harness, "elastic") == 5
    harness.set_queues(make_queue("a", 7, borrowing=0))
    harness.cycle(1)
    assert held(harness, "elastic") == 7


@pytest.mark.parametrize("discipline", ["easy", "conservative"])
def test_growth_does_not_put_off_a_promise(discipline: str) -> None:
    """The large job is promised all from 1000 s on; what runs until then may be used, and no longer."""
    harness = Harness(make_cluster(8), make_profile("fifo", discipline, elastic=Elastic(grow_s=0)))
    harness.submit(make_job("short", pods=2, estimate=100 * SECOND), runtime=100 * SECOND)
    harness.submit(make_job("long", pods=4, estimate=1000 * SECOND), runtime=1000 * SECOND)
    harness.submit(make_job("large", pods=8, estimate=50 * SECOND), runtime=50 * SECOND)
    harness.submit(make_job("elastic", pods=4, floor=2, estimate=500 * SECOND), runtime=500 * SECOND)
    harness.submit(make_job("late", pods=4, floor=2, estimate=900 * SECOND), runtime=900 * SECOND)
    harness.cycle()
    harness.run()
    assert harness.first_starts()["large"] == 1000 * SECOND
    assert any(isinstance(event, JobGrown) for event in harness.events)
    assert harness.first_starts()["late"] > 1000 * SECOND


def test_a_gang_that_may_not_grow_yet_is_tried_again_after_its_time() -> None:
    """A driver that refuses gives the pods back at once, which counts as a change of size."""
    harness = Harness(
        make_cluster(8),
        make_profile(elastic=Elastic(grow_s=600)),
        refuse=lambda decision: isinstance(decision, Grow),
    )
    harness.submit(make_job("rigid", pods=4), runtime=60 * SECOND)
    harness.submit(make_job("elastic", pods=8, floor=2), runtime=3000 * SECOND)
    harness.cycle()
    harness.run(until=40 * MINUTE)
    grown = [event.time // SECOND for event in harness.events if isinstance(event, JobGrown)]
    assert grown == [600, 1200, 1800, 2400]
    assert held(harness, "elastic") == 4


def test_what_contradicts_an_elastic_gang_is_refused_and_changes_nothing() -> None:
    state = ClusterState(make_cluster(8, 8))
    state.apply(submitted(make_job("elastic", pods=4, floor=2)))
    state.apply(submitted(make_job("rigid", pods=2)))

    def piece(pods: int, mask: int, node: int = 0) -> np.ndarray:
        return np.array([[node, pods, mask, GPU, 0, 0, 1, 0, 0]], dtype=np.int64)

    def refused(event: Any, text: str) -> None:
        before = (state.table.copy(), state.jobs.copy(), state.running.copy())
        with pytest.raises(StateError, match=text):
            state.apply(event)
        assert np.array_equal(before[0], state.table) and np.array_equal(before[1], state.jobs)
        assert before[2] == state.running
        state.check()

    refused(JobStarted(0, "elastic", piece(1, 1)), "fewer pods than its floor or more than its ceiling")
    refused(JobStarted(0, "elastic", piece(5, 31)), "fewer pods than its floor or more than its ceiling")
    refused(JobGrown(0, "elastic", piece(1, 1)), "not a running elastic gang")
    state.apply(JobStarted(0, "elastic", piece(3, 7)))
    state.apply(JobStarted(0, "rigid", piece(2, 24)))
    refused(JobGrown(1, "elastic", piece(2, 96)), "beyond its ceiling")
    refused(JobGrown(1, "elastic", piece(1, 8)), "resources that are not free")
    refused(JobGrown(1, "rigid", piece(1, 32)), "not a running elastic gang")
    refused(JobShrunk(1, "elastic", piece(2, 6)), "below its floor")
    refused(JobShrunk(1, "elastic", piece(1, 32)), "is not held")
    refused(JobShrunk(1, "elastic", piece(1, 3)), "below its floor")
    refused(JobGrown(1, "elastic", piece(1, 32), -1), "not a time")
    for beside in ({"apart": "node"}, {"affinity_group": "a"}, {"groups": (PodGroup(4, Demand(1), "leaf", 2, 2),)}):
        with pytest.raises(StateError, match="expected none of these with a floor"):
            state.apply(submitted(make_job("unclear", pods=4, floor=2, **beside), at=1))
    state.apply(JobShrunk(1, "elastic", piece(1, 2)))
    state.apply(JobGrown(1, "elastic", piece(1, 128, 1)))
    state.check()


def test_a_gang_that_loses_a_node_is_placed_anew_with_what_there_is() -> None:
    """A rigid gang would keep its healthy nodes; this one shrinks to what is left, and starts at once."""
    harness = Harness(make_cluster(4, 4, 4), make_profile(placement="e-binpack"))
    harness.submit(make_job("elastic", pods=12, floor=6))
    harness.cycle()
    assert held(harness, "elastic") == 12
    harness.fail("n1")
    plan = harness.cycle()
    assert [decision.kept for decision in plan.decisions if isinstance(decision, Start)] == [0]
    assert held(harness, "elastic") == 8
    assert set(harness.nodes_of("elastic")) == {"n0", "n2"}


def test_it_can_be_asked_why_a_gang_is_where_it_is_with_more_than_its_floor() -> None:
    harness = Harness(make_cluster(4, 4, 4), make_profile(placement="e-binpack"))
    harness.submit(make_job("rigid", pods=4), make_job("elastic", pods=12, floor=2))
    place = next(d.allocation for d in Scheduler(harness.state, harness.profile).cycle(0).decisions
                 if isinstance(d, Start) and d.job == "elastic")  # fmt: skip
    told = explain_start(Scheduler(harness.state, harness.profile), "elastic", 0, place)
    assert (told.agrees, told.how, told.effect.nodes, told.effect.fewest_nodes) == (True, "policy", 2, 2)


def test_what_is_above_the_floor_is_what_came_last() -> None:
    shape = ClusterState(make_cluster(8)).shapes.of(
        Job("j", 0, (PodGroup(4, Demand(2), floor=2), PodGroup(3, Demand(0, GPU, 250), floor=1)))
    )
    allocation = np.array(
        [
            [0, 2, 15, GPU, 0, 0, 2, 0, 0],
            [0, 2, 0, 0, 500, 0, -1, 1, 0],
            [1, 1, 3, GPU, 0, 0, 2, 0, 0],
            [1, 1, 12, GPU, 0, 0, 2, 0, 0],
        ]
    )
    assert pods_by_group(shape, allocation) == (4, 2)
    spare = above_floor(shape, allocation)
    assert spare.tolist() == [
        [1, 1, 12, GPU, 0, 0, 2, 0, 0],
        [1, 1, 3, GPU, 0, 0, 2, 0, 0],
        [0, 1, 0, 0, 250, 0, -1, 1, 0],
    ]
    rest = without(allocation, spare)
    assert pods_by_group(shape, rest) == (2, 1)
    assert rest.tolist() == [[0, 2, 15, GPU, 0, 0, 2, 0, 0], [0, 1, 0, 0, 250, 0, -1, 1, 0]]


def test_a_floor_like_the_ceiling_is_a_rigid_gang() -> None:
    state = ClusterState(make_cluster(8))
    state.apply(submitted(make_job("a", pods=4, floor=4)))
    state.apply(submitted(make_job("b", pods=4)))
    assert state.shape_of(0) is state.shape_of(1)
    assert not state.elastic


def test_estimates_follow_the_size() -> None:
    """A thousand seconds with 8 pods: 4,000 with the floor of 2; and what is reported is at the ceiling."""
    harness = Harness(make_cluster(8), make_profile("srtf"))
    harness.submit(make_job("elastic", pods=8, floor=2, estimate=1000 * SECOND))
    row, estimates = 0, harness.profile.estimates
    assert estimates.duration(harness.state, row) == 4000 * SECOND
    harness.happen(JobStarted(0, "elastic", np.array([[0, 4, 15, GPU, 0, 0, 1, 0, 0]], dtype=np.int64)))
    assert estimates.end(harness.state, row, 0) == 2000 * SECOND
    harness.happen(JobGrown(500 * SECOND, "elastic", np.array([[0, 4, 240, GPU, 0, 0, 1, 0, 0]], dtype=np.int64), 10))
    assert estimates.end(harness.state, row, harness.now) == 1250 * SECOND + 10
    harness.happen(JobProgressed(600 * SECOND, "elastic", 100 * SECOND))
    assert estimates.end(harness.state, row, harness.now) == 700 * SECOND


def test_a_plan_that_makes_room_later_on_starts_a_wider_gang_after_it() -> None:
    """The gang that starts first may have what the victim of another job leaves; so it is carried out last."""
    harness = Harness(make_cluster(8), make_profile("fifo", preemption=Preemption(min_run_s=0)))
    harness.submit(make_job("victim", pods=6))
    harness.cycle()
    harness.submit(make_job("urgent", pods=3, priority=1), make_job("elastic", pods=8, floor=2, priority=2))
    plan = harness.cycle(1)
    assert [d.job for d in plan.decisions if isinstance(d, Start)] == ["urgent", "elastic"]
    assert (held(harness, "urgent"), held(harness, "elastic")) == (3, 5)


@pytest.mark.parametrize("cut", [None, 30 * MINUTE])
def test_a_run_of_elastic_gangs_replays_to_the_same_digest(tmp_path: Path, cut: int | None) -> None:
    draw = generator(5)
    pods = draw.integers(1, 13, 40)
    workload = make_workload(
        "elastic", np.arange(40) * 60 * SECOND, draw.integers(1, 3600, 40) * SECOND, draw.integers(1, 5, 40),
        pods=pods, floor=draw.integers(0, pods + 1),
    )  # fmt: skip
    for name in ("kant", "easy", "srtf"):
        path = tmp_path / f"{name}.jsonl"
        with path.open("wb") as file:
            until = {} if cut is None else {"until": cut}
            result = simulate(workload, uniform(), builtin_profile(name), hooks=RunHooks(journal=file.write), **until)
        again = replay(path)
        assert again.equal and again.replayed == result.summary["digest"]
        assert again.result.summary["sor"] == result.summary["sor"]
        assert again.result.summary["jtted"] == result.summary["jtted"]
        assert cut is not None or b'"grow"' in path.read_bytes()


# --- shrinking -------------------------------------------------------------------------------------------------


def made_room(harness: Harness) -> dict[str, str]:
    """Who was stopped or shrunk, and which."""
    kinds = {JobShrunk: "shrunk", JobPreempted: "stopped"}
    return {event.job: kinds[type(event)] for event in harness.events if isinstance(event, JobShrunk | JobPreempted)}


def contest(*gpus: int, rights: Preemption | None = None, discipline: Any = "best-effort", **fields: Any) -> Harness:
    profile = make_profile("fifo", discipline, preemption=rights or Preemption(min_run_s=0), **fields)
    return Harness(make_cluster(*gpus), profile)


def test_a_gang_is_shrunk_where_that_suffices_and_stopped_where_it_does_not() -> None:
    for asked, rigid, outcome in ((3, "runs", "shrunk"), (6, "runs", "shrunk"), (7, "waits", "stopped")):
        harness = contest(8)  # 8 pods, of which 6 are above the floor
        harness.submit(make_job("elastic", pods=8, floor=2))
        harness.cycle()
        assert held(harness, "elastic") == 8
        harness.submit(make_job("urgent", pods=asked, priority=1))
        harness.cycle(10 * SECOND)
        assert harness.running()[-1] == "urgent"
        assert made_room(harness) == {"elastic": outcome}, asked
        assert ("elastic" in harness.running()) == (rigid == "runs")
        assert rigid != "runs" or held(harness, "elastic") == 8 - asked


def test_a_rigid_job_is_stopped_only_where_no_gang_can_make_room() -> None:
    """The rigid job would be the cheaper victim; but for two nodes at once the gang's spare pods are not enough."""
    harness = contest(4, 4)
    harness.submit(make_job("elastic", pods=4, floor=1), make_job("rigid", 4))
    harness.cycle()
    harness.submit(make_job("small", pods=3, priority=1))
    harness.cycle(1)
    assert made_room(harness) == {"elastic": "shrunk"}
    harness.submit(make_job("whole", 4, priority=2))
    harness.cycle(2)
    assert made_room(harness) == {"elastic": "shrunk", "rigid": "stopped"}


def test_of_the_gangs_that_have_to_stop_those_keep_their_floors_for_whom_these_are_still_free() -> None:
    """The newcomer needs two whole nodes of three, so one floor is in the way; the other one is not."""
    harness = contest(4, 4, 4)
    harness.submit(make_job("x", pods=5, floor=4), make_job("y", pods=7, floor=4))
    for job, pieces in (("x", [(0, 4, 15), (1, 1, 1)]), ("y", [(2, 4, 15), (1, 3, 14)])):
        rows = [(node, pods, mask, GPU, 0, 0, 1, 0) for node, pods, mask in pieces]
        harness.happen(JobStarted(0, job, np.array(rows, dtype=np.int64)))
    harness.submit(make_job("urgent", 4, pods=2, priority=1))
    harness.cycle(1)
    assert made_room(harness) == {"x": "stopped", "y": "shrunk"}
    assert set(harness.nodes_of("urgent")) == {"n0", "n1"} and harness.nodes_of("y") == ["n2"]


def test_a_lender_takes_back_what_a_queue_has_above_its_floors_and_leaves_these() -> None:
    harness = contest(8)
    harness.set_queues(make_queue("all", 0), make_queue("a", 4, parent="all"), make_queue("b", 4, parent="all"))
    harness.submit(make_job("elastic", pods=8, floor=4, queue="a"))
    harness.cycle()
    assert held(harness, "elastic") == 8
    harness.submit(make_job("owner", pods=4, queue="b"))
    plan = harness.cycle(1)
    assert [(d.job, d.by, d.why) for d in plan.decisions if isinstance(d, Shrink)] == [("elastic", "owner", "reclaim")]
    assert held(harness, "elastic") == 4
    harness.submit(make_job("more", queue="b"))
    harness.cycle(2)
    assert harness.waiting() == ["more"]


def test_whoever_may_not_stop_a_gang_may_not_shrink_it() -> None:
    for fields in ({"priority": 0}, {"priority": 1, "preemptible": False}):
        harness = contest(8)
        harness.submit(make_job("elastic", pods=8, floor=2, preemptible=fields.get("preemptible", True)))
        harness.cycle()
        harness.submit(make_job("other", priority=fields["priority"]))
        harness.cycle(1)
        assert harness.waiting() == ["other"]
    harness = contest(8, rights=Preemption(min_run_s=300))
    harness.submit(make_job("elastic", pods=8, floor=2))
    harness.cycle()
    harness.submit(make_job("urgent", priority=1))
    assert harness.cycle(SECOND).review_at == 300 * SECOND
    harness.cycle(300 * SECOND)
    assert made_room(harness) == {"elastic": "shrunk"}


def test_a_late_head_takes_back_what_overtook_it() -> None:
    """The gang started while the head waited, and with more than its floor."""
    harness = contest(8, discipline={"policy": "backfill", "timeout_s": 60})
    harness.submit(make_job("rigid", pods=4))
    harness.cycle()
    harness.submit(make_job("head", pods=6))
    harness.cycle(1)
    harness.submit(make_job("elastic", pods=8, floor=2))
    harness.cycle(2)
    assert held(harness, "elastic") == 4
    harness.finish("rigid")
    harness.now = 70 * SECOND
    harness.cycle()
    assert harness.running() == ["elastic", "head"]
    assert made_room(harness) == {"elastic": "shrunk"}


@pytest.mark.parametrize("high", [0, 1])
def test_a_gang_is_not_shrunk_where_its_floor_would_then_break_a_promise(high: int) -> None:
    """With 8 pods it ends at 100 s, when all are promised; with 4 of them only at 200 s."""
    harness = contest(8, discipline="conservative")
    harness.submit(make_job("elastic", pods=8, floor=4, estimate=100 * SECOND), runtime=100 * SECOND)
    harness.cycle()
    harness.submit(make_job("promised", pods=8, estimate=10 * SECOND, priority=high), runtime=10 * SECOND)
    if not high:
        harness.cycle(SECOND)
        assert harness.state.reserved[1].start == 100 * SECOND
    harness.submit(make_job("urgent", pods=4, estimate=20 * SECOND, priority=high), runtime=20 * SECOND)
    harness.cycle(2 * SECOND)
    if high == 0:
        assert made_room(harness) == {}
    else:
        assert made_room(harness) == {"elastic": "stopped"}  # "promised" takes it all


def test_a_gang_that_does_not_shrink_when_it_is_told_is_stopped() -> None:
    harness = contest(8)
    harness.refuse = lambda decision: isinstance(decision, Shrink)
    harness.submit(make_job("elastic", pods=8, floor=2))
    harness.cycle()
    harness.submit(make_job("urgent", pods=3, priority=1))
    harness.cycle(1)
    assert made_room(harness) == {"elastic": "stopped"}
    assert harness.running() == ["urgent"]


def test_in_a_run_a_shrunk_gang_loses_what_it_had_not_saved() -> None:
    """8 pods for 100 s, saved at 90 s: 10 s are lost. Then 4 pods until the urgent job ends, and 8 again."""
    workload = make_workload(
        "shrinks", np.array([0, 100, 100]) * SECOND, np.array([1000, 200, 1]) * SECOND, np.ones(3, dtype=np.int64),
        pods=np.array([8, 4, 9]), floor=np.array([4, 0, 0]), priority=np.array([0, 1, 0]),
    )  # fmt: skip
    lines: list[bytes] = []
    profile = make_profile(preemption=Preemption(min_run_s=0), elastic=Elastic(grow_s=50), checkpoint_s=30)
    result = simulate(workload, make_cluster(8), profile, hooks=RunHooks(journal=lines.append))
    sizes = [line for line in map(msgspec.json.decode, lines) if line["event"] in ("shrunk", "grown")]
    assert [(line["event"], line["time"] // SECOND, line.get("cost", 0) // SECOND) for line in sizes] == [
        ("shrunk", 100, 10),
        ("grown", 300, 0),
    ]
    assert result.jobs.end[0] == (300 + (8 * 1000 - 8 * 90 - 4 * 200) // 8) * SECOND
    assert result.summary["preemptions"] == 0 and result.summary["lost_gpu_s"] == 80


def test_a_gang_keeps_the_pods_that_are_in_nobodys_way() -> None:
    """On the first node two pods leave, though all six above the floor may; where memory is short, one for each."""
    for memory, asked, left in ((0, 2, 6), (300, 1, 7), (600, 1, 6)):
        harness = Harness(make_cluster(8, memory=8 * 300), make_profile(preemption=Preemption(min_run_s=0)))
        harness.submit(make_job("elastic", pods=8, floor=2, memory=300 if memory else 0))
        harness.cycle()
        harness.submit(make_job("urgent", pods=asked, memory=memory, priority=1))
        harness.cycle(1)
        assert held(harness, "elastic") == left
        assert made_room(harness) == {"elastic": "shrunk"}


def test_of_a_quota_a_gang_gives_back_what_the_newcomer_needs() -> None:
    """There is room on the second node, but the quota is used up; the gang gives back three pods of six."""
    harness = contest(8, 8)
    harness.set_queues(make_queue("a", 8, borrowing=0))
    harness.submit(make_job("elastic", pods=8, floor=2, queue="a"))
    harness.cycle()
    harness.submit(make_job("urgent", pods=3, queue="a", priority=1))
    harness.cycle(1)
    assert (held(harness, "elastic"), held(harness, "urgent")) == (5, 3)
    assert made_room(harness) == {"elastic": "shrunk"}


def test_a_profile_says_how_often_gangs_grow() -> None:
    text = builtin_texts()["kant"]
    assert parse_profile(text, "p").elastic == Elastic()
    assert parse_profile(text + "\n[elastic]\ngrow_s = -1\n", "p").elastic.grow_s == -1
    for wrong in ("grow_s = -2", "grow_s = 1.5", "shrink = 1"):
        with pytest.raises(InputError, match="p: elastic: expected a table of valid fields"):
            parse_profile(f"{text}\n[elastic]\n{wrong}\n", "p")


def test_metrics_follow_what_a_gang_holds() -> None:
    """Eight GPUs for an hour with half of them idle at first: 4 pods for 1000 s, and then 8 for 2000 s."""
    workload = make_workload(
        "half", np.array([0, 0]) * SECOND, np.array([1000, 2500]) * SECOND, np.ones(2, dtype=np.int64),
        pods=np.array([4, 8]), floor=np.array([0, 2]),
    )  # fmt: skip
    result = simulate(workload, make_cluster(8), make_profile(elastic=Elastic(grow_s=0)))
    summary, queue = result.summary, result.summary["by_queue"]["default"]
    assert summary["makespan_s"] == 3000 and summary["sor"] == 1
    assert queue["gpu_hours"] == pytest.approx((4 * 1000 + 4 * 1000 + 8 * 2000) / 3600)
    assert summary["wait_by_size"]["2-8"]["count"] == 2
    assert result.jobs.gpus.tolist() == [4 * GPU, 8 * GPU]


def pods_of(harness: Harness, job: str) -> list[int]:
    """How many pods of each of its two groups a job holds."""
    allocation = harness.state.running[harness.state.rows[job]]
    return np.bincount(allocation[:, GROUP], allocation[:, PODS], 2).astype(int).tolist()


def test_groups_that_only_cpu_tells_apart_shrink_and_grow_each_by_its_own_pods() -> None:
    rules = Preemption(min_run_s=0)
    harness = Harness(
        make_cluster(4, 4, cpu=16_000), make_profile(placement="e-binpack", preemption=rules, elastic=Elastic(grow_s=0))
    )
    lean, rich = make_group(1, 4, floor=1, cpu=1000), make_group(1, 4, floor=1, cpu=3000)
    harness.submit(make_job("gang", groups=(lean, rich)))
    harness.cycle()
    assert pods_of(harness, "gang") == [4, 4]
    held = harness.state.running[harness.state.rows["gang"]]
    assert held[:, CPU].tolist() == [int(pods) * (1000, 3000)[group] for pods, group in held[:, [PODS, GROUP]]]
    harness.submit(make_job("urgent", 1, 3, priority=5))
    harness.cycle()
    assert sum(pods_of(harness, "gang")) == 5 and min(pods_of(harness, "gang")) >= 1
    harness.finish("urgent")
    harness.cycle()
    assert pods_of(harness, "gang") == [4, 4]


def test_a_gang_of_mig_instances_shrinks_to_its_floor_and_grows() -> None:
    spec = ClusterSpec("cut", (Node("n0", 1, mig="a100-40gb"),))
    rules = Preemption(min_run_s=0)
    harness = Harness(spec, make_profile(preemption=rules, elastic=Elastic(grow_s=0)))
    demand = Demand(1, 125, mig="1g.5gb")
    harness.submit(Job("gang", 0, (PodGroup(7, demand, floor=2),)))
    harness.cycle()
    assert held(harness, "gang") == 7
    harness.submit(Job("urgent", 0, (PodGroup(3, demand),), priority=5))
    harness.cycle()
    assert (held(harness, "gang"), held(harness, "urgent")) == (4, 3)
    harness.finish("urgent")
    harness.cycle()
    assert held(harness, "gang") == 7


def test_a_gang_that_leaves_the_place_of_its_floor_leaves_it_to_others_at_once() -> None:
    """Its floor fits best on the small node, and the whole gang only on the large one, where nobody else may run."""
    nodes = Node("small", 2, leaf="a"), Node("large", 4, leaf="b", queues=("own",))
    harness = Harness(ClusterSpec("test", nodes), make_profile("fifo", "best-effort", "best-fit"))
    harness.submit(make_job("gang", 2, pods=2, floor=1, queue="own", within="leaf", within_required=True))
    harness.submit(make_job("other", 2, queue="rest"))
    plan = harness.cycle()
    assert held(harness, "gang") == 2 and harness.running() == ["gang"] and plan.review_at == 1
    harness.cycle(1)
    assert harness.running() == ["gang", "other"]
