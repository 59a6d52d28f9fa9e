"""Victim sets: enough, nobody in vain, as cheap as can be; and disasters of other schedulers, not repeated."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from benchmarks import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_condition import QuotaCondition
from kant.cluster.quota_condition import admits as quotas_admit
from kant.cluster.quota_tree import QuotaTree
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot
from kant.model.decision import NoFit, Preempt, Start
from kant.model.event import NodeChanged
from kant.model.job import Job
from kant.model.node import ClusterSpec, Node
from kant.model.placement import Allocation, gpu_milli
from kant.model.status import NodeStatus
from kant.model.tenant import QueueConfig
from kant.model.units import HOUR, SECOND
from kant.placement.draft import Draft
from kant.placement.placer import Placer
from kant.queueing.cycle_plan import CyclePlan
from kant.queueing.preemption.candidate import Admits, Candidate, Pool
from kant.queueing.preemption.policy import Preemption
from kant.queueing.preemption.rules import QuotaRule
from kant.queueing.preemption.search import choose, search
from kant.queueing.preemption.shrinking import lost_work, lost_works
from kant.sim.advancer import Advancer
from kant.testing import Harness, make_cluster, make_group, make_job, make_profile
from kant.testing.builders import make_queue
from kant.testing.drawn import generator
from kant.testing.naive import pods_that_fit_as_asked, wrong_with
from kant.testing.strategies import clusters, jobs

NO_CAP = 1 << 40
Chosen = tuple[list[Candidate], Allocation] | None
Key = tuple[tuple[int, ...], int, int, int, tuple[int, ...]]


@dataclass
class Case:
    """A cluster with running jobs, and a newcomer that waits."""

    harness: Harness
    newcomer: Job
    candidates: list[Candidate]
    cap: int = NO_CAP

    def __post_init__(self) -> None:
        self.spec: ClusterSpec = self.harness.state.spec
        self.row = self.harness.state.rows[self.newcomer.id]
        self.shape: Shape = self.harness.state.shape_of(self.row)
        self.placer = Placer(Snapshot(self.harness.state), self.harness.profile.placement, 0)
        self.table: Table = self.placer.trial.table.copy()

    def choose(self, admits: Admits | None = None, **limits: int) -> Chosen:
        """What `choose` answers. Whatever it answers, the trial holds that and no more; it is then rolled back."""
        trial = self.placer.trial
        found = choose(self.placer, self.shape, self.row, self.candidates, self.cap, admits, **limits)
        if found is None:
            assert trial.checkpoint() == 0
            assert np.array_equal(trial.table, self.table)
            return None
        victims, placed = found
        after = self.without(victims)
        assert not wrong_with(self.spec, after, self.newcomer, placed)
        for piece in placed:
            c.take_piece(after, piece, c.NO_DEMANDS)
        assert np.array_equal(trial.table, after)
        assert trial.checkpoint() == len(victims) + 1
        trial.rollback(0)
        return found

    def search(self, **limits: int) -> tuple[Chosen, bool]:
        """What `search` answers; the trial is rolled back."""
        found = search(self.placer, self.shape, self.row, Pool.of(self.candidates), self.cap, **limits)
        self.placer.trial.rollback(0)
        assert np.array_equal(self.placer.trial.table, self.table)
        return found

    def without(self, victims: Collection[Candidate]) -> Table:
        """The node table when these have left."""
        table = self.table.copy()
        for victim in victims:
            for piece in victim.allocation:
                c.give_piece(table, piece, c.NO_DEMANDS)
        return table

    def fits(self, victims: Collection[Candidate]) -> bool:
        """Whether the newcomer is placed when these have left, asked of a placer that has seen nothing yet."""
        placer = Placer(Snapshot(self.harness.state), self.harness.profile.placement, 0)
        for victim in victims:
            placer.trial.evict(victim.allocation)
        return not isinstance(placer.place(self.shape, self.row), NoFit)

    def plainly_fits(self, victims: Collection[Candidate]) -> bool:
        """The same for a gang of one group, counted without the engine."""
        state, job, gone = self.harness.state, self.newcomer, {who.row for who in victims}
        members = state.affinity_members.get(job.affinity_group, {}) if job.affinity_group else {}
        affinity_members = [state.running[row] for row in members if row not in gone]
        return pods_that_fit_as_asked(self.spec, self.without(victims), job, affinity_members) >= job.pods

    def optimum(self, admits: Admits | None = None) -> Key | None:
        """The best key over all subsets that suffice within the cap."""
        sets = (s for n in range(len(self.candidates) + 1) for s in combinations(self.candidates, n))
        within = sorted((s for s in sets if sum(who.milli for who in s) <= self.cap), key=key)
        return next((key(s) for s in within if (not admits or admits(s)) and self.plainly_fits(s)), None)


def key(victims: Sequence[Candidate]) -> Key:
    """Smaller is better: worst rank, price, milli-GPUs, number, rows."""
    rank = max((who.rank for who in victims), default=())
    rows = tuple(sorted(who.row for who in victims))
    return rank, sum(who.cost for who in victims), sum(who.milli for who in victims), len(victims), rows


def stage(
    harness: Harness, newcomer: Job, prices: Sequence[int] = (), ranks: Sequence[int] = (), **fields: int
) -> Case:
    """All running jobs are candidates, of the prices and ranks given in the order in which they started."""
    harness.submit(newcomer)
    running = harness.state.running.items()
    candidates = [
        Candidate(row, held, gpu_milli(held), prices[i] if prices else 0, (ranks[i] if ranks else 0,))
        for i, (row, held) in enumerate(running)
    ]
    return Case(harness, newcomer, candidates, **fields)


def crowd(*gpus: int, placement: str = "worst-fit", **amounts: int) -> Harness:
    return Harness(make_cluster(*gpus, **amounts), make_profile(placement=placement))


def run(harness: Harness, *jobs: Job) -> Harness:
    """All of them start, in this order."""
    for job in jobs:
        harness.submit(job)
        harness.cycle()
    assert harness.running()[-len(jobs) :] == [job.id for job in jobs]
    return harness


def names(case: Case, found: Chosen) -> list[str]:
    """Who has to stop."""
    assert found is not None
    return [case.harness.state.ids[victim.row] for victim in found[0]]


@st.composite
def cases(draw: st.DrawFn, most: int = 12, groups: int = 3, pods: int = 100) -> Case:
    """Up to six nodes of any kind with up to `most` running gangs, and a newcomer."""
    placement = draw(st.sampled_from(("best-fit", "worst-fit", "first-fit", "consolidated", "fgd", "random")))
    harness = Harness(draw(clusters()), make_profile(placement=placement), check=False)
    for i in range(draw(st.integers(1, most))):
        harness.submit(draw(jobs(f"j{i}")))
    harness.cycle(0)
    newcomer = draw(jobs("new", most_groups=groups).filter(lambda job: job.pods <= pods))
    count = len(harness.running())
    prices = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    ranks = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    return stage(harness, newcomer, prices, ranks, cap=draw(st.sampled_from((NO_CAP, NO_CAP, 4_000, 8_000))))


def quota(case: Case, share: int) -> Admits:
    """A quota's side: those in an odd row have to give up this share, in percent, of what they hold."""
    odd = sum(who.milli for who in case.candidates if who.row % 2)
    return lambda victims: sum(who.milli for who in victims if who.row % 2) * 100 >= odd * share


