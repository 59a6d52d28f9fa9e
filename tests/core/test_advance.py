"""Runs whose instants pass in one compiled call say all that they say when Python decides each instant."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from benchmarks.traces import saturated
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.examples import examples

from kant.cluster import columns as c
from kant.compiled import compiling_ahead
from kant.metrics.result import RunResult
from kant.model.event import JobCancelled, NodeChanged
from kant.model.node import ClusterSpec, Node
from kant.model.status import NodeStatus
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.model.units import FOREVER, GPU, SECOND
from kant.queueing.disciplines.backfill import Backfill
from kant.scheduler.profile import Profile, builtin_profile, parse_profile
from kant.sim import happened as h
from kant.sim.advancer import Advancer
from kant.sim.ends import NOT_RUNNING, add_end, next_end, take_due
from kant.sim.evict import BACKFILL, MOVED
from kant.sim.jobs import Arrivals, Gangs
from kant.sim.options import read_options
from kant.sim.reserve import WAITS
from kant.sim.run import Run, RunHooks
from kant.workload.workload import Workload, make_workload

NODES = tuple(Node(f"n{i}", 4, cpu=32_000, leaf=f"l{i // 2}", queues=("own",) if i == 3 else ()) for i in range(4))
CLUSTER = ClusterSpec("four", NODES)
SJF = 'about = ""\n[order]\npolicy = "sjf"\n[discipline]\npolicy = "strict"\n[placement]\npolicy = "worst-fit"'
EVICTS = SJF.replace('"strict"', '"best-effort"').replace('"sjf"', '"srsf"') + "\n[preemption]\nmin_run_s = 0"
BACKFILLS = EVICTS.replace('"srsf"', '"fifo"').replace(
    '"best-effort"', '"backfill"\ntimeout_s = 20\nsmall_timeout_s = 45\nlarge_gpus = 4'
)
LATE = BACKFILLS.replace('"worst-fit"', '"kant"').replace("min_run_s = 0", "min_run_s = 15")
HOLDS = BACKFILLS.replace("timeout_s = 20", "timeout_s = 20\nhold_s = 12\nhold_fixed_s = 40", 1)
SOON_LATE = parse_profile(
    LATE.replace("timeout_s = 20\nsmall_timeout_s = 45", "timeout_s = 5\nsmall_timeout_s = 5\nhold_s = 0"), "soon-late"
)
PATIENT = parse_profile(EVICTS.replace("min_run_s = 0", "min_run_s = 40"), "patient")
UNGUARDED = LATE[: LATE.index("\n[preemption]")].replace("timeout_s = 20", "keeps_priority = false\ntimeout_s = 0")
PROFILES = [
    builtin_profile("fifo"), builtin_profile("fifo-best-effort"), parse_profile(SJF, "sjf"),
    parse_profile(EVICTS, "evicts"), builtin_profile("kant-placement"),
    builtin_profile("kant"), parse_profile(BACKFILLS, "backfills"), parse_profile(LATE, "late"),
    parse_profile(UNGUARDED, "unguarded"), parse_profile(HOLDS, "holds"), builtin_profile("backfill"),
    parse_profile(HOLDS.replace("min_run_s = 0", 'min_run_s = 9\nreclaim = "off"'), "holds-and-keeps"),
    parse_profile(HOLDS.replace("min_run_s = 0", "min_run_s = 9\nmost = 1.0\nexact = 1"), "few"),
]  # fmt: skip


@st.composite
def tenants(draw: st.DrawFn) -> QueueConfig:
    """The queues of the workloads in a small tree, some with quotas; or none."""

    def quota() -> tuple[Quota, ...]:
        some = st.sampled_from([0, 2, 4, 8])
        lending, borrowing = draw(st.sampled_from([(-1, -1), (2 * GPU, -1), (-1, 3 * GPU), (0, GPU)]))
        return (Quota(nominal=draw(some) * GPU, lending_limit=lending, borrowing_limit=borrowing),)

    if draw(st.integers(0, 3)) == 0:
        return QueueConfig()
    above = Queue("all", quotas=(Quota(nominal=draw(st.sampled_from([0, 8, 16])) * GPU),))
    least = draw(st.sampled_from([0, 0, 20])) * SECOND
    own = [Queue(name, draw(st.sampled_from(["all", "all", ""])), quotas=quota(), min_run=least) for name in ("a", "b")]
    return QueueConfig((above, *own, Queue("own", "all")))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Jobs that often come at once, in queues and priorities; some are special, or never fit."""
    n = draw(st.integers(1, 40))
    seed = np.random.Generator(np.random.PCG64(draw(st.integers(0, 1 << 30))))
    rare = draw(st.sampled_from([0.0, 0.1]))
    special = seed.random(n) < rare
    return make_workload(
        "drawn",
        np.cumsum(seed.integers(0, 3, n)) * draw(st.integers(1, 40)) * SECOND,
        seed.integers(0, 60, n) * SECOND,
        np.where(special, seed.choice([0, 20], n), seed.choice([1, 1, 2, 4, 5, 7, 9], n)),
        pods=np.where(seed.random(n) < 0.2, seed.integers(0, 3, n), 0) * (seed.random() < 0.5),
        priority=seed.integers(0, draw(st.integers(1, 3)), n),
        queue=seed.integers(0, 4, n),
        queues=("a", "b", "own", "a"),
        user=seed.integers(0, 3, n),
        users=("u", "v", "w"),
        limit=np.where((seed.random(n) < rare / 2), 30 * SECOND, -1),
        due=np.where(seed.random(n) < 0.3, 90 * SECOND, -1),
        preemptible=seed.integers(0, 2, n),
    )


