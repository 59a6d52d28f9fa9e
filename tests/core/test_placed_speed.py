"""`speed = "placed"`: where a job lies changes how long it runs, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kant.cluster.state import ClusterState
from kant.live.journal_walk import read_journal
from kant.model.errors import InputError
from kant.model.event import JobPreempted, JobProgressed
from kant.model.fabric import Fabric, Link
from kant.model.node import ClusterSpec, Node
from kant.model.status import JobStatus
from kant.model.units import SECOND
from kant.placement.cost.communication import FULL
from kant.placement.cost.slowdown import Slowdowns
from kant.scheduler.profile import Profile, parse_profile
from kant.sim.jobs import Gangs
from kant.sim.options import read_options
from kant.sim.replay import replay
from kant.sim.run import RunHooks, simulate
from kant.sim.speed import ResumeCost, Steady
from kant.testing import make_job, make_jobs, make_profile
from kant.testing.strategies import workloads
from kant.workload.workload import Workload


def four_leaves() -> ClusterSpec:
    """Eight nodes of 4 GPUs, two to a leaf, two leaves to a spine."""
    return ClusterSpec("leaves", tuple(Node(f"n{i}", 4, leaf=f"l{i // 2}", spine=f"s{i // 4}") for i in range(8)))


# --- the speed alone ------------------------------------------------------------------------------------------------
RUNS = st.lists(st.tuples(st.integers(FULL, 3000), st.integers(0, 5000)), max_size=6)


@given(st.integers(1, 100_000), RUNS, st.sampled_from((None, 0, 100, 333)), st.integers(FULL, 3000))
def test_all_work_is_done_however_often_a_job_is_stopped(
    work: int, runs: list[tuple[int, int]], checkpoint: int | None, last: int
) -> None:
    """What was done, less what was lost, is the work; a stop wastes less than a microsecond of it."""
    speed, now, done, lost = Steady(ResumeCost(((8, 5 / SECOND),)), checkpoint), 0, 0, 0
    speed.submitted(0, work, 0)
    for slowdown, ran in runs:
        speed.started(0, now, slowdown)
        if now + ran >= speed.next_end:
            speed.stopped(0, 1, now)
            lost += 5
            continue
        now += ran
        own = ran * FULL // slowdown
        assert speed.behind(0, now) == ran - own
        done += own
        lost += speed.stopped(0, 1, now)
    speed.started(0, now, last)
    took = speed.next_end - now
    left = work + lost - done
    assert (took - 1) * FULL < left * last <= took * FULL
    assert took >= left
    assert speed.take_ended(now + took) == [0]


def test_a_stopped_job_loses_the_work_and_not_the_time_since_its_last_checkpoint() -> None:
    speed = Steady(ResumeCost(()), 100)
    speed.submitted(0, 1000, 0)
    speed.started(0, 0, 2000)
    assert speed.stopped(0, 1, 250) == 25  # 250 at half speed are 125 of work, of which 100 are saved
    speed.started(0, 250)
    assert speed.next_end == 250 + 1000 - 100


# --- in a run -------------------------------------------------------------------------------------------------------
PLACEMENTS = st.sampled_from(("best-fit", "worst-fit", "consolidated", "random"))


def slowdowns_of(workload: Workload, profile: Profile, spec: ClusterSpec) -> tuple[np.ndarray, np.ndarray]:
    """Of each job of a run in which nobody is stopped: how long it ran, and its slowdown by its devices alone."""
    result = simulate(workload, spec, profile, hooks=RunHooks(keep_intervals=True))
    state, found = ClusterState(spec), np.zeros(len(workload), dtype=np.int64)
    model, gangs = Slowdowns(state), Gangs(spec, profile.simulation.get("shape") == "gpu")
    for row in np.flatnonzero(result.jobs.status == JobStatus.FINISHED).tolist():
        pieces = result.intervals[result.intervals[:, 0] == row]
        held = [(node, 1, 0, 0, 0, 0, int(mask).bit_count()) for node, mask in pieces[:, 1:3].tolist()]
        spans = model.spans(np.array(held, dtype=np.int64))
        job = make_job("j", groups=gangs.of(0, int(workload.gpus[row]), 1000, 0, 0))
        found[row] = model.of(state.shapes.of(job).index, spans)
    return result.jobs.end - result.jobs.first_start, found


@given(workloads(most_gpus=24), PLACEMENTS, st.sampled_from(("node", "gpu")))
def test_a_job_runs_as_much_longer_as_its_place_says_and_never_shorter(
    workload: Workload, placement: str, shape: str
) -> None:
    profile = make_profile(placement=placement, shape=shape, speed="placed")
    took, slowdown = slowdowns_of(workload, profile, four_leaves())
    ran = slowdown > 0
    assert (slowdown[ran] >= FULL).all() and (slowdown[ran & (workload.gpus == 1)] == FULL).all()
    assert (took[ran] == -(-workload.runtime[ran] * slowdown[ran] // FULL)).all()
    assert (took[ran] >= workload.runtime[ran]).all()


@given(workloads(most_gpus=4), PLACEMENTS, st.sampled_from(("best-effort", "preemptive", "easy")))
def test_jobs_of_one_node_run_as_with_steady_speed(workload: Workload, placement: str, discipline: str) -> None:
    def digest(speed: str) -> str:
        profile = make_profile("srtf", discipline, placement, speed=speed)
        return str(simulate(workload, four_leaves(), profile).summary["digest"])

    assert digest("placed") == digest("steady")


def test_a_good_placement_pays_in_completion_time() -> None:
    """Eight jobs of eight GPUs in pods of one: two nodes of a leaf for each, or all eight nodes."""
    jobs = make_jobs(submit=[0] * 4, runtime=[1000] * 4, gpus=[8] * 4)

    def mean(placement: str, speed: str) -> float:
        profile = make_profile(placement=placement, shape="gpu", speed=speed)
        return float(simulate(jobs, four_leaves(), profile).summary["jct_s"]["mean"])

    assert mean("consolidated", "steady") == mean("worst-fit", "steady") == mean("consolidated", "placed") == 1000.0
    assert mean("worst-fit", "placed") > 1200


def test_a_slow_fabric_stretches_more_and_a_journal_carries_it(tmp_path: Path) -> None:
    jobs = make_jobs(submit=[0], runtime=[1000], gpus=[8])
    slow = Fabric(leaf=Link(5.0, 9.6), spine=Link(5.0, 10.6))
    path, ends = tmp_path / "journal.jsonl", []
    for spec in (four_leaves(), replace(four_leaves(), fabric=slow)):
        with path.open("wb") as file:
            result = simulate(jobs, spec, preemptive("worst-fit"), hooks=RunHooks(journal=file.write))
        assert replay(path).header.cluster == spec
        assert replay(path).result.summary["jtted"] == result.summary["jtted"]
        ends.append(int(result.jobs.end[0]))
    assert ends[1] > ends[0] > 1000 * SECOND


def preemptive(placement: str, more: str = "") -> Profile:
    """As a text that a journal can carry."""
    text = f"""
        name = "stretched"
        order = {{ policy = "srtf" }}
        discipline = {{ policy = "preemptive" }}
        placement = {{ policy = "{placement}" }}
        simulation = {{ speed = "placed", shape = "gpu"{more} }}
    """
    return parse_profile(text, "test")


def test_a_journal_of_stretched_jobs_replays_to_the_same_digest_and_summary(tmp_path: Path) -> None:
    jobs = make_jobs(submit=[0, 5, 70, 140, 150], runtime=[900, 700, 60, 40, 500], gpus=[16, 12, 24, 8, 9])
    path, profile = tmp_path / "journal.jsonl", preemptive("random", ", checkpoint_s = 30, resume_cost = [[99, 11]]")
    with path.open("wb") as file:
        result = simulate(jobs, four_leaves(), profile, seed=3, hooks=RunHooks(journal=file.write))
    again = replay(path)
    assert again.equal
    assert result.summary["preemptions"] > 0 and result.summary["jtted"]["mean"] > 1.01
    for key in ("jct_s", "wait_by_size", "jtted", "lost_gpu_s", "sor"):
        assert again.result.summary[key] == result.summary[key]
    assert simulate(jobs, four_leaves(), profile, seed=3).summary["digest"] == again.replayed


def test_a_stretched_job_says_before_it_is_stopped_how_much_it_has_left(tmp_path: Path) -> None:
    """Sixteen GPUs over all eight nodes; a shorter job takes the place after 70 seconds."""
    jobs = make_jobs(submit=[0, 70], runtime=[1000, 10], gpus=[16, 32])
    path = tmp_path / "journal.jsonl"
    with path.open("wb") as file:
        result = simulate(jobs, four_leaves(), preemptive("worst-fit"), hooks=RunHooks(journal=file.write))
    said = [line for line in read_journal(path) if isinstance(line, JobProgressed | JobPreempted)]
    assert [type(line) for line in said] == [JobProgressed, JobPreempted]
    progressed = said[0]
    assert isinstance(progressed, JobProgressed)
    rest = int(result.jobs.end[0]) - 80 * SECOND  # its second run, on the same eight nodes
    slowdown = rest * FULL // progressed.remaining
    assert slowdown > 1100 and 1000 * SECOND - progressed.remaining == 70 * SECOND * FULL // slowdown


@pytest.mark.parametrize("extra", [{"static": True}, {"speed": "interval-overhead"}])
def test_checkpoints_go_with_placed_speed_but_not_where_nothing_is_saved(extra: dict[str, object]) -> None:
    assert read_options({"speed": "placed", "checkpoint_s": 5}, "test").speed == "placed"
    with pytest.raises(InputError, match="checkpoint_s"):
        read_options({"speed": "placed", "checkpoint_s": 5} | extra, "test")