@given(cases(), st.sampled_from((None, None, 30, 100)), st.sampled_from((0, 10)))
def test_the_victims_are_enough_and_none_of_them_can_be_spared(case: Case, share: int | None, exact: int) -> None:
    """Also gangs of several groups, the quota's side, and both ways to search. `Case.choose` looks at the trial."""
    admits = None if share is None else quota(case, share)
    found = case.choose(admits, exact=exact)
    if found is None:
        return
    victims, _ = found
    assert len({who.row for who in victims}) == len(victims)
    assert {who.row for who in victims} <= {who.row for who in case.candidates}
    assert sum(who.milli for who in victims) <= case.cap
    assert case.fits(victims)
    assert admits is None or admits(victims)
    for spared in victims:
        others = [who for who in victims if who is not spared]
        assert not case.fits(others) or not (admits is None or admits(others)), f"{spared} stops in vain"


@given(cases(), st.sampled_from((0, 10)))
def test_a_higher_rank_is_not_touched_where_the_lower_ones_suffice(case: Case, exact: int) -> None:
    case.cap = NO_CAP
    found = case.choose(exact=exact)
    if found is None or len(case.newcomer.groups) > 1:
        return
    worst = max((who.rank for who in found[0]), default=())
    assert not worst or not case.plainly_fits([who for who in case.candidates if who.rank < worst])