def run(
    workload: Workload, profile: Profile, until: int, external: list[Any], lines: list[bytes] | None,
    queues: QueueConfig,
) -> RunResult:  # fmt: skip
    """One run to `until`, then to the end; with `lines` it writes a journal there, and keeps all intervals."""
    options = read_options(profile.simulation, "the test")
    keeps = lines is not None
    hooks = RunHooks(journal=None if lines is None else lines.append, keep_intervals=keeps)
    made = Run(workload.name, CLUSTER, profile, options, 0, FOREVER, hooks, queues)
    made.external.extend(external)
    coming = Arrivals(workload, Gangs(CLUSTER, False), options)
    made.advance(until, coming)
    made.state.check()
    coming.at = len(made.state.ids)  # a run that stops has looked at the next one
    made.until = FOREVER
    result = made.result(coming, len(workload))
    result.summary.update(cpu_s=0, jobs_per_cpu_s=0, peak_rss_mib=0)
    state = made.state
    result.summary["state"] = (
        list(state.live), list(state.running), state.ids, state.queues, state.users, state.arrivals, state.now,
        state.quota_usage.held, state.capacity_version > 0, state.table.tolist(), made.last,
    )  # fmt: skip
    jobs = state.jobs[: len(state.ids)].copy()
    numbered = [c.J_SHAPE, c.J_PIECE, c.J_PIECES]  # in another order where Python decides
    result.summary["rows"] = np.delete(jobs, numbered, axis=1).tolist()
    return result


def at_once(*jobs: tuple[int, int, int, int]) -> Workload:
    """Jobs as (submission, run time, GPUs, priority), in seconds."""
    submit, runtime, gpus, priority = np.array(jobs, dtype=np.int64).T
    return make_workload("few", submit * SECOND, runtime * SECOND, gpus, priority=priority)


URGENT_LAST = at_once((1, 9, 1, 0), (1, 9, 1, 1))
GANG_BEHIND_THE_FIRST = at_once(
    (0, 30, 4, 0), (0, 40, 4, 0), (0, 9, 2, 0), (3, 6, 2, 0), (3, 9, 2, 0), (3, 30, 5, 0)
)  # fmt: skip
"""The second of the jobs that come last waits, and behind it a gang of two groups, which is not tried."""
ENDS_AS_ONE_COMES_IN_VAIN = at_once((0, 10, 1, 0), (1, 30, 1, 0), (10, 5, 12, 0), (12, 5, 1, 0))

