"""Jobs of a workload that wait for others to end well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.model.errors import InputError
from kant.model.status import JobStatus
from kant.model.units import SECOND
from kant.sim.replay import replay as replayed
from kant.sim.run import RunHooks, simulate
from kant.testing import make_cluster, make_jobs, make_profile
from kant.workload.convert import write_workload
from kant.workload.digest import workload_digest
from kant.workload.read import read_workload
from kant.workload.workload import Workload


@st.composite
def chains(draw: st.DrawFn, gpus: int) -> Workload:
    """Up to eight jobs of up to so many GPUs, each of which waits for some that stand before it in a drawn order."""
    n = draw(st.integers(1, 8))
    order = draw(st.permutations(range(n)))
    edges = [(order[i], order[j]) for i in range(n) for j in range(i) if draw(st.integers(0, 3)) == 0]
    return make_jobs(
        submit=sorted(draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))),
        runtime=draw(st.lists(st.integers(0, 20), min_size=n, max_size=n)),
        gpus=draw(st.lists(st.integers(0, gpus), min_size=n, max_size=n)),
        limit=draw(st.lists(st.sampled_from([-1, 10]), min_size=n, max_size=n)),
        after=np.array(edges, dtype=np.int64).reshape(-1, 2),
    )


@given(chains(4))
@settings(max_examples=examples(60))
def test_where_there_is_room_each_starts_when_the_last_that_it_waits_for_has_ended(jobs: Workload) -> None:
    run = simulate(jobs, make_cluster(*[4] * 8), make_profile())
    table = {name: row for row, name in enumerate(run.jobs.id)}
    assert sorted(table) == sorted(jobs.ids)

    def end(row: int) -> int:
        return begin(row) + int(jobs.runtime[row])

    def begin(row: int) -> int:
        return max([int(jobs.submit[row]), *(end(b) for a, b in jobs.after.tolist() if a == row)])

    for row, name in enumerate(jobs.ids):
        assert run.jobs.first_start[table[name]] == run.jobs.submit[table[name]] == begin(row)
        assert run.jobs.end[table[name]] == end(row)


@given(chains(12), st.sampled_from(["strict", "best-effort", "easy"]), st.integers(0, 40))
@settings(max_examples=examples(60))
def test_nobody_comes_before_the_others_have_ended_well_and_nobody_is_lost(
    jobs: Workload, discipline: str, until: int
) -> None:
    lines: list[bytes] = []
    profile = make_profile(discipline=discipline, enforce_limits=True)
    run = simulate(
        jobs, make_cluster(4, 4), profile, until=until * SECOND, hooks=RunHooks(journal=lines.append)
    )  # fmt: skip
    found = {name: row for row, name in enumerate(run.jobs.id)}
    assert len(found) == len(run.jobs.id)
    well, status = JobStatus.FINISHED, run.jobs.status
    for row, name in enumerate(jobs.ids):
        ahead = [jobs.ids[other] for one, other in jobs.after.tolist() if one == row]
        if name not in found:
            assert jobs.submit[row] > run.end
            continue
        mine = found[name]
        if run.jobs.first_start[mine] >= 0:
            assert all(status[found[b]] == well and run.jobs.end[found[b]] <= run.jobs.submit[mine] for b in ahead)
        if any(b in found and status[found[b]] in (JobStatus.REJECTED, JobStatus.CANCELLED) for b in ahead):
            assert status[mine] == JobStatus.CANCELLED
        if status[mine] == JobStatus.CANCELLED:
            assert any(b in found and status[found[b]] in (JobStatus.REJECTED, JobStatus.CANCELLED) for b in ahead)
    assert simulate(jobs, make_cluster(4, 4), profile, until=until * SECOND).summary["digest"] == run.summary["digest"]


def test_a_run_with_dependencies_replays(tmp_path: Path) -> None:
    path = tmp_path / "chain.csv"
    path.write_text(
        "id,submit_s,runtime_s,gpus,after\n"
        "last,0,5,2,left|right\nfirst,1,10,8,\nleft,0,20,8,first\nright,2,30,16,first\nnever,0,5,1,huge\nhuge,0,5,64,\n"
    )
    out = tmp_path / "out"
    found = kant("simulate", path, "--cluster", "2x8", "--out", out, "--json").json()
    assert (found["completed"], found["rejected"], found["makespan_s"]) == (4, 1, 66)
    again = replayed(out / "journal.jsonl")
    assert again.equal and again.difference is None
    assert kant("replay", out / "journal.jsonl").code == 0


def test_who_waits_for_one_that_never_ends_is_counted(tmp_path: Path) -> None:
    jobs = make_jobs(submit=[0, 0, 0], runtime=[100, 5, 5], after=np.array([[1, 0], [2, 1]]))
    run = simulate(jobs, make_cluster(4), make_profile(), until=50 * SECOND)
    assert run.summary["jobs"] == run.summary["censored"] == 3 and run.summary["completed"] == 0


def test_dependencies_are_read_written_and_cut() -> None:
    jobs = make_jobs(submit=[0, 1, 2], runtime=[1, 1, 1], after=np.array([[2, 0], [2, 1], [0, 1]]))
    assert jobs.take(np.array([2, 1])).after.tolist() == [[0, 1]]
    assert jobs.take(np.array([True, False, True])).after.tolist() == [[1, 0]]
    alone = make_jobs(submit=[0, 1, 2], runtime=[1, 1, 1])
    assert workload_digest(alone) != workload_digest(jobs)
    assert workload_digest(jobs) == workload_digest(jobs.take(np.arange(3)))


@pytest.mark.parametrize("name", ["chain.csv", "chain.parquet"])
def test_a_file_keeps_who_waits_for_whom(tmp_path: Path, name: str) -> None:
    jobs = make_jobs(submit=[0, 1, 2], runtime=[1, 1, 1], after=np.array([[2, 0], [2, 1], [0, 1]]))
    write_workload(jobs, tmp_path / name)
    read = read_workload(tmp_path / name)
    assert sorted(read.after.tolist()) == sorted(jobs.after.tolist())
    assert workload_digest(read) == workload_digest(jobs)
    with pytest.raises(InputError, match="hold no"):
        write_workload(replace(jobs, ids=["a|b", "b", "c"]), tmp_path / "bad.csv")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("a,0,1,1,,b\nb,0,1,1,,\n", ""),
        (
            "a,0,1,1,,c\nb,0,1,1,,\n",
            "job a, field after: expected identifiers of jobs of the file, or nothing, got 'c'",
        ),
        ("a,0,1,1,,a\n", "cycle, got 'a -> a'"),
        ("a,0,1,1,,b\nb,0,1,1,,a\n", "cycle"),
        ("a,0,1,1,,\nb,1,1,1,a,\nc,2,1,1,,b\n", "job c, field after: expected jobs that neither are nor have burst"),
        ("a,0,1,1,,\nb,1,1,1,a,\nc,2,1,1,,a\n", "neither are nor have burst"),
        ("a,0,1,1,,b||\nb,0,1,1,,\n", "identifiers"),
    ],
)
def test_dependencies_that_cannot_be_are_refused(tmp_path: Path, rows: str, says: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit_s,runtime_s,gpus,core,after\n" + rows)
    if says:
        with pytest.raises(InputError) as refused:
            read_workload(path)
        assert says in str(refused.value)
    else:
        assert read_workload(path).after.tolist() == [[0, 1]]
