"""Faults in simulated time: what they cost, that nobody is lost to them, and that a run with them can be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kant.metrics.result import RunResult
from kant.model.errors import InputError
from kant.model.node import ClusterSpec
from kant.model.units import SECOND
from kant.scheduler.profile import Profile, builtin_profile, parse_profile
from kant.sim.faults import drawn
from kant.sim.options import read_options
from kant.sim.replay import replay, rerun
from kant.sim.run import RunHooks, simulate
from kant.testing import make_cluster, make_jobs, make_profile
from kant.workload.faults_file import read_faults
from kant.workload.generate import generate


def faulty(name: str, mtbf_days: float = 2.0, **options: Any) -> Profile:
    """A built-in profile under which every node fails every few days."""
    own = {"mtbf_days": mtbf_days, "repair_h": 3.0, "gpu_fault_share": 0.4, "checkpoint_s": 1800} | options
    table = "[simulation]\n" + "".join(f"{key} = {value}\n" for key, value in own.items())
    text = builtin_profile(name).text
    return parse_profile(
        text.replace("[simulation]\n", table) if "[simulation]\n" in text else f"{text}\n{table}", name
    )


def run_of(rows: str, cluster: ClusterSpec, folder: Path, jobs: Any, profile: Profile) -> RunResult:
    table = folder / "faults.csv"
    table.write_text("time_s,node,state,gpus,until_s\n" + rows)
    return simulate(jobs, cluster, profile, faults=read_faults(table, cluster))


@pytest.mark.parametrize("state", ["failed", "draining"])
def test_time_on_failed_and_drained_nodes_leaves_the_denominator(state: str, tmp_path: Path) -> None:
    jobs = make_jobs(submit=[0], runtime=[400], gpus=[8])
    rows = f"100,n1,{state},,\n300,n1,in-service,,\n"
    found = run_of(rows, make_cluster(8, 8), tmp_path, jobs, make_profile(placement="first-fit")).summary
    assert found["sor"] == pytest.approx(400 * 8 / (400 * 16 - 200 * 8))
    assert found["sor_all_nodes"] == 0.5
    assert (found["node_faults"], found["evictions"]) == (int(state == "failed"), 0)


def test_lost_gpus_leave_the_denominator_and_a_cordoned_node_does_not(tmp_path: Path) -> None:
    jobs = make_jobs(submit=[0], runtime=[400], gpus=[8])
    rows = "100,n1,cordoned,,\n200,n1,in-service,0|1|2|3,\n300,n1,in-service,,\n"
    found = run_of(rows, make_cluster(8, 8), tmp_path, jobs, make_profile(placement="first-fit")).summary
    assert found["sor"] == pytest.approx(400 * 8 / (400 * 16 - 100 * 4))
    assert found["node_faults"] == 1


@pytest.mark.parametrize(("spare", "ends"), [(1, 500 + 40 + 5), (0, 1000 + 500 - 60 + 5)])
def test_a_gang_loses_its_work_since_the_checkpoint_and_goes_on_beside_its_node(
    spare: int, ends: int, tmp_path: Path
) -> None:
    """After 100 s, with a checkpoint every 60 s and a restart that costs 5; without a spare node it waits for its."""
    jobs = make_jobs(submit=[0], runtime=[500], gpus=[8], pods=[2])
    profile = make_profile(placement="first-fit", checkpoint_s=60, resume_cost=[[64, 5]])
    found = run_of("100,n0,failed,,\n1000,n0,in-service,,\n", make_cluster(*[8] * (2 + spare)), tmp_path, jobs, profile)
    assert found.end == ends * SECOND
    assert found.summary["lost_gpu_s"] == 45 * 16
    assert (found.summary["evictions"], found.summary["replaced_in_place"]) == (1, spare)


def test_what_is_still_there_when_a_drain_ends_starts_elsewhere_or_waits(tmp_path: Path) -> None:
    jobs = make_jobs(submit=[0, 0], runtime=[300, 50], gpus=[4, 4])
    rows = "10,n0,draining,,100\n150,n0,in-service,,\n"
    found = run_of(rows, make_cluster(8), tmp_path, jobs, make_profile())
    assert found.jobs.end.tolist() == [350 * SECOND, 50 * SECOND]
    assert (found.summary["preemptions"], found.jobs.wait[0]) == (1, 50 * SECOND)


@pytest.mark.long
@pytest.mark.parametrize("name", ["kant", "conservative", "e-binpack", "srtf"])
def test_a_run_with_faults_loses_nobody_and_can_be_repeated(name: str, tmp_path: Path) -> None:
    jobs, cluster = generate("seren", gpus=128, load=0.9, days=2, seed=5), make_cluster(*[8] * 16)
    journal = tmp_path / "journal.jsonl"
    with journal.open("wb") as file:
        found = simulate(jobs, cluster, faulty(name), seed=3, hooks=RunHooks(journal=file.write)).summary
    assert found["completed"] == len(jobs)
    assert found["node_faults"] > 10 and found["lost_gpu_s"] > 0 and found["evictions"] > 0
    assert (found["replaced_in_place"] > 0) == (name != "srtf")
    assert found["sor"] > found["sor_all_nodes"]
    again = replay(journal)
    assert again.equal and again.replayed == found["digest"]
    for key in ("completed", "evictions", "node_faults", "replaced_in_place", "lost_gpu_s", "jct_s"):
        assert again.result.summary[key] == found[key], key
    if name == "kant":
        assert simulate(jobs, cluster, faulty(name), seed=3).summary["digest"] == found["digest"]
        assert simulate(jobs, cluster, faulty(name), seed=4).summary["digest"] != found["digest"]
        other = rerun(again, builtin_profile("fifo")).summary
        assert other["node_faults"] >= found["node_faults"] and other["completed"] == len(jobs)


def test_a_run_ends_although_nodes_go_on_failing() -> None:
    """A job that no node can hold waits for ever, and the faults have no end."""
    jobs = make_jobs(submit=[0, 0], runtime=[86_400, 10], gpus=[2, 3])
    found = simulate(jobs, make_cluster(4, 2), make_profile(mtbf_days=0.5, repair_h=1.0))
    assert found.summary["completed"] == 2
    profile = make_profile("fifo", "pooled", mtbf_days=0.5, repair_h=1.0)
    assert simulate(jobs, make_cluster(2), profile).summary["completed"] == 1


def test_what_a_node_suffers_depends_on_the_seed_and_on_it_alone() -> None:
    options = read_options({"mtbf_days": 10.0, "repair_h": 10.0, "gpu_fault_share": 0.5}, "test")

    def of_first(nodes: int, seed: int = 1) -> list[Any]:
        found = []
        for health in drawn(make_cluster(*[8] * nodes), options, seed):
            if health.node == 0:
                found.append(health)
            if len(found) == 20:
                return found
        raise AssertionError

    assert of_first(1) == of_first(7) != of_first(1, seed=2)
    times = [health.time for health in of_first(1)]
    assert times == sorted(times)
    for ill, well in zip(of_first(1)[::2], of_first(1)[1::2], strict=True):
        assert (ill.status != 0) != (ill.lost != 0) and (well.status, well.lost) == (0, 0)


def test_drawn_faults_keep_their_means() -> None:
    options = read_options({"mtbf_days": 20.0, "repair_h": 48.0, "gpu_fault_share": 0.25}, "test")
    faults = []
    for health in drawn(make_cluster(*[8] * 50), options, 0):
        if health.time > 2000 * 86_400 * SECOND:
            break
        faults += [health] if health.status or health.lost else []
    assert len(faults) == pytest.approx(50 * 2000 / 22, rel=0.06), "one in 20 days of health and 2 of illness"
    assert sum(health.lost > 0 for health in faults) / len(faults) == pytest.approx(0.25, abs=0.03)


BAD_ROWS = {
    "1,n9,failed,,": "row 1, field node: expected a node of the cluster test, got 'n9'",
    "1,n0,broken,,": "row 1, field state: expected one of in-service, cordoned, draining, failed, left, got 'broken'",
    "1,n0,in-service,8,": "row 1, field gpus: expected numbers of GPUs from 0 to 7, separated by '|', got '8'",
    "1,n0,in-service,1|x,": "row 1, field gpus: expected numbers of GPUs from 0 to 7, separated by '|', got '1|x'",
    "1,n0,failed,,5": "row 1, field until_s: expected none, or with state draining a time not before time_s, got 5",
    "9,n0,draining,,5": "row 1, field until_s: expected none, or with state draining a time not before time_s, got 5",
    "1,n0,failed,,\n1,n0,in-service,,": "row 2: expected one row for node n0 at 1 s",
    "soon,n0,failed,,": "time_s",
}


@pytest.mark.parametrize("rows", BAD_ROWS)
def test_a_row_that_cannot_be_is_refused_in_one_sentence(rows: str, tmp_path: Path) -> None:
    table = tmp_path / "faults.csv"
    table.write_text("time_s,node,state,gpus,until_s\n" + rows + "\n")
    with pytest.raises(InputError) as refusal:
        read_faults(table, make_cluster(8))
    assert BAD_ROWS[rows] in str(refusal.value) and str(table) in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"mtbf_days": -1.0}, "mtbf_days"),
        ({"mtbf_days": 5.0, "static": True}, "mtbf_days"),
        ({"repair_h": 0.0}, "repair_h"),
        ({"gpu_fault_share": 1.5}, "gpu_fault_share"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"simulation.{field}"):
        read_options(options, "test")


def test_faults_come_from_one_place(tmp_path: Path) -> None:
    jobs = make_jobs(submit=[0], runtime=[400], gpus=[8])
    for profile, why in (
        (make_profile(mtbf_days=5.0), "mtbf_days"),
        (make_profile("fifo", "loss", static=True), "static"),
    ):
        with pytest.raises(InputError, match=why):
            run_of("1,n0,failed,,\n", make_cluster(8), tmp_path, jobs, profile)