OVERTAKEN = ((0, 25, 4, 0), (1, 50, 12, 0), (2, 100, 4, 0), (19, 300, 4, 0))
"""The second is late when there is no room for it whoever stops, then waits for the last to have run long enough."""
OVERTAKEN_AGAIN = at_once(*OVERTAKEN, (25, 60, 4, 0))
"""The last starts as the first ends: in that plan the head has room without those that run, and that one."""
BY_ONE_THAT_STAYS = replace(OVERTAKEN_AGAIN, preemptible=np.array([1, 1, 1, 0, 1]))
URGENT_EVICTS = at_once((0, 100, 12, 0), (40, 50, 12, 1))
SERVED_AS_OTHERS_START = at_once(
    (0, 21, 4, 0), (0, 3, 4, 0), (0, 4, 4, 0), (1, 50, 8, 0), (2, 100, 4, 0), (2, 100, 4, 0), (5, 30, 4, 0),
    (6, 30, 4, 0),
)  # fmt: skip
"""As the first ends the seventh starts, the last is told that it waits, and the gang takes the place of two others."""
STARTS_AS_THE_HEAD_FAILS = at_once((0, 60, 8, 0), (0, 3, 4, 0), (1, 30, 12, 0), (2, 300, 4, 0), (3, 300, 8, 0))
"""The last starts as the first ends; nothing else happens until the gang may take its place."""
STAYS_AS_THE_HEAD_FAILS = replace(
    at_once((0, 60, 8, 0), (0, 3, 4, 0), (1, 30, 12, 0), (2, 300, 4, 0), (3, 300, 8, 0), (60, 9, 4, 0)),
    preemptible=np.array([1, 1, 1, 1, 0, 1]),
)
"""Who starts then may not be stopped, and who comes then waits."""

KEYS_OF_TWO_PRIORITIES = replace(
    at_once((2, 30, 5, 0), (6, 5, 4, 1), (8, 1, 4, 1), (8, 5, 4, 1)),
    queue=np.array([0, 0, 0, 1]), queues=("a", "b"), preemptible=np.array([0, 1, 1, 1]),
)  # fmt: skip
"""From the second job on each bucket has a key of its own, so the last is told that it waits, as the second was."""

NO_QUEUES = QueueConfig()
QUEUE_TAKES_QUOTA = replace(
    at_once((0, 99, 4, 0), (0, 10, 4, 0), (0, 12, 4, 0), (1, 50, 8, 0), (10, 99, 4, 0), (23, 60, 1, 0)),
    queue=np.array([1, 1, 1, 0, 1, 0]), queues=("a", "b"),
)  # fmt: skip
"""The gang is late at 21 s, when it may stop the fifth from 25 s on. The last takes the quota of its queue first."""
TWO_QUEUES = QueueConfig(
    (
        Queue("all"),
        *(Queue(name, "all", quotas=(Quota(nominal=nominal * GPU),)) for name, nominal in (("a", 8), ("b", 16))),
    )
)