@given(cases(most=8, groups=1), st.sampled_from((None, None, 30, 100)))
def test_among_few_candidates_the_victims_are_the_best_of_all_sets(case: Case, share: int | None) -> None:
    """Brute force over all subsets, counted without the engine: None only where no subset suffices."""
    admits = None if share is None else quota(case, share)
    found = case.choose(admits)
    assert (None if found is None else key(found[0])) == case.optimum(admits)


@given(cases(most=8, groups=1, pods=1))
@settings(max_examples=examples(15))
def test_for_one_pod_the_victims_are_the_cheapest_however_many_there_are_to_choose_from(case: Case) -> None:
    """Rows too, unless affinity decides more than the free capacity of one node."""
    best = case.optimum()
    found, exact = case.search(exact=0)
    known = 4 if case.shape.has_affinity else 5
    assert (None if found is None else key(found[0])[:known]) == (None if best is None else best[:known])
    assert exact or case.shape.has_affinity


@given(cases(groups=1), st.sampled_from((0, 10)))
@settings(max_examples=examples(15))
def test_a_count_of_free_places_finds_whom_placing_the_gang_finds(case: Case, exact: int) -> None:
    """The search that counts, and the one that asks the placer, are the same functions around two questions."""
    case.cap = NO_CAP
    found = case.choose(exact=exact)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Placer, "counted_domains", lambda *_: None)
        again = case.choose(exact=exact)
    assert (found and key(found[0])) == (again and key(again[0]))


def test_of_pods_that_are_alike_the_first_leave_however_many_there_are() -> None:
    """A hundred on each node: more sets than anybody could look at, but for those who weigh and hold the same."""
    harness = Harness(make_cluster(0, 0, cpu=100_000), make_profile(placement="worst-fit"), check=False)
    harness.submit(*(make_job(f"j{i}", 0, cpu=1_000) for i in range(200)))
    harness.cycle(0)
    case = stage(harness, make_job("new", 0, cpu=3_000), prices=[1] * 2 + [0] * 198, cap=0)
    assert names(case, case.choose()) == ["j2", "j3", "j4"]


def test_of_sets_that_weigh_the_same_on_two_nodes_the_one_with_the_first_row_leaves() -> None:
    """`j0` and `j3` fill one node, `j1` and `j2` the other."""
    harness = crowd(0, 0, cpu=2_000)
    run(harness, *(make_job(f"j{i}", 0, cpu=cpu) for i, cpu in enumerate((1_500, 1_000, 1_000, 500))))
    case = stage(harness, make_job("new", 0, cpu=2_000), prices=[1] * 4)
    assert names(case, case.choose(exact=0)) == ["j0", "j3"]
    case.candidates, case.cap = [replace(who, milli=1_000) for who in case.candidates], 1_000
    assert case.search(exact=0) == (None, True), "two must go, and one may"


