"""How far the present is from the best: what is named starts, what is emptied is idle, and what is stranded adds up."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.cluster import columns as c
from kant.live.answers import optimality_json
from kant.live.core import Core
from kant.live.optimality import OptimalityLooks
from kant.live.solver import SolverTask, no_solver, work_out
from kant.live.telemetry import Telemetry
from kant.model.errors import InputError
from kant.model.event import JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.units import GPU
from kant.optimize.answers import Optimality
from kant.optimize.defragment.leftovers import Leftovers, Lodger, empty_nodes
from kant.optimize.optimality import optimality
from kant.scheduler.profile import builtin_profile
from kant.service.solver_process import SolverProcess
from kant.testing import Harness, make_cluster, make_job, make_profile
from kant.testing.builders import make_queue


@st.composite
def crumbled(draw: Callable[..., int]) -> Leftovers:
    """Up to four nodes of four GPUs that are in use in part; somebody on one of them may have to stay."""
    own, row = Leftovers(0), 0
    for node in range(draw(st.integers(1, 4))):
        own.gpus[node], own.lodgers[node], free = 4, [], 4
        for gpus in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):  # type: ignore[attr-defined]
            if gpus < free:
                own.lodgers[node].append(Lodger(row, node, (gpus, gpus, 0), draw(st.integers(0, 9))))
                free, row = free - gpus, row + 1
        own.free[node] = (free, 4, 0)
        if draw(st.integers(0, 4)) == 0:
            own.fixed.add(node)
    return own


def best_by_trying_all(own: Leftovers, budget: int, worth: int) -> int:
    """The most that emptied nodes are worth after what the moves cost, over all ways to place the jobs."""
    lodgers = [who for node in own.lodgers for who in own.lodgers[node]]
    best = 0
    for places in product(own.gpus, repeat=len(lodgers)):
        moved = [who for who, node in zip(lodgers, places, strict=True) if node != who.node]
        room = {n: [own.free[n][r] + sum(who.asks[r] for who in own.lodgers[n]) for r in range(3)] for n in own.gpus}
        for who, node in zip(lodgers, places, strict=True):
            for r in range(3):
                room[node][r] -= who.asks[r]
        if len(moved) <= budget and all(min(left) >= 0 for left in room.values()):
            idle = [n for n in own.gpus if n not in own.fixed and own.lodgers[n] and n not in places]
            best = max(best, worth * len(idle) - sum(who.price for who in moved))
    return best


@settings(max_examples=examples(60))
@given(crumbled(), st.integers(0, 5), st.integers(1, 30))
def test_emptied_nodes_are_idle_the_rest_has_room_and_no_other_way_gains_more_by_one_node(
    own: Leftovers, budget: int, worth: int
) -> None:
    found = empty_nodes(own, budget, lambda node, who: worth)
    assert len(found.moves) <= budget and found.price == sum(who.price for who, _ in found.moves)
    assert len({who.row for who, _ in found.moves}) == len(found.moves), "a job moves once"
    room = {node: list(free) for node, free in own.free.items()}
    left = {node: {who.row for who in lodgers} for node, lodgers in own.lodgers.items()}
    for who, target in found.moves:
        assert target not in found.emptied and who.node != target
        left[who.node].discard(who.row)
        for r in range(3):
            room[target][r] -= who.asks[r]
            room[who.node][r] += who.asks[r]
    assert all(min(amounts) >= 0 for amounts in room.values())
    assert all(not left[node] and node not in own.fixed for node in found.emptied)
    gain, best = worth * len(found.emptied) - found.price, best_by_trying_all(own, budget, worth)
    assert 0 <= gain <= best
    assert gain > 0 or best == 0, "with so few nodes all groups of them are tried"


def drawn(seed: int, queues: bool) -> Harness:
    """A small cluster in the middle of its work."""
    from kant.testing.drawn import generator

    draw = generator(seed)
    harness = Harness(
        make_cluster(4, 4, 4, 4), make_profile("fifo", "strict" if seed % 3 else "best-effort"), seed=seed
    )
    if queues:
        harness.set_queues(make_queue("default", int(draw.integers(6, 14))))
    for i in range(12):
        harness.now += 60_000_000
        harness.submit(make_job(f"j{i}", int(draw.integers(1, 5)), preemptible=bool(draw.integers(5))))
        harness.cycle()
        running = [harness.state.ids[row] for row in harness.state.running]
        if running and draw.integers(3) == 0:
            harness.finish(running[int(draw.integers(len(running)))])
    return harness


@pytest.mark.parametrize("seed", range(8))
def test_what_is_named_fits_and_what_is_stranded_adds_up(seed: int) -> None:
    harness = drawn(seed, queues=seed % 2 == 1)
    state = harness.state
    found = optimality(harness.scheduler, harness.now, 0.2)
    table = state.table
    partial = [n for n in range(len(table)) if 0 < table[n, c.FREE] < table[n, c.GPUS] * GPU]
    assert found.stranded_milli == sum(int(table[n, c.FREE]) for n in partial)
    assert all(one.gpu_milli == sum(milli for _, milli in one.jobs) for one in found.stranded)
    free = int(state.pools[0, c.P_CAPACITY] - state.pools[0, c.P_ALLOCATED])
    for packing in (found.in_place, found.with_moves):
        assert packing.gpu_milli <= free
        assert set(packing.jobs) <= {state.ids[row] for row in state.pending}
        assert all(state.jobs[state.rows[job], c.J_PREEMPTIBLE] for job in packing.moves)
        if seed % 2:
            usage = state.quota_usage.tree
            assert usage is not None and usage.usage(0, 0) + packing.gpu_milli <= usage.nominal(0, 0)
    assert not found.in_place.moves and found.in_place.gpu_milli <= found.with_moves.gpu_milli
    fit = [job for job in found.in_place.jobs if state.jobs[state.rows[job], c.J_MILLI] > max(table[:, c.FREE])]
    assert not fit, "each has one pod, which lies on one node"
    assert [gang.gpus for gang in found.gangs] == [4 * sum(table[:, c.FREE] == 4 * GPU)]
    assert optimality(harness.scheduler, harness.now, 0.2) == found


def two_halves() -> Harness:
    """Two nodes, half in use each, and a job that wants a whole one."""
    harness = Harness(make_cluster(8, 8), make_profile("fifo", "strict"))
    for name in ("a", "x", "b", "y"):
        harness.submit(make_job(name, 4))
        harness.cycle()
    harness.finish("x")
    harness.finish("y")
    harness.submit(make_job("wide", 8))
    harness.cycle()
    return harness


def test_one_move_lets_the_wide_job_start_and_both_halves_are_stranded() -> None:
    harness = two_halves()
    found = optimality(harness.scheduler, harness.now)
    assert found.in_place.jobs == () and found.in_place.proven
    assert found.with_moves.jobs == ("wide",) and len(found.with_moves.moves) == 1 and found.with_moves.share == 1
    assert (found.gangs[0].gpus, found.gangs[0].after_moves, found.gangs[0].moves) == (0, 8, 1)
    assert found.stranded_milli == 8 * GPU and dict(found.stranded[0].jobs) == {"a": 4 * GPU, "b": 4 * GPU}


def core_of(*jobs: str) -> Core:
    core = Core(ClusterSpec("c", (Node("n", 8),)), builtin_profile("kant"))
    core.settled()
    for name in jobs:
        core.happen(JobSubmitted(core.now, Job(name, core.now, (PodGroup(1, Demand(8)),))))
    return core


@pytest.mark.long
async def test_a_solver_in_another_process_says_the_same_and_one_that_dies_is_one_sentence() -> None:
    core = core_of("a", "b")
    solver = SolverProcess()
    looks = OptimalityLooks(solver)
    try:
        found = await looks.present(core)
        assert await looks.present(core) is found, "nothing has changed"
    finally:
        await solver.close()
    assert found.in_place.jobs == ("a",) and found.waiting_milli == 16 * GPU
    for broken in (SolverProcess((sys.executable, "-c", "raise SystemExit")), no_solver):
        with pytest.raises(InputError, match=r"^the solver: expected [^\n]+$"):
            await OptimalityLooks(broken).present(core)
    telemetry = Telemetry()
    telemetry.stand, telemetry.optimality = lambda: (core.state, core.now), looks.latest
    text = telemetry.text().decode()
    assert 'kant_solver_startable_ratio{moves="no"} 0.5' in text and "kant_solver_look_age_seconds" in text
    assert 'kant_largest_gang_after_moves_gpus{pool="gpu"} 8.0' in text


async def test_where_the_extra_is_absent_looks_go_on_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def here(task: SolverTask) -> bytes:
        return work_out(task)

    looks, core = OptimalityLooks(here, lambda: 0.0), core_of("a")
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    assert looks.latest() is None
    beside = asyncio.create_task(looks.keep_up(lambda: core))
    while not (looks.trouble or beside.done()):
        await asyncio.sleep(0)
    assert "kant-scheduler[optimize]" in looks.trouble and looks.latest() is None and not beside.done()
    beside.cancel()


def test_status_of_a_journal_as_text_and_as_json(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("id,submit_s,runtime_s,gpus\na,0,9000,4\nx,1,600,4\nb,2,9000,4\ny,3,600,4\nwide,60,600,8\n")
    kant("simulate", str(jobs), "--cluster", "2x8", "--profile", "fifo", "--out", str(tmp_path / "run"))
    asked = ("status", str(tmp_path / "run" / "journal.jsonl"), "--at", "20m")
    text = kant(*asked, "--optimality").out
    assert "if 1 job moves (" in text and "wide" in text and "8 GPUs are stranded" in text
    found = msgspec.json.decode(kant(*asked, "--optimality", "--json").out)
    assert found["optimality"]["startable"]["with_moves"]["share"] == 1.0
    assert msgspec.json.decode(kant(*asked, "--json").out)["optimality"] is None


def test_jobs_are_named_as_people_know_them() -> None:
    harness = two_halves()
    found: Optimality = optimality(harness.scheduler, harness.now)
    assert optimality_json(found)["startable"]["with_moves"]["jobs"] == ["wide"]