@pytest.mark.long
@example(at_once(*OVERTAKEN), PROFILES[7], True, 0, "", NO_QUEUES)
@example(OVERTAKEN_AGAIN, PROFILES[7], True, 0, "", NO_QUEUES)
@example(BY_ONE_THAT_STAYS, PROFILES[7], False, 0, "", NO_QUEUES)
@example(STARTS_AS_THE_HEAD_FAILS, PROFILES[7], True, 0, "", NO_QUEUES)
@example(STARTS_AS_THE_HEAD_FAILS, PROFILES[6], True, 0, "", NO_QUEUES)
@example(STAYS_AS_THE_HEAD_FAILS, PROFILES[7], True, 0, "", NO_QUEUES)
@example(URGENT_EVICTS, PROFILES[7], False, 0, "", NO_QUEUES)
@example(SERVED_AS_OTHERS_START, PROFILES[7], True, 0, "", NO_QUEUES)
@example(QUEUE_TAKES_QUOTA, PROFILES[7], True, 0, "", TWO_QUEUES)
@example(KEYS_OF_TWO_PRIORITIES, PROFILES[5], True, 0, "", NO_QUEUES)
@example(URGENT_LAST, PROFILES[0], True, 0, "", NO_QUEUES)
@example(GANG_BEHIND_THE_FIRST, PROFILES[2], True, 0, "", NO_QUEUES)
@example(ENDS_AS_ONE_COMES_IN_VAIN, PROFILES[0], True, 0, "", NO_QUEUES)
@settings(max_examples=examples(50), deadline=None)
@given(
    workloads(),
    st.sampled_from(PROFILES),
    st.booleans(),
    st.integers(0, 60),
    st.sampled_from(["", "node", "job"]),
    tenants(),
)
def test_all_is_said_as_if_python_decided_each_instant(
    workload: Workload, profile: Profile, journal: bool, until: int, happens: str, queues: QueueConfig
) -> None:
    at = int(workload.submit[len(workload) // 2])
    events: dict[str, list[Any]] = {
        "": [], "node": [NodeChanged(at, "n0", NodeStatus.FAILED)], "job": [JobCancelled(at, workload.ids[0])],
    }  # fmt: skip
    told, passed, results = [], 0, []
    go = Advancer.go

    def count(self: Advancer, arrival: Any, end: int) -> Any:
        nonlocal passed
        found = go(self, arrival, end)
        passed += found[0]
        return found

    for may in (Advancer.may_advance, lambda run: False):
        lines: list[bytes] | None = [] if journal else None
        with patch.object(Advancer, "may_advance", may), patch.object(Advancer, "go", count):
            results.append(run(workload, profile, until * SECOND, list(events[happens]), lines, queues))
        told.append(lines)
    assume(passed > 0)
    assert told[0] == told[1]
    one, two = results
    mine, theirs = np.array(one.summary.pop("rows")), np.array(two.summary.pop("rows"))
    assert [(*at, mine[*at], theirs[*at]) for at in np.argwhere(mine != theirs).tolist()] == []
    assert one.summary == two.summary
    for mine, theirs in zip(astuple(one.series), astuple(two.series), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(one.intervals, two.intervals)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40), st.integers(0, 9))
def test_jobs_end_in_order_of_time_and_row(runs: list[tuple[int, bool]], now: int) -> None:
    heap, due = np.zeros((len(runs) + 1, 2), dtype=np.int64), np.zeros(len(runs) + 1, dtype=np.int64)
    ends = np.full(len(runs), NOT_RUNNING, dtype=np.int64)
    for row, (end, stops) in enumerate(runs):
        add_end(heap, ends, row, end)
        if stops:
            ends[row] = NOT_RUNNING
    there = sorted((end, row) for row, (end, stops) in enumerate(runs) if not stops)
    assert next_end(heap, ends) == (there[0][0] if there else FOREVER)
    count = take_due(heap, ends, now, due)
    assert due[1 : count + 1].tolist() == [row for end, row in there if end <= now]
    assert due[0] == next((end for end, _ in there if end > now), FOREVER)


def assert_decided_alike(workload: Workload, profile: Profile, queues: QueueConfig) -> None:
    """Assert that a run writes the journal that it writes when Python decides each instant."""
    written = []
    for may in (Advancer.may_advance, lambda run: False):
        lines: list[bytes] = []
        with patch.object(Advancer, "may_advance", may):
            run(workload, profile, 0, [], lines, queues)
        written.append(lines)
    assert written[0] == written[1]


@pytest.mark.parametrize(("seed", "name"), [(2, "late"), (17, "late"), (5, "patient")])
def test_a_full_cluster_of_three_queues_is_decided_alike(seed: int, name: str) -> None:
    """Jobs of three priorities lend, borrow and reclaim; in such worlds each rule of the compiled instants matters."""
    draw, n = np.random.Generator(np.random.PCG64(seed)), 60
    workload = make_workload(
        "dense", np.cumsum(draw.integers(0, 3, n)) * 5 * SECOND, draw.integers(5, 150, n) * SECOND,
        draw.choice([1, 1, 2, 4, 4, 8], n), priority=draw.integers(0, 3, n), queue=draw.integers(0, 3, n),
        queues=("a", "b", "own"), preemptible=(draw.random(n) < 0.9).astype(int),
    )  # fmt: skip
    shares = [
        Queue(name, "all", quotas=(Quota(nominal=gpus * GPU),)) for name, gpus in (("a", 6), ("b", 6), ("own", 4))
    ]
    profile = next(one for one in (*PROFILES, PATIENT) if one.name == name)
    assert_decided_alike(workload, profile, QueueConfig((Queue("all"), *shares)))


@pytest.mark.parametrize("seed", [2, 4, 12, 15, 26])
def test_late_heads_under_quotas_are_decided_alike(seed: int) -> None:
    """Heads of four queues are soon late, in quota or not; some of the jobs that passed them are protected.

    4: a gang that Python places is evicted.
    """
    draw, n = np.random.Generator(np.random.PCG64(seed)), 60
    workload = make_workload(
        "late", np.cumsum(draw.integers(0, 3, n)) * int(draw.integers(1, 12)) * SECOND,
        draw.integers(5, 200, n) * SECOND, draw.choice([1, 1, 2, 4, 5, 8, 8], n),
        pods=np.where(draw.random(n) < 0.2, draw.integers(1, 4, n), 0), priority=draw.integers(0, 1 + seed % 2, n),
        queue=draw.integers(0, 4, n), queues=("a", "b", "own", "c"), preemptible=(draw.random(n) < 0.9).astype(int),
    )  # fmt: skip
    own = [
        Queue(
            name, "all", quotas=(Quota(nominal=int(draw.integers(0, 10)) * GPU),),
            min_run=int(draw.choice([0, 0, 40])) * SECOND,
        )
        for name in ("a", "b", "own", "c")
    ]  # fmt: skip
    assert_decided_alike(workload, SOON_LATE, QueueConfig((Queue("all"), *own)))


@pytest.mark.parametrize("seed", [36, 213])
def test_late_heads_and_rights_of_all_kinds_are_decided_alike(seed: int) -> None:
    """Drawn from all that late heads depend on. 36: a head may preempt more since a job of its own queue has stopped.

    213: a profile that evicts nobody looks again at nothing, though jobs have several priorities.
    """
    draw = np.random.Generator(np.random.PCG64(seed))
    n, priorities = int(draw.integers(20, 90)), int(draw.integers(1, 4))
    workload = make_workload(
        "dense", np.cumsum(draw.integers(0, 3, n)) * int(draw.integers(1, 12)) * SECOND,
        draw.integers(5, int(draw.integers(20, 400)), n) * SECOND, draw.choice([1, 1, 2, 4, 5, 8, 8], n),
        pods=np.where(draw.random(n) < 0.4, draw.integers(1, 4, n), 0) * (draw.random() < 0.5),
        priority=draw.integers(0, priorities, n), queue=draw.integers(0, 4, n), queues=("a", "b", "own", "c"),
        preemptible=(draw.random(n) < draw.choice([0.5, 0.9, 1.0])).astype(int),
    )  # fmt: skip

    def quota() -> tuple[Quota]:
        nominal, borrowing = int(draw.integers(0, 10)), int(draw.choice([-1, -1, 3 * GPU]))
        return (
            Quota(nominal=nominal * GPU, borrowing_limit=borrowing, lending_limit=int(draw.choice([-1, -1, 2 * GPU]))),
        )

    def least() -> int:
        return int(draw.choice([0, 0, 0, 15])) * SECOND

    root = Queue("all", quotas=(Quota(nominal=int(draw.choice([0, 0, 16])) * GPU),))
    a, b = (Queue(name, "all", quotas=quota(), min_run=least()) for name in ("a", "b"))
    own = Queue("own", str(draw.choice(["all", ""])), quotas=quota() if draw.random() < 0.7 else ())
    c = Queue("c", "b" if draw.random() < 0.3 else "all", quotas=quota())
    profile = next(one for one in PROFILES if one.name == ("holds" if seed == 36 else "backfill"))
    assert isinstance(profile.discipline, Backfill)
    discipline = Backfill(
        timeout_s=int(draw.choice([0, 5, 20, 60])), large_gpus=int(draw.choice([0, 4, 8])),
        small_timeout_s=int(draw.choice([0, 10, 40])), keeps_priority=profile.discipline.keeps_priority,
        hold_s=int(draw.choice([0, 5, 20])), hold_fixed_s=30,
    )  # fmt: skip
    evicts = profile.preemption
    if evicts is not None:
        least_s, reclaim = int(draw.choice([0, 9, 30])), str(draw.choice(["off", "nominal", "nominal"]))
        evicts = structs.replace(evicts, min_run_s=least_s, reclaim=reclaim)
    queues = QueueConfig((root, a, b, own, c))
    assert_decided_alike(workload, replace(profile, discipline=discipline, preemption=evicts), queues)


def test_late_heads_of_a_saturated_run_are_served_in_compiled_instants() -> None:
    """No call returns because Python would have to decide, and some victims start elsewhere."""
    codes, evicted = Counter[int](), Counter[int]()
    call, take_in = Advancer._call, Advancer._take_in

    def called(self: Advancer, until: int) -> tuple[int, int, int]:
        found = call(self, until)
        codes[found[0]] += 1
        return found

    def followed(self: Advancer, happened: np.ndarray, *of_call: Any) -> None:
        evicted.update(happened[happened[:, h.H_WHAT] == h.EVICTED, h.H_BEGIN].tolist())
        take_in(self, happened, *of_call)

    with patch.object(Advancer, "_call", called), patch.object(Advancer, "_take_in", followed), compiling_ahead():
        saturated().simulate()
    assert codes[WAITS] == 0
    assert evicted[BACKFILL] > 0 < evicted[BACKFILL | MOVED]


RESERVES = """about = ""
[order]
policy = "{order}"
[discipline]
policy = {discipline}
moves = {moves}
sticky = {sticky}
[placement]
policy = "consolidated"
[simulation]
estimates = "limit"
"""


def reserving(seed: int) -> tuple[Workload, Profile]:
    """A full cluster under EASY or conservative backfilling: jobs end early, on time or late, some at no known time."""
    draw = np.random.Generator(np.random.PCG64(seed))
    n, priorities = int(draw.integers(20, 70)), int(draw.choice([1, 1, 3]))
    runtime = draw.integers(1, int(draw.choice([20, 80, 200])), n)
    limit = (runtime * draw.choice([0.5, 1, 1, 2, 5], n)).astype(int) + 1
    workload = make_workload(
        "reserving", np.cumsum(draw.integers(0, 3, n)) * int(draw.integers(1, 12)) * SECOND, runtime * SECOND,
        draw.choice([1, 1, 2, 3, 4, 4, 8, 12], n), priority=draw.integers(0, priorities, n),
        limit=np.where(draw.random(n) < 0.02, -1, limit * SECOND),
    )  # fmt: skip
    own = [f'"conservative"\ndepth = {draw.choice([0, 0, 3])}', f'"easy"\nheads = {draw.choice([1, 1, 3])}'][seed % 2]
    text = RESERVES.format(
        order=draw.choice(["fifo", "fifo", "sjf"]), discipline=own, moves=draw.choice([256, 256, 2, 0]),
        sticky=draw.choice(["true", "false"]),
    )  # fmt: skip
    return workload, parse_profile(text, "reserving")


@pytest.mark.parametrize("seed", [0, 4, 8, 9, 13])
def test_cycles_with_reservations_are_decided_alike(seed: int) -> None:
    assert_decided_alike(*reserving(seed), NO_QUEUES)