@pytest.mark.parametrize("large", [2, 3])
def test_for_one_pod_the_lowest_rank_that_suffices_leaves_whatever_it_costs(large: int) -> None:
    """Only nodes from `large` on have four GPUs."""
    harness = crowd(*(2 if i < large else 4 for i in range(4)))
    run(harness, *(make_job(f"j{i}", harness.state.cluster.nodes[i].gpus) for i in (3, 2, 1, 0)))
    case = stage(harness, make_job("new", 4))
    nodes = [int(who.allocation[0, 0]) for who in case.candidates]
    case.candidates = [
        replace(who, rank=(node,), cost=9 - node) for who, node in zip(case.candidates, nodes, strict=True)
    ]
    assert [int(who.allocation[0, 0]) for who in (case.choose(exact=0) or ([],))[0]] == [large]
    case.cap = 3_999
    assert case.search(exact=0) == (None, True)


def test_who_holds_nothing_on_the_nodes_of_the_newcomer_is_no_candidate() -> None:
    harness = run(crowd(1, 1), make_job("there"), make_job("here"))
    (node,) = harness.nodes_of("there")
    harness.happen(NodeChanged(0, node, NodeStatus.CORDONED))
    case = stage(harness, make_job("new"), prices=[9, 1])
    for exact in (0, 10):
        assert names(case, case.choose(exact=exact)) == ["here"]


def test_pods_that_are_alike_on_a_node_differ_where_only_one_of_them_counts_towards_the_cap() -> None:
    """Gangs with GPUs elsewhere, two of which must go. Only with `passed`, the last in order, they hold few enough."""
    harness = Harness(make_cluster(0, cpu=3_000), make_profile(), check=False)
    harness.submit(*(make_job(f"j{i}", 0, cpu=1_000) for i in range(3)))
    harness.cycle(0)
    case = stage(harness, make_job("new", 0, cpu=2_000), cap=1_000)
    case.candidates = [replace(who, milli=1_000, passed=i == 2) for i, who in enumerate(case.candidates)]
    assert names(case, case.choose(exact=0)) == ["j0", "j2"]


def test_where_one_node_has_too_many_sets_to_look_at_a_good_one_is_found() -> None:
    harness = Harness(make_cluster(0, cpu=300_000), make_profile(), check=False)
    sizes = [int(size) for size in generator(0).integers(5_000, 15_000, 24)]
    harness.submit(*(make_job(f"j{i}", 0, cpu=size) for i, size in enumerate(sizes)))
    harness.cycle(0)
    case = stage(harness, make_job("new", 0, cpu=150_000), prices=sizes, cap=0)
    found, exact = case.search()
    assert found is not None and not exact and case.fits(found[0])


