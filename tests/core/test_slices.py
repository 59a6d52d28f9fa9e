"""MIG slices: by profile, at the places that the hardware allows, never twice, and never beside other uses of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from kant.cluster import columns as c
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit
from kant.model.errors import InputError, StateError
from kant.model.event import JobFinished, JobStarted
from kant.model.job import Demand, Job, PodGroup
from kant.model.mig import GEOMETRIES, profile_on
from kant.model.node import ClusterSpec, Node
from kant.model.placement import MASK, TAG, Allocation, slices_of_tag
from kant.placement.calendar.calendar import Calendar
from kant.placement.fits import capacity
from kant.placement.placer import Placer
from kant.placement.slices import best_slices, places_left
from kant.sim.run import simulate
from kant.testing import make_job, make_named_policy, make_profile, submitted
from kant.testing.drawn import MIGS, draw_slices, generator
from kant.testing.naive import pods_that_fit, wrong_with
from kant.workload.cluster_file import parse_cluster
from kant.workload.convert import write_workload
from kant.workload.describe import describe
from kant.workload.kant_table import parse
from kant.workload.workload import make_workload

SEEDS = st.integers(0, 10**6)


@cache
def windows(name: str, milli: int) -> tuple[int, ...]:
    """Return the possible slices, as bits, of an instance of profile `name` that takes `milli` thousandths of a GPU."""
    for mig in GEOMETRIES:
        found = profile_on(mig, name)
        if found is not None and found[0] == milli:
            profile = found[1]
            starts = [start for start in range(8) if profile.starts >> start & 1]
            return tuple((1 << profile.size) - 1 << start for start in starts)
    return ()


def instance(profile: str, mig: str = "a100-40gb", pods: int = 1) -> PodGroup:
    found = profile_on(mig, profile)
    assert found is not None
    return PodGroup(pods, Demand(1, found[0], mig=profile))


def wants(name: str, profile: str, mig: str = "a100-40gb", pods: int = 1, **fields: Any) -> Job:
    return Job(name, 0, (instance(profile, mig, pods),), **fields)


def gpus_cut(gpus: int = 1, mig: str = "a100-40gb") -> ClusterState:
    return ClusterState(ClusterSpec("cut", (Node("n0", gpus, mig=mig),)))


def start(state: ClusterState, job: Job, policy: str = "best-fit") -> Allocation | NoFit:
    """Place a job and let it start there."""
    if job.id not in state.rows:
        state.apply(submitted(job))
    placer = Placer(Snapshot(state), make_named_policy("placement", policy), 0)
    result = placer.place(state.shapes.of(job))
    if not isinstance(result, NoFit):
        assert not wrong_with(state.spec, state.table, job, result)
        state.apply(JobStarted(state.now, job.id, result))
        assert placer.snapshot.table.tolist() == state.table.tolist()
        placer.trial.rollback(0)
        state.check()
    return result


def slices_by_device(result: Allocation | NoFit) -> Iterator[tuple[int, int]]:
    """(device, slices as bits) of each instance."""
    assert not isinstance(result, NoFit), result
    for piece in result.tolist():
        for device in range(62):
            if piece[MASK] >> device & 1:
                yield device, slices_of_tag(piece[TAG])


# --- properties ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["best-fit", "e-binpack", "fgd", "random"])
@given(seed=SEEDS)
@settings(max_examples=examples(15))
def test_instances_come_and_go_and_no_slice_is_held_twice(policy: str, seed: int) -> None:
    draw = generator(seed)
    nodes = tuple(Node(f"n{i}", 2, mig=str(draw.choice([*MIGS, ""]))) for i in range(3))
    state = ClusterState(ClusterSpec("drawn", nodes))
    for number in range(15):
        mig = str(draw.choice([*MIGS, ""]))
        group = PodGroup(int(draw.integers(1, 4)), draw_slices(draw, mig) if mig else Demand(1, 500))
        start(state, Job(f"j{number}", 0, (group,)), policy)
        if state.running and draw.integers(3) == 0:
            state.apply(JobFinished(0, state.ids[int(draw.choice(list(state.running)))]))
        occupied = np.array([int(bits).bit_count() for bits in state.table[:, c.slices_at(state.table) :].ravel()])
        used = (state.table[:, c.GPUS] * 1000 - state.table[:, c.FREE])[state.table[:, c.MIG] > 0]
        milli = np.repeat(state.table[:, c.MIG], 2)
        assert int((occupied * milli).sum()) == int(used.sum())


@given(SEEDS)
def test_a_node_takes_as_many_instances_as_it_says_one_after_the_other(seed: int) -> None:
    draw = generator(seed)
    mig = str(draw.choice(MIGS))
    state = gpus_cut(2, mig)
    for number in range(int(draw.integers(0, 6))):
        start(state, Job(f"there{number}", 0, (PodGroup(1, draw_slices(draw, mig)),)))
    demand = replace(draw_slices(draw, mig), cpu=0)
    job = Job("j", 0, (PodGroup(1, demand),))
    state.apply(submitted(job))
    row = state.shapes.of(job).parts[0][1]
    takes = capacity(state.table, 0, state.shapes.demands, row)
    assert takes == pods_that_fit(state.spec.nodes[0], state.table[0], demand)
    for left in range(takes, 0, -1):
        assert capacity(state.table, 0, state.shapes.demands, row) == left
        assert not isinstance(start(state, replace(job, id=f"more{left}")), NoFit)
    assert isinstance(start(state, job), NoFit)


@given(st.sampled_from(MIGS), SEEDS)
def test_the_start_is_the_one_that_loses_the_fewest_places(mig: str, seed: int) -> None:
    draw = generator(seed)
    state = gpus_cut(2, mig)
    for number in range(int(draw.integers(0, 4))):
        start(state, Job(f"there{number}", 0, (PodGroup(1, draw_slices(draw, mig)),)))
    demand = draw_slices(draw, mig)
    row = state.shapes.of(Job("j", 0, (PodGroup(1, demand),))).parts[0][1]
    if capacity(state.table, 0, state.shapes.demands, row) == 0:
        return
    occupied = state.table[0, c.slices_at(state.table) :].tolist()

    def left(device: int, window: int) -> int:
        """Instances that could be made afterwards, each alone, of any profile on any of the GPUs."""
        after = [bits | (window if i == device else 0) for i, bits in enumerate(occupied)]
        sizes = [profile_on(mig, profile.name) for profile in GEOMETRIES[mig].profiles]
        places = [window for found in sizes if found for window in windows(found[1].name, found[0])]
        return sum(1 for bits in after for place in places if not bits & place)

    free = [(i, w) for i, bits in enumerate(occupied) for w in windows(demand.mig, demand.milli) if not bits & w]
    chosen = best_slices(state.table, 0, state.shapes.demands, row)
    assert chosen in free
    assert chosen == max(free, key=lambda one: (left(*one), -one[0], -one[1]))
    assert list(slices_by_device(start(state, Job("j", 0, (PodGroup(1, demand),))))) == [chosen], "compiled"


# --- examples -----------------------------------------------------------------------------------------------------


def test_small_instances_go_to_the_end_so_that_large_ones_still_fit() -> None:
    state = gpus_cut()
    assert list(slices_by_device(start(state, wants("a", "1g.5gb")))) == [(0, 0b0100_0000)]
    assert list(slices_by_device(start(state, wants("b", "2g.10gb")))) == [(0, 0b0011_0000)]
    assert list(slices_by_device(start(state, wants("c", "4g.20gb")))) == [(0, 0b0000_1111)]
    assert start(state, wants("d", "1g.5gb")) == NoFit(0, 1, 0)  # an eighth of the memory is left, and no compute slice


def test_what_fits_on_a_gpu_is_what_the_guide_says() -> None:
    for profile, most in (
        ("1g.5gb", 7),
        ("1g.10gb", 4),
        ("2g.10gb", 3),
        ("3g.20gb", 2),
        ("4g.20gb", 1),
        ("7g.40gb", 1),
    ):
        state = gpus_cut()
        assert start(state, wants("more", profile, pods=most + 1)) == NoFit(0, most + 1, most)
        assert not isinstance(start(state, wants("most", profile, pods=most)), NoFit)
    for profile, most in (("1g.6gb", 4), ("2g.12gb", 2), ("4g.24gb", 1)):
        assert start(gpus_cut(1, "a30-24gb"), wants("a", profile, "a30-24gb", most + 1)) == NoFit(0, most + 1, most)


def test_no_choice_of_places_asks_for_more_than_the_seven_compute_slices() -> None:
    @cache
    def most(occupied: int, profiles: tuple[tuple[int, tuple[int, ...]], ...]) -> int:
        return max((g + most(occupied | w, profiles) for g, ws in profiles for w in ws if not occupied & w), default=0)

    for mig, geometry in GEOMETRIES.items():
        profiles = []
        for profile in geometry.profiles:
            found = profile_on(mig, profile.name)
            assert found is not None
            profiles.append((int(profile.name[0]), windows(profile.name, found[0])))
        assert most(0, tuple(profiles)) == (4 if geometry.slices == 4 else 7)
    assert places_left(0, 8) == 7 + 4 + 3 + 2 + 1 + 1


def test_a_gpu_in_mig_mode_is_never_given_as_a_gpu_or_a_share() -> None:
    nodes = (Node("cut", 1, mig="a100-40gb"), Node("whole", 1))
    state = ClusterState(ClusterSpec("both", nodes))
    assert start(state, make_job("two", 1, 2)) == NoFit(0, 2, 1)
    assert start(state, make_job("share", 1, 2, milli=600)) == NoFit(0, 2, 1)
    assert start(state, wants("slices", "3g.20gb", pods=3)) == NoFit(0, 3, 2)


@pytest.mark.parametrize(
    ("piece", "of"),
    [
        ([0, 1, 1, 125, 0, 0, 0, 0], "a share of a GPU in MIG mode"),
        ([0, 1, 1, 1000, 0, 0, 1, 0], "a whole GPU in MIG mode"),
        ([1, 1, 1, 125, 0, 0, -1 - 1, 0], "slices of a GPU that is not in MIG mode"),
        ([0, 1, 1, 250, 0, 0, -1 - 1, 0], "thousandths that are not those of the slices"),
        ([0, 1, 1, 125, 0, 0, -1 - (1 << 8), 0], "a slice that there is not"),
        ([0, 1, 1, 125, 0, 0, -1 - (1 << 3), 0], "a slice that is taken"),
        ([0, 1, 0, 125, 0, 0, -1 - 1, 0], "no device"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_an_event_that_gives_a_gpu_in_two_ways_is_refused(piece: list[int], of: str) -> None:
    state = ClusterState(ClusterSpec("both", (Node("cut", 1, mig="a100-40gb"), Node("whole", 1))))
    state.apply(submitted(wants("there", "1g.5gb")))
    state.apply(JobStarted(0, "there", np.array([[0, 1, 1, 125, 0, 0, -1 - (1 << 3), 0]])))
    state.apply(submitted(make_job("j")))
    with pytest.raises(StateError, match="not free"):
        state.apply(JobStarted(0, "j", np.array([piece])))


def test_an_instance_where_none_may_begin_does_not_pass_the_check() -> None:
    state = gpus_cut()
    state.apply(submitted(wants("j", "2g.10gb")))
    state.apply(JobStarted(0, "j", np.array([[0, 1, 1, 250, 0, 0, -1 - 0b110, 0]])))
    with pytest.raises(StateError, match="that form instances of its profile"):
        state.check()


def test_a_profile_is_what_it_is_on_the_gpus_that_the_job_may_use() -> None:
    nodes = (Node("a", 1, "A100", mig="a100-40gb"), Node("h", 1, "H100", mig="h100-80gb"))
    jobs = make_workload(
        "both", np.zeros(3, dtype=np.int64), np.full(3, 1000, dtype=np.int64), np.ones(3, dtype=np.int64),
        mig=np.ones(3, dtype=np.int64), profiles=("", "1g.10gb"), model_sets=((), ("H100",)),
        models=np.array([0, 1, 1], dtype=np.int64), pods=np.array([4, 7, 8], dtype=np.int64),
    )  # fmt: skip
    run = simulate(jobs, ClusterSpec("both", nodes), make_profile())
    assert run.summary["rejected"] == 1


def test_promises_know_slices() -> None:
    state = gpus_cut()
    whole, half = wants("whole", "7g.40gb"), wants("half", "3g.20gb")
    calendar = Calendar(state.empty, state.table, state.shapes)
    found = calendar.earliest(state.shapes.of(half), 100, 0)
    assert found is not None and found[0] == 0
    calendar.add(0, found[1], 0, 100)
    assert calendar.earliest(state.shapes.of(whole), 100, 0)[0] == 100  # type: ignore[index]
    other = calendar.earliest(state.shapes.of(half), 50, 0)
    assert other is not None and other[0] == 0
    assert set(slices_by_device(other[1])) != set(slices_by_device(found[1]))
    calendar.add(1, other[1], 200, 300)
    assert calendar.holds(0) and calendar.holds(1)
    blocked = calendar.blocked(0, 250)
    assert list(slices_by_device(blocked)) == list(slices_by_device(other[1]))
    calendar.add(2, other[1], 250, 400)
    assert not calendar.holds(2)


def test_cluster_files_and_geometries() -> None:
    for mig in GEOMETRIES:
        text = f'[[nodes]]\ngpus = 1\nmig = "{mig}"\n'.encode()
        assert parse_cluster("a.toml", text).nodes[0].mig == mig
    with pytest.raises(InputError, match="a MIG geometry: a30-24gb"):
        parse_cluster("a.toml", b'[[nodes]]\ngpus = 1\nmig = "a100"\n')
    with pytest.raises(InputError, match="only if a node has GPUs"):
        parse_cluster("a.toml", b'[[nodes]]\ngpus = 0\nmig = "a100-40gb"\n')


def test_instances_in_a_table_of_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit_s,runtime_s,gpus,pods,mig\n0,5,1,0,1g.10gb\n0,5,1,2,3g.40gb\n0,5,1,1,\n", encoding="utf-8")
    jobs = parse(path).jobs
    assert [jobs.profiles[code] for code in jobs.mig.tolist()] == ["1g.10gb", "3g.40gb", ""]
    assert describe(jobs)["gpus_requested"] == 0.125 + 2 * 0.5 + 1
    write_workload(jobs, path)
    assert parse(path).jobs.mig.tolist() == jobs.mig.tolist()
    for row, sentence in (("0,5,1,1,2g.7gb", "a MIG profile"), ("0,5,2,1,1g.10gb", "gpus 1 and gpu_milli 1000")):
        path.write_text(f"submit_s,runtime_s,gpus,pods,mig\n{row}\n", encoding="utf-8")
        with pytest.raises(InputError, match=sentence):
            parse(path)
