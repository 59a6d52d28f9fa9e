"""What a solver proposes is carried out whole or not at all, and equals what was promised."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import kant

from kant.cluster.journal import read_lines
from kant.model.decision import Plan, Preempt, Start
from kant.model.errors import InputError
from kant.model.event import Event, JobProtected, JobSubmitted, NodeChanged, PlanProposed, ProposedPlace, QueuesChanged
from kant.model.placement import NODE, PODS
from kant.model.status import NodeStatus
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.model.units import HOUR, SECOND
from kant.optimize.answers import LearnedShares
from kant.optimize.defragment.wanted import wanted_leaves
from kant.optimize.proposals import propose
from kant.optimize.rounds import Rounds
from kant.scheduler.partial_gangs import decide_again
from kant.scheduler.profile import parse_profile
from kant.scheduler.proposals import carry_out_proposal
from kant.sim.replay import replay
from kant.sim.run import RunHooks, simulate
from kant.testing import Harness, make_cluster, make_job
from kant.testing.builders import make_queue
from kant.workload.workload import Workload, make_workload

PROFILE = """
[order]
policy = "fifo"

[discipline]
policy = "{}"

[placement]
policy = "e-binpack"

[simulation]
checkpoint_s = 900
resume_cost = [[1000, 30]]
"""
FALLBACK = """
[fallback]
wait_s = 600
every_s = 1200
limit_s = 0.05
moves = 4
"""
DEFRAGMENT = """
[defragment]
every_s = 300
moves = 3
floor = 0.5
gain = 1.0
"""


def harness(discipline: str = "best-effort", more: str = "", nodes: int = 2) -> Harness:
    return Harness(make_cluster(*([8] * nodes)), parse_profile(PROFILE.format(discipline) + more, "test"))


def two_halves(more: str = "", discipline: str = "best-effort") -> Harness:
    """Two nodes, half in use each by a and b, and a job that wants a whole one."""
    found = harness(discipline, more)
    for name in ("a", "x", "b", "y"):
        found.submit(make_job(name, 4))
        found.cycle()
    found.finish("x")
    found.finish("y")
    found.submit(make_job("wide", 8))
    found.cycle()
    found.now += HOUR
    return found


def on(harness: Harness, job: str) -> str:
    """The node of a job that lies on one."""
    held = harness.state.running[harness.state.rows[job]]
    return harness.state.spec.nodes[int(held[0, NODE])].name


def proposed(harness: Harness, moves: dict[str, str], starts: dict[str, str]) -> Plan:
    """What the core decides about a proposal of jobs with one pod each."""
    places = [tuple(ProposedPlace(job, {node: 1}) for job, node in jobs.items()) for jobs in (moves, starts)]
    harness.state.apply(PlanProposed(harness.now, "fallback", *places))
    return carry_out_proposal(harness.scheduler, harness.now)


def test_jobs_move_and_another_starts_where_they_were() -> None:
    there = two_halves()
    old, new = on(there, "a"), on(there, "b")
    plan = proposed(there, {"a": new}, {"wide": old})
    assert [(type(one).__name__, one.job) for one in plan.decisions] == [
        ("Preempt", "a"), ("Start", "a"), ("Start", "wide"),
    ]  # fmt: skip
    first = plan.decisions[0]
    assert isinstance(first, Preempt) and first.moved and first.why == "fallback" and first.by == "wide"
    assert plan.proposed and str(plan) == str(decide_again(there.scheduler, plan)), "replay decides it again"
    there.execute(plan)
    assert on(there, "a") == new and on(there, "wide") == old
    there.state.check()


def test_jobs_whose_places_wait_for_each_other_change_places() -> None:
    there = harness(nodes=2)
    for name, gpus in (("a", 5), ("b", 6)):
        there.submit(make_job(name, gpus))
        there.cycle()
    was = {name: on(there, name) for name in "ab"}
    plan = proposed(there, {"a": was["b"], "b": was["a"]}, {})
    assert len(plan.decisions) == 4
    there.execute(plan)
    assert (on(there, "a"), on(there, "b")) == (was["b"], was["a"])


@pytest.mark.parametrize(
    "why",
    ["ended", "protected", "not preemptible", "drained", "no room", "another start", "unknown", "twice", "min run",
     "closed", "quota"],
)  # fmt: skip
def test_what_no_longer_holds_is_dropped_whole(why: str) -> None:
    there = two_halves("\n[preemption]\nmin_run_s = 7200\n" if why == "min run" else "")
    old, new = on(there, "a"), on(there, "b")
    moves, starts, happens = {"a": new}, {"wide": old}, list[Event]()
    match why:
        case "ended":
            there.finish("a")
        case "protected":
            happens.append(JobProtected(there.now, "a", "a budget"))
        case "not preemptible":
            there.submit(make_job("stays", 1, preemptible=False))
            there.cycle()
            moves["stays"] = new
        case "drained":
            happens.append(NodeChanged(there.now, new, NodeStatus.CORDONED))
        case "no room":
            there.submit(make_job("more", 1))
            there.cycle()
        case "another start":
            starts["b"] = old
        case "unknown":
            moves["nobody"] = new
        case "twice":
            starts["a"] = new
        case "closed":
            happens.append(QueuesChanged(there.now, QueueConfig((Queue("default", state="hold"),))))
        case "quota":
            there.set_queues(make_queue("default", 12))
    for event in happens:
        there.state.apply(event)
    plan = proposed(there, moves, starts)
    assert plan.decisions == [] and plan.proposed
    there.cycle()
    there.state.check()


def test_nobody_passes_the_head_of_a_strict_queue() -> None:
    there = two_halves(discipline="strict")
    there.submit(make_job("small", 1))
    there.cycle()
    old, new = on(there, "a"), on(there, "b")
    assert not proposed(there, {}, {"small": old}).decisions
    assert proposed(there, {"a": new}, {"wide": old}).decisions


# --- simulated --------------------------------------------------------------------------------------------------------


def drawn(seed: int, jobs: int = 40) -> Workload:
    """Small jobs and some gangs, more than fit at once."""
    draw = np.random.Generator(np.random.PCG64(seed))
    pods = draw.choice([1, 1, 1, 1, 2, 3], jobs)
    gpus = np.where(pods > 1, 8, draw.choice([1, 2, 3, 4, 5, 8], jobs))
    return make_workload(
        "drawn", np.sort(draw.integers(0, 4 * 3600, jobs)) * SECOND, draw.integers(300, 3 * 3600, jobs) * SECOND,
        gpus.astype(np.int64), pods=pods.astype(np.int64), preemptible=(draw.random(jobs) < 0.8).astype(np.int64),
    )  # fmt: skip


def run(
    seed: int, discipline: str, tables: str, queues: QueueConfig | None = None
) -> tuple[list[bytes], dict[str, object]]:
    """The journal of a run on four nodes, and its summary. The state checks its invariants at the end."""
    lines: list[bytes] = []
    result = simulate(
        drawn(seed), make_cluster(8, 8, 8, 8, leaf=2), parse_profile(PROFILE.format(discipline) + tables, "test"),
        seed=seed, hooks=RunHooks(journal=lines.append), queue_config=queues,
    )  # fmt: skip
    return lines, result.summary


def promises(lines: Sequence[bytes]) -> tuple[int, int]:
    """How many proposals there were, and how many were carried out; each as it was promised."""
    nodes: tuple[str, ...] = ()
    last: PlanProposed | None = None
    seen = done = 0
    for line in read_lines(iter(lines), "journal"):
        nodes = tuple(node.name for node in line.cluster.nodes) if hasattr(line, "cluster") else nodes
        if isinstance(line, PlanProposed):
            last, seen = line, seen + 1
        if isinstance(line, Plan) and line.proposed:
            assert last is not None and line.time == last.time
            if not line.decisions:
                continue
            done += 1
            stopped = [one for one in line.decisions if isinstance(one, Preempt)]
            started = {one.job: one.allocation for one in line.decisions if isinstance(one, Start)}
            assert all(one.moved and one.why == last.by for one in stopped)
            assert [one.job for one in stopped] == [one.job for one in last.moves], "nobody stops for good"
            assert list(started) == [one.job for one in (*last.moves, *last.starts)]
            for one in (*last.moves, *last.starts):
                pods: dict[str, int] = {}
                for node, count in started[one.job][:, [NODE, PODS]].tolist():
                    pods[nodes[node]] = pods.get(nodes[node], 0) + count
                assert pods == one.pods
    return seen, done


@pytest.mark.parametrize("seed", range(4))
def test_runs_with_both_solvers_keep_their_promises_and_decide_the_same_again(seed: int) -> None:
    discipline, limited = ("strict", "best-effort", "backfill", "easy")[seed], seed % 2 == 1
    queues = QueueConfig((Queue("default", quotas=(Quota(nominal=28_000),)),)) if limited else None
    lines, summary = run(seed, discipline, FALLBACK + DEFRAGMENT, queues)
    promises(lines)
    assert sum(b'"event":"finished"' in line for line in lines) == 40 == summary["jobs"], "nobody is lost"
    if limited:
        assert run(seed, discipline, FALLBACK + DEFRAGMENT, queues)[0] == lines


@pytest.mark.parametrize(("tables", "by"), [(FALLBACK, "fallback"), (DEFRAGMENT, "defragment")])
def test_each_solver_has_something_to_do_and_the_journal_replays(tables: str, by: str, tmp_path: Path) -> None:
    lines, _ = run(3, "best-effort", tables)
    seen, done = promises(lines)
    assert seen >= done > 0
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines))
    again = replay(path)
    assert again.equal and again.difference is None
    assert f'"by":"{by}"'.encode() in path.read_bytes()
    plans = [line for line in read_lines(iter(lines), "journal") if isinstance(line, Plan) and line.proposed]
    moved = next(one.job for plan in plans for one in plan.decisions if isinstance(one, Start))
    told = [kant("explain", moved, str(path), "--start", str(n)) for n in range(1, 9)]
    assert any(f"a solver proposed it ({by})" in one.out for one in told if one.code == 0)
    assert not any("would not have started the job there" in one.out for one in told)


def test_a_future_asks_no_solver(tmp_path: Path) -> None:
    lines, _ = run(3, "best-effort", FALLBACK + DEFRAGMENT)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines))
    found = kant("whatif", str(path), "--at", "2h", "--nodes", "1", "--json").json()
    assert found["time_us"] == 2 * HOUR and found["waits"]["all"]["jobs"] > 0


def test_without_the_tables_nothing_is_proposed_and_nobody_asks() -> None:
    lines, _ = run(3, "best-effort", "")
    assert promises(lines) == (0, 0)


def test_a_fallback_without_its_solver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(InputError, match=r"kant-scheduler\[optimize\]"):
        run(3, "best-effort", FALLBACK)
    run(3, "best-effort", DEFRAGMENT)


def test_a_table_that_cannot_be_read_is_refused() -> None:
    for table, field in (("[fallback]\nwait_s = 0", "wait_s"), ("[defragment]\nbudget = 3", "budget")):
        with pytest.raises(InputError, match=field):
            parse_profile(PROFILE.format("strict") + table, "test")


def test_only_the_jobs_that_match_move() -> None:
    lines, _ = run(3, "best-effort", DEFRAGMENT + "jobs = { gpus_at_most = 4 }\n")
    asks, moved = dict[str, int](), list[str]()
    for line in read_lines(iter(lines), "journal"):
        if isinstance(line, JobSubmitted):
            asks[line.job.id] = line.job.gpu_milli
        elif isinstance(line, PlanProposed):
            moved += [one.job for one in line.moves]
    assert moved and all(asks[job] <= 4000 for job in moved)


def half_leaves(a: tuple[int, ...] = (8,)) -> Harness:
    """Two leaves of two nodes, with one node of each in use, by a (or several jobs of these sizes) and by b."""
    profile = parse_profile(PROFILE.format("best-effort") + DEFRAGMENT + "leaves = true\n", "test")
    found = Harness(make_cluster(8, 8, 8, 8, leaf=2), profile)
    for jobs in ([make_job(f"a{i}", gpus) for i, gpus in enumerate(a)], *([make_job(name, 8)] for name in "xby")):
        found.submit(*jobs)
        found.cycle()
    found.finish("x", "y")
    return found


@pytest.mark.parametrize(("a", "cheapest"), [((8,), ["a0"]), ((5, 3), ["b"]), ((4, 2), ["a0", "a1"])])
def test_the_cheapest_leaf_is_emptied_for_a_gang_that_requires_one(a: tuple[int, ...], cheapest: list[str]) -> None:
    there = half_leaves(a)
    rounds = Rounds(there.profile)
    there.submit(make_job("gang", 8, pods=2, within="leaf", within_required=True))
    there.cycle()
    assert "gang" not in there.running()
    there.now += HOUR
    assert rounds.begin(there.state, there.now) == ["defragment"] and rounds.learned.leaves[0] > 0
    found = propose("defragment", there.scheduler, there.now, LearnedShares(leaves=(1.0,)))
    assert found is not None and [one.job for one in found.moves] == cheapest
    assert len({*found.moves[0].pods}) == 1 and all(one.pods == found.moves[0].pods for one in found.moves)
    there.state.apply(found)
    there.execute(carry_out_proposal(there.scheduler, there.now))
    there.cycle()
    assert {"gang", "b", *cheapest} <= {*there.running()}
    there.state.check()


def test_no_leaf_is_emptied_where_that_does_not_help() -> None:
    def asked(there: Harness, share: float = 1.0) -> PlanProposed | None:
        there.now += HOUR
        return propose("defragment", there.scheduler, there.now, LearnedShares(leaves=(share,)))

    for pods, waits in ((1, False), (2, True), (3, True)):
        there = half_leaves()
        there.submit(make_job("gang", 8, pods=pods, within="leaf", within_required=True))
        assert wanted_leaves(there.state) == [waits and pods == 2], "of three no leaf could ever have enough"
    assert asked(half_leaves(), 0.0) is None and asked(half_leaves()) is not None
    fixed = half_leaves()
    for job in ("a0", "b"):
        fixed.happen(JobProtected(fixed.now, job, "its budget"))
    assert asked(fixed) is None