@pytest.mark.parametrize("seed", range(3))
def test_a_preemptor_of_one_pod_makes_candidates_of_its_victims_alone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 120 pods of lower priority. The search among all of them finds victims that are no better."""
    draw, made, keys = generator(seed), list[Candidate](), list[Key]()
    cpus = [int(cpu) for cpu in draw.choice([500, 900, 1_300], 160)]
    make = Pool.__getitem__

    def remember(pool: Pool, place: int) -> Candidate:
        made.append(make(pool, place))
        return made[-1]

    monkeypatch.setattr(Pool, "__getitem__", remember)
    for among_all in (False, True):
        if among_all:
            monkeypatch.setattr(Placer, "counted_domains", lambda *_: None)
            monkeypatch.setattr(Draft, "on_one_node", lambda *_: None)
        profile = make_profile("fifo", "backfill", preemption=Preemption(min_run_s=0))
        harness = Harness(make_cluster(*[0] * 30, cpu=4_000), profile, check=False)
        harness.submit(*(make_job(f"j{i}", 0, cpu=cpu, priority=i % 3) for i, cpu in enumerate(cpus)))
        harness.cycle(0)
        assert len(harness.running()) > 100
        harness.submit(make_job("new", 0, cpu=3_000, priority=9))
        made.clear()
        plan = harness.cycle(HOUR)
        gone = {each.job for each in plan.decisions if isinstance(each, Preempt)}
        assert gone and any(isinstance(each, Start) and each.job == "new" for each in plan.decisions)
        assert {harness.state.ids[who.row] for who in made} == gone and len(made) == len(gone)
        keys.append(key(made))
    assert keys[0] <= keys[1]
    assert keys[0][:4] == keys[1][:4]


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_in_which_candidates_are_given_changes_nothing(case: Case, random: object) -> None:
    found = case.choose()
    random.shuffle(case.candidates)  # type: ignore[attr-defined]
    again = case.choose()
    assert (found is None) == (again is None)
    if found and again:
        assert [who.row for who in found[0]] == [who.row for who in again[0]]
        assert np.array_equal(found[1], again[1])


def full_case(seed: int, most: int) -> Case | None:
    """A full cluster of 8-GPU nodes under gangs of prices that differ widely; None with more than `most` of them."""
    draw = generator(seed)
    harness = crowd(*[8] * int(draw.integers(2, 6)), placement=str(draw.choice(["worst-fit", "consolidated"])))
    harness.check = False
    for i in range(20):
        harness.submit(make_job(f"j{i}", int(draw.choice([1, 2, 3, 4, 5, 8])), int(draw.choice([1, 1, 2, 3]))))
        harness.cycle(0)
    gpus = int(draw.choice([1, 2, 3, 4, 8]))
    count, pods = len(harness.running()), int(draw.integers(1, 1 + 16 // gpus))
    if count > most:
        return None
    prices = [who * int(draw.lognormal(5, 1) + 1) for who in map(gpu_milli, harness.state.running.values())]
    return stage(harness, make_job("new", gpus, pods), prices)


@pytest.mark.long
def test_a_greedy_search_stays_close_to_the_optimum() -> None:
    """The search for many candidates, made to solve what brute force solves too: price over optimum, on average."""
    ratios = []
    for seed in range(250):
        case = full_case(seed, 9)
        best = None if case is None else case.optimum()
        if case is None or best is None or not best[1]:
            continue
        found = case.choose(exact=0)
        assert found is not None
        ratios.append(key(found[0])[1] / best[1])
    mean, worst, hit = np.mean(ratios), max(ratios), np.mean(np.array(ratios) == 1)
    print(f"{len(ratios)} cases: mean {mean:.4f}, worst {worst:.2f}, optimal in {hit:.1%}")
    assert len(ratios) > 50
    assert mean < 1.02 and worst < 1.5


def test_nobody_stops_for_a_newcomer_that_fits() -> None:
    harness = run(crowd(4), make_job("a", 2))
    case = stage(harness, make_job("new", 2))
    assert names(case, case.choose()) == []


def test_of_few_candidates_the_heaviest_stay_unless_the_lighter_of_their_rank_do_not_suffice() -> None:
    harness = run(crowd(4, 4), make_job("c", 4), make_job("a", 2), make_job("b", 2))
    case = stage(harness, make_job("new", 2), prices=[9, 1, 1], ranks=[1, 0, 0])
    assert names(case, case.choose()) == ["a"]


@pytest.mark.long
def test_376_gpus_are_not_evicted_for_48() -> None:
    """KAI-Scheduler PR 1565: a reclaim for 48 GPUs evicted 376 GPUs of running work.

    47 nodes of 8 run gangs of several sizes. Whatever the cheapest order, 48 GPUs are gained for 48 that stop.
    """
    harness = crowd(*[8] * 47)
    run(harness, *(make_job(f"four{i}", 4) for i in range(47)), *(make_job(f"one{i}") for i in range(188)))
    prices = [int(price) for price in generator(0).integers(1, 10**6, 235)]
    case = stage(harness, make_job("new", 8, 6), prices, cap=48_000)
    found = case.choose()
    assert found is not None
    assert sum(who.milli for who in found[0]) == 48_000
    by_node = sorted(
        sum(price for price, who in zip(prices, case.candidates, strict=True) if (who.allocation[:, 0] == node).any())
        for node in range(47)
    )
    assert sum(who.cost for who in found[0]) == sum(by_node[:6]), "the six nodes that are cheapest to clear"
    case.cap = 47_999
    assert case.choose() is None


def test_one_victim_where_one_suffices() -> None:
    """Volcano 5984: one victim is needed, ten are evicted.

    Ten jobs on each node; the newcomer wants what any one of them holds.
    """
    harness = run(crowd(10, 10), *(make_job(f"j{i}") for i in range(20)))
    case = stage(harness, make_job("new", 1), prices=[5] * 13 + [4] + [5] * 6)
    assert names(case, case.choose()) == ["j13"]
    assert names(case, case.choose(exact=0, trials=0)) == ["j13"]


def test_evicted_means_it_runs() -> None:
    """Volcano 4926: pods are evicted and the preemptor still cannot run.

    One GPU is free on each node, three in sum. Stopping `busy0` or `busy1` frees GPUs enough for the pod, but not
    the CPU beside `hog0` or `hog1`.
    """
    harness = crowd(4, 4, 4, cpu=8_000)
    run(harness, *(make_job(f"busy{i}", 2, cpu=2_000) for i in range(3)))  # worst fit: one on each node
    run(harness, *(make_job(f"hog{i}", 1, cpu=5_500) for i in range(2)), make_job("third", 1, cpu=2_000))
    assert [harness.nodes_of(job) for job in ("busy2", "third", "hog0", "hog1")] == [["n2"], ["n2"], ["n0"], ["n1"]]
    prices = [1, 1, 4, 50, 60, 3]
    case = stage(harness, make_job("new", 2, cpu=4_500), prices)
    assert names(case, case.choose()) == names(case, case.choose(exact=0)) == ["third"]
    case = stage(harness, make_job("wide", 4, cpu=8_000), prices)
    assert sorted(names(case, case.choose())) == ["busy2", "third"]
    case = stage(harness, make_job("never", 4, 1, cpu=8_001), prices)
    assert case.choose() is None


def test_free_gpus_that_lie_on_different_nodes_do_not_count_as_room() -> None:
    """One GPU free on each of four nodes, and a pod of four: a whole node is cleared, the cheapest."""
    harness = run(crowd(4, 4, 4, 4), *(make_job(f"three{i}", 3) for i in range(4)))
    case = stage(harness, make_job("new", 4), prices=[9, 3, 2, 7])
    assert names(case, case.choose()) == ["three2"]


def test_a_gang_over_several_nodes_is_stopped_as_a_whole_and_paid_for_once() -> None:
    """`wide` lies on both nodes: dearer than each of the small ones, cheaper than both that are in the way."""
    harness = run(crowd(4, 4), make_job("wide", 3, 2), make_job("a", 1), make_job("b", 1))
    case = stage(harness, make_job("new", 3, 2), prices=[50, 1, 1])
    for exact in (0, 10):
        found = case.choose(exact=exact)
        assert names(case, found) == ["wide"]


def test_jobs_that_only_stop_together_are_one_victim() -> None:
    """A candidate may hold what several jobs hold: `core` and its burst on the other node go or stay together."""
    harness = run(crowd(2, 2, 2), make_job("core", 2), make_job("burst", 2), make_job("alone", 2))
    case = stage(harness, make_job("new", 2), prices=[4, 1, 5])
    core, burst, alone = case.candidates
    both = Candidate(core.row, np.concatenate([core.allocation, burst.allocation]), 4_000, 4, (0,))
    case.candidates = [both, alone]
    assert names(case, case.choose()) == ["core"]
    case.cap = 2_000
    assert names(case, case.choose()) == ["alone"]


def test_one_large_victim_that_makes_room_for_many_pods_beats_many_small_ones() -> None:
    harness = run(crowd(4, 4), make_job("large", 4), *(make_job(f"s{i}") for i in range(4)))
    case = stage(harness, make_job("new", 1, 4), prices=[6, 2, 2, 2, 2])
    assert names(case, case.choose(exact=0)) == ["large"]


def test_where_the_cheapest_set_breaks_the_cap_the_smallest_is_taken() -> None:
    harness = run(crowd(4, 4), make_job("large", 4), make_job("half", 2), make_job("other", 2))
    case = stage(harness, make_job("new", 2), prices=[1, 30, 20])
    for exact in (0, 10):
        case.cap = 4_000
        assert names(case, case.choose(exact=exact)) == ["large"]
        case.cap = 2_000
        assert names(case, case.choose(exact=exact)) == ["other"]
        case.cap = 1_999
        assert case.choose(exact=exact) is None


def test_whoever_lies_where_the_newcomer_may_not_go_is_stopped_only_for_the_quota() -> None:
    """`far` holds a node of another model: no room is made there, but its owner's quota may be what is in the way."""
    spec = make_cluster(2, 2)
    nodes = tuple(
        type(node)(node.name, node.gpus, model, cpu=node.cpu, memory=node.memory)
        for node, model in zip(spec.nodes, ("A100", "H800"), strict=True)
    )
    harness = Harness(ClusterSpec("two models", nodes), make_profile())
    run(harness, make_job("near", 2, models=("A100",)), make_job("far", 2, models=("H800",)))
    case = stage(harness, make_job("new", 2, models=("A100",)), prices=[9, 1])
    far = case.candidates[1]
    for exact in (0, 10):
        assert names(case, case.choose(exact=exact)) == ["near"]
        assert sorted(names(case, case.choose(lambda victims: far in victims, exact=exact))) == ["far", "near"]


