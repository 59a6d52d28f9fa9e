"""Nodes join, leave and change while everything goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cli.command import kant
from tests.examples import examples
from tests.profiles import few

from kant.cluster.columns import GPUS, P_CAPACITY
from kant.cluster.journal import Header
from kant.cluster.state import ClusterState
from kant.model.decision import NeverFits, Reject
from kant.model.errors import StateError
from kant.model.event import (
    Event,
    GpusBooked,
    JobReserved,
    NodeDescribed,
    NodeSetChanged,
    NodesJoined,
    NodesLeft,
    QueuesChanged,
)
from kant.model.node import ClusterSpec, Node
from kant.model.status import NodeStatus
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.model.units import GPU, SECOND
from kant.scheduler.profile import builtin_profile
from kant.sim.replay import replay, rerun
from kant.testing import Harness, make_cluster, make_job

PROFILES = ("kant", "fifo", "easy", "conservative", "backfill")


def of(profile: str, *gpus: int) -> Harness:
    return Harness(make_cluster(*gpus), builtin_profile(profile))


@pytest.mark.parametrize("profile", PROFILES)
def test_a_node_that_joins_is_offered_at_once(profile: str) -> None:
    harness = of(profile, 2)
    harness.submit(make_job("fills", 2), make_job("waits", 2))
    harness.cycle()
    harness.join(Node("new", 2))
    harness.cycle()
    assert harness.nodes_of("waits") == ["new"]


@pytest.mark.parametrize("profile", PROFILES)
def test_spare_rows_from_the_start_change_no_decision_and_are_what_nodes_that_join_get(profile: str) -> None:
    places, layouts = [], []
    for grows in (False, True):
        harness = Harness(replace(make_cluster(2, 4), grows=grows), builtin_profile(profile))
        harness.submit(*(make_job(f"j{i}", gpus) for i, gpus in enumerate((1, 4, 2, 3, 1))), make_job("huge", 9))
        harness.cycle()
        harness.join(Node("new", 4, leaf="far"))
        harness.cycle()
        harness.join(Node("next", 2, spine="far"))
        harness.cycle()
        harness.state.check()
        places.append({job: harness.nodes_of(job) for job in harness.running()})
        layouts.append(harness.state.layout)
    assert places[0] == places[1] and ["new"] in places[0].values()
    assert layouts == [1, 0]


def test_a_placer_is_not_used_on_after_the_table_was_laid_out_anew() -> None:
    harness = of("kant", 2)
    before = harness.scheduler.placer
    harness.join(Node("wide", 4))
    with pytest.raises(StateError, match="last rebuild of the table"):
        before.snapshot.refresh(harness.now)
    harness.submit(make_job("wide", 4))
    harness.cycle()
    assert harness.nodes_of("wide") == ["wide"] and harness.scheduler.placer is not before


@pytest.mark.parametrize("profile", PROFILES)
def test_a_job_that_lost_its_node_goes_to_another_and_waits_for_it_where_there_is_none(profile: str) -> None:
    harness = of(profile, 2, 4)
    harness.submit(make_job("small", 2), make_job("large", 4))
    harness.cycle()
    harness.leave("n1")
    for _ in range(3):
        harness.cycle(harness.now + 100 * SECOND)
    assert harness.waiting() == ["large"], "no node is left that takes it: it waits for n1"
    harness.join(Node("n1", 4))
    harness.cycle(harness.now + 4000 * SECOND)
    assert harness.nodes_of("large") == ["n1"]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_job_that_only_a_node_which_left_could_take_waits_and_others_are_rejected(profile: str) -> None:
    harness = of(profile, 2, 4)
    harness.leave("n1")
    harness.submit(make_job("large", 4), make_job("huge", 5))
    plan = harness.cycle()
    rejected = {one.job: type(one.reason) for one in plan.decisions if isinstance(one, Reject)}
    assert rejected == {"huge": NeverFits} and harness.waiting() == ["large"]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_waiting_job_for_which_a_node_is_too_small_from_now_on_is_rejected(profile: str) -> None:
    harness = of(profile, 2, 4)
    harness.submit(make_job("runs", 2), make_job("also", 4), make_job("large", 4))
    harness.cycle()
    harness.evict(*harness.jobs_on("n1"))
    harness.describe(Node("n1", 3))
    harness.cycle(harness.now + 100 * SECOND)
    assert {"also", "large"}.isdisjoint(harness.waiting())


def test_what_runs_on_a_node_that_is_described_anew_stays() -> None:
    harness = of("kant", 4)
    harness.submit(make_job("whole", 2), make_job("share", milli=500))
    harness.cycle()
    before = [harness.state.running[row].tolist() for row in harness.state.running]
    harness.describe(Node("n0", 8, cpu=9000, memory=2048, queues=("team",), leaf="far"))
    harness.lose("n0", 7)
    harness.describe(Node("n0", 9))
    assert [harness.state.running[row].tolist() for row in harness.state.running] == before
    assert harness.state.table[0, GPUS] == 8, "a lost GPU stays lost"
    harness.finish("whole", "share")
    assert int(harness.state.pools[:, P_CAPACITY].sum()) == 8 * GPU


@pytest.mark.parametrize(
    "node",
    [Node("n0", 1), Node("n0", 4, cpu=999), Node("n0", 4, memory=255), Node("n0", 4, nvlink=2)],
    ids=["GPUs", "CPU", "memory", "islands"],
)
def test_a_description_that_what_is_held_would_not_fit_is_refused(node: Node) -> None:
    harness = of("kant", 4)
    harness.submit(make_job("j", 2, cpu=1000, memory=256))
    harness.cycle()
    table = harness.state.table.copy()
    with pytest.raises(StateError, match="less than jobs hold"):
        harness.describe(node)
    assert np.array_equal(table, harness.state.table)


def test_a_node_on_which_a_job_lies_that_takes_nothing_does_not_leave() -> None:
    harness = of("kant", 1)
    harness.submit(make_job("nothing", 0))
    harness.cycle()
    assert harness.nodes_of("nothing") == ["n0"]
    with pytest.raises(StateError, match="holds resources"):
        harness.happen(NodesLeft(harness.now, ("n0",)))


def test_a_row_is_for_its_node_then_for_one_like_it_and_the_table_grows_for_others() -> None:
    state = ClusterState(make_cluster(2, 2, 4))
    state.apply(NodesLeft(0, ("n0", "n1", "n2")))
    state.apply(NodesJoined(0, (replace(state.nodes[1], name="like"), Node("n0", 2))))
    assert state.node_index == {"n0": 0, "like": 1}
    state.apply(NodesJoined(0, (Node("other", 3), Node("n2", 4))))
    assert state.node_index == {"n0": 0, "like": 1, "n2": 2, "other": 3} and len(state.table) == 6
    state.check()


def test_a_row_of_which_somebody_has_booked_gpus_is_kept_for_its_node() -> None:
    state = ClusterState(make_cluster(2, 2))
    state.apply(GpusBooked(0, "demo", 10, 20, np.array([[0, 1, 3, 1000, 0, 0, 2]], dtype=np.int64)))
    state.apply(NodesLeft(0, ("n0",)))
    state.apply(NodesJoined(0, (Node("like", 2),)))
    assert state.node_index["like"] != 0


def test_a_node_that_was_ill_when_it_left_is_well_when_it_comes_back() -> None:
    harness = of("kant", 2, 2)
    harness.lose("n0", 0)
    harness.fail("n1")
    harness.leave("n0", "n1")
    harness.join(*harness.state.nodes)
    assert harness.state.table[:, GPUS].tolist() == [2, 2] and not harness.state.health.lost


def test_a_promise_on_a_node_that_leaves_is_void() -> None:
    harness = of("easy", 2, 2)
    harness.submit(make_job("waits", 2))
    harness.happen(JobReserved(0, "waits", 10, 20, np.array([[1, 1, 3, 1000, 0, 0, 2]], dtype=np.int64)))
    harness.leave("n1")
    assert not harness.state.reserved


def test_a_node_that_comes_back_is_in_its_sets_and_another_in_its_row_is_not() -> None:
    state = ClusterState(make_cluster(2, 2))
    state.apply(NodeSetChanged(0, "s", ("n0", "n1")))
    state.apply(NodesLeft(0, ("n0", "n1")))
    n0, n1 = state.nodes
    state.apply(NodesJoined(0, (replace(n1, name="new"), n0)))
    assert state.node_index == {"n0": 0, "new": 1} and state.shapes.node_sets.nodes("s") == [0]


def test_quotas_follow_the_model_of_a_node_under_a_job_without_gpus() -> None:
    harness = Harness(ClusterSpec("two", (Node("a", 0, cpu=4000), Node("b", 2, "A100", cpu=4000))))
    quotas = (Quota("cpu", nominal=4000, model="A100"),)
    harness.happen(QueuesChanged(0, QueueConfig((Queue("team", quotas=quotas),))))
    harness.submit(make_job("cpu", 0, cpu=1000, queue="team"))
    harness.cycle()
    (on,) = harness.nodes_of("cpu")
    harness.describe(Node(on, 0, "H800" if on == "a" else "", cpu=4000))
    harness.state.check()


@pytest.mark.parametrize("profile", few())
def test_every_shipped_profile_uses_nodes_that_join_and_leaves_those_that_leave(profile: str) -> None:
    harness = Harness(make_cluster(4, 4), builtin_profile(profile))
    for turn in range(6):
        harness.join(Node(f"x{turn}", 4, leaf=f"leaf{turn % 2}"))
        harness.submit(*(make_job(f"j{turn}-{i}", 2, user=f"u{i}") for i in range(3)), runtime=900 * SECOND)
        harness.cycle(harness.now + 60 * SECOND)
        if turn > 2:
            harness.leave(f"x{turn - 3}")
    harness.run(until=harness.now + 90_000 * SECOND)
    left = set(harness.state.node_index)
    assert left == {"n0", "n1", "x3", "x4", "x5"} and not harness.waiting()


@given(st.lists(st.tuples(st.integers(0, 5), *[st.sampled_from(("", "a", "b", "c"))] * 4), max_size=30))
@settings(max_examples=examples(60), deadline=None)
def test_domains_are_kept_apart_by_small_numbers_wherever_nodes_move(
    moves: list[tuple[int, str, str, str, str]],
) -> None:
    state = ClusterState(make_cluster(*[2] * 6))
    for row, superspine, spine, leaf, hbd in moves:
        node = replace(state.nodes[row], superspine=superspine, spine=spine, leaf=leaf, hbd=hbd)
        state.apply(NodeDescribed(0, node))
        state.check()


def test_a_gang_is_kept_in_one_leaf_where_nodes_have_moved_from_leaf_to_leaf() -> None:
    nodes = tuple(Node(f"n{i}", 2, leaf=leaf) for i, leaf in enumerate("aabb"))
    harness = Harness(ClusterSpec("two leaves", nodes), builtin_profile("kant"))

    def placed(*pods: int) -> set[tuple[str, ...]]:
        jobs = [make_job(f"j{harness.now}-{n}", 2, n, within="leaf", within_required=True) for n in pods]
        harness.submit(*jobs)
        harness.cycle(harness.now + SECOND)
        found = {tuple(sorted(harness.nodes_of(job.id))) for job in jobs}
        harness.finish(*(job.id for job in jobs))
        return found

    def move(name: str, leaf: str) -> None:
        harness.describe(replace(harness.state.nodes[harness.state.node_index[name]], leaf=leaf))

    assert placed(2) <= {("n0", "n1"), ("n2", "n3")}
    move("n1", "b")
    assert placed(3) == {("n1", "n2", "n3")}
    move("n2", "a")
    move("n3", "a")
    assert placed(3) == {("n0", "n2", "n3")}
    assert harness.state.layout == 0, "no node has come for which the table has no row"


# --- in a simulated run -------------------------------------------------------------------------------------------

STATES = """time_s,node,state
0,n1,left
100,n1,in-service
250,n1,left
300,n0,failed
340,n0,in-service
"""


def autoscaled(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """Two nodes of 4 GPUs; the second is there from 100 s to 250 s. Four jobs of 4 GPUs and 120 s come at time 0."""
    for name, text in (
        ("cluster.toml", '[[nodes]]\ncount = 2\ngpus = 4\nname = "n{index}"\n'),
        ("jobs.csv", "id,submit_s,runtime_s,gpus\n" + "".join(f"j{i},0,120,4\n" for i in range(4))),
        ("states.csv", STATES),
    ):
        (tmp_path / name).write_text(text)
    words = ("--cluster", tmp_path / "cluster.toml", "--profile", "fifo", "--faults", tmp_path / "states.csv")
    done = kant("simulate", tmp_path / "jobs.csv", *words, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    return json.loads((tmp_path / "run" / "summary.json").read_text()), tmp_path / "run" / "journal.jsonl"


def test_gpu_seconds_are_counted_over_the_nodes_that_are_there(tmp_path: Path) -> None:
    """Counted by hand: four jobs run 120 s, the last 30 s on n1, which leaves, 50 s on n0, which fails, and 40 s."""
    summary, journal = autoscaled(tmp_path)
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    starts = [(e["job"], e["time"] // SECOND, e["allocation"][0][0]) for e in events if e["event"] == "started"]
    assert starts == [("j0", 0, 0), ("j1", 100, 1), ("j2", 120, 0), ("j3", 220, 1), ("j3", 250, 0), ("j3", 340, 0)]
    allocated = 3 * 120 + 30 + 50 + 40
    assert summary["sor"] == pytest.approx(allocated / (380 - 40 + 150)), "n0 up to the end but for 40 s, n1 for 150 s"
    assert summary["sor_all_nodes"] == pytest.approx(allocated / (380 + 150))


def test_a_run_in_which_nodes_join_and_leave_replays_and_runs_again(tmp_path: Path) -> None:
    _, journal = autoscaled(tmp_path)
    again = replay(journal)
    assert again.equal and again.result.summary["sor_all_nodes"] == pytest.approx(
        autoscaled(tmp_path)[0]["sor_all_nodes"]
    )
    assert [1, NodeStatus.RETIRED.value] in again.result.service[:, 1:3].tolist()
    assert rerun(again, builtin_profile("fifo")).summary["digest"] == again.recorded
    assert rerun(again, builtin_profile("kant")).summary["jobs"] == 4


def test_another_run_meets_nodes_that_its_cluster_never_had(tmp_path: Path) -> None:
    """As in the journal of a live cluster: a node joins that the header does not have, and changes."""
    harness, lines = Harness(make_cluster(2), builtin_profile("fifo")), list[bytes]()
    harness.journal.sink = lines.append
    harness.journal.write(Header("0", "live", "fifo", 0, harness.state.spec))
    write, apply = harness.journal.write, harness.happen

    def happen(event: Event) -> None:
        write(event)
        apply(event)

    harness.happen = happen  # type: ignore[method-assign]
    harness.submit(make_job("a", 2), make_job("b", 4), runtime=100 * SECOND)
    harness.cycle()
    harness.now = SECOND
    harness.join(Node("new", 4))
    harness.submit(make_job("c", 4), runtime=100 * SECOND)
    harness.cycle(SECOND)
    harness.now = 2 * SECOND
    harness.describe(replace(harness.state.nodes[harness.state.node_index["new"]], leaf="far"))
    harness.run(until=500 * SECOND)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(lines))
    again = replay(path)
    assert again.equal
    assert rerun(again, builtin_profile("kant")).summary["jobs"] == 3
    assert {node.name for node in again.result.cluster.nodes} == {"n0", "new"}


# --- what an event costs -----------------------------------------------------------------------------------------


def calls_of(run: Callable[[], object]) -> int:
    """How many Python functions are called."""
    count = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("what", ["joined", "left", "described"])
def test_an_event_for_one_node_costs_the_same_in_a_large_cluster_and_the_cycle_after_it_too(what: str) -> None:
    def cost(nodes: int) -> int:
        harness = Harness(make_cluster(*[8] * nodes), builtin_profile("kant"), check=False)
        harness.join(Node("more", 8), Node("gone", 8))
        harness.leave("gone")
        harness.submit(*(make_job(f"j{i}", 8) for i in range(3)))
        harness.cycle()
        last, now = harness.state.nodes[nodes - 1], harness.now
        events: dict[str, Event] = {
            "joined": NodesJoined(now, (Node("gone", 8),)),
            "left": NodesLeft(now, (last.name,)),
            "described": NodeDescribed(now, replace(last, cpu=64_000)),
        }
        harness.submit(make_job("last", 8))

        def happen() -> None:
            harness.state.apply(events[what])
            harness.scheduler.cycle(now)

        return calls_of(happen)

    cost(10)  # what is compiled is loaded when it is first called
    assert cost(1000) == cost(100)