def test_a_quota_that_wants_more_back_than_the_cap_lets_go_gets_nothing() -> None:
    harness = run(crowd(4, 4), *(make_job(f"j{i}", 2) for i in range(4)))
    case = stage(harness, make_job("new", 2), prices=[1, 2, 3, 4], cap=4_000)
    for exact in (0, 10):
        assert case.choose(lambda victims: len(victims) > 2, exact=exact) is None
        assert names(case, case.choose(lambda victims: len(victims) > 1, exact=exact)) == ["j0", "j1"]


def test_the_search_stops_at_its_limit_with_a_set_that_is_proven() -> None:
    harness = run(crowd(*[4] * 8), *(make_job(f"j{i}") for i in range(32)))
    prices = [int(price) for price in generator(1).integers(1, 100, 32)]
    case = stage(harness, make_job("new", groups=[make_group(3, 2), make_group(1, 4)]), prices)
    found = case.choose(trials=0)
    assert found is not None
    victims, _ = found
    assert sum(who.milli for who in victims) == 10_000
    for spared in victims:
        assert not case.fits([who for who in victims if who is not spared])


@pytest.mark.parametrize("pods", [1, 8])
def test_among_thousands_the_nodes_that_are_cheapest_to_clear_are_cleared(pods: int) -> None:
    harness = Harness(make_cluster(*[8] * 250), make_profile(placement="worst-fit"), check=False)
    harness.submit(*(make_job(f"j{i}") for i in range(2_000)))
    harness.cycle(0)
    prices = [int(price) for price in generator(2).integers(1, 10**6, 2_000)]
    case = stage(harness, make_job("new", 8, pods), prices, cap=pods * 8_000)
    found = case.choose()
    assert found is not None
    clear = np.zeros(250, dtype=np.int64)
    for who in case.candidates:
        clear[who.allocation[0, 0]] += who.cost
    assert sum(who.cost for who in found[0]) == int(np.sort(clear)[:pods].sum())


def test_a_job_on_nodes_of_another_model_makes_way_where_it_keeps_a_leaf_from_its_group() -> None:
    """It frees nothing on the nodes that would do, and still nobody of its group may share their leaf with it."""
    nodes = (Node("old", 1, model="old", leaf="l"), Node("new", 1, model="new", leaf="l"))
    harness = Harness(ClusterSpec("two", nodes), make_profile())
    apart = {"affinity_group": "a", "apart": "leaf", "apart_required": True}
    run(harness, make_job("first", models=("old",), **apart))
    found = stage(harness, make_job("second", models=("new",), **apart)).choose(exact=0)
    assert found is not None and [who.row for who in found[0]] == [harness.state.rows["first"]]


def test_what_stopping_many_jobs_loses_is_what_stopping_each_of_them_loses() -> None:
    harness = crowd(8, 8)
    harness.submit(*(make_job(f"j{i}", 1 + i % 2, checkpoint=(-1, 40 * SECOND)[i % 3 > 0]) for i in range(6)))
    harness.cycle(0)
    rows = np.array(list(harness.state.running), dtype=np.int64)
    harness.state.prices = {int(rows[1]): 7}
    plan = cast(CyclePlan, SimpleNamespace(state=harness.state, now=100 * SECOND))
    assert lost_works(plan, rows).tolist() == [lost_work(plan, row) for row in rows.tolist()]
    assert lost_works(plan, rows[:3]).tolist() == [100_000, 7, 20_000]


def test_quotas_in_columns_admit_whom_the_tree_admits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run with reclaim and priorities: random sets of the candidates of each search that asks a quota."""
    in_columns, answers = QuotaRule.condition, set[tuple[bool, bool]]()

    def compared(rule: QuotaRule, candidates: Sequence[Candidate]) -> QuotaCondition | None:
        found, draw = in_columns(rule, candidates), generator(len(candidates))
        assert found is not None
        for which in (draw.random((12, len(candidates))) < draw.random((12, 1))).astype(np.int64):
            left = [who for who, leaves in zip(candidates, which.tolist(), strict=True) if leaves]
            for level, limited in product(range(-1, 2), (True, False)):
                answer = replace(rule, level=level, limited=limited)(left)
                assert quotas_admit(found._replace(level=level, limited=limited), which) == answer
                answers.add((answer, limited))
        return found

    monkeypatch.setattr(QuotaRule, "condition", compared)
    monkeypatch.setattr(Advancer, "may_advance", lambda run: False)  # so that Python decides
    decided = traces.preempting(3, 32).simulate().summary["digest"]
    assert len(answers) == 4
    monkeypatch.undo()
    assert traces.preempting(3, 32).simulate().summary["digest"] == decided


def test_a_level_is_reached_by_what_the_own_queue_gives_back_alone() -> None:
    """`a` may not borrow from the whole in place of `b`, which borrows within the department of both."""
    department = (
        make_queue("dep", None, parent="all"),
        make_queue("a", 4, parent="dep"),
        make_queue("b", 0, parent="dep"),
    )
    tree = QuotaTree(QueueConfig((make_queue("all", 4), *department)))
    gpus = np.array([[2_000], [4_000]], dtype=np.int64)
    home = np.array([tree.index["a"], tree.index["b"]], dtype=np.int64)
    for node, amounts in zip(home.tolist(), gpus.tolist(), strict=True):
        tree.charge(node, 0, amounts)
    parts, entitled = (np.array(one, dtype=np.int64) for one in (tree.nominal_parts, tree.nominal_quotas))
    condition = QuotaCondition(tree.limits, tree.used, home[0], gpus[0], home, gpus, parts, entitled, 2, False)
    assert [quotas_admit(condition, np.array(which)) for which in ([0, 1], [1, 0], [0, 0])] == [False, False, False]
    assert quotas_admit(condition._replace(level=1), np.array([0, 0]))
