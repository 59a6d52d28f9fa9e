"""`kant plan capacity` of a journal: what the jobs that came would have needed, in nodes, by day."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.studies.judges import capacity_faults as faults
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.live.journal_jobs import runs_of
from kant.model.errors import InputError
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.units import HOUR, MINUTE, SECOND
from kant.optimize.capacity.from_jobs import JobRun, asked_of, nodes_for
from kant.optimize.capacity.solve import plan
from kant.sim.run import RunHooks, simulate
from kant.testing import make_job, make_jobs, make_profile

CLUSTER = ClusterSpec("test", (*(Node(f"n{i}", 8, model="H100") for i in range(8)), Node("old", 4, model="V100")))
JOBS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(1, 24)), min_size=1, max_size=8)


def run_of(number: int, submit: int, ran: int, gpus: int, **fields: object) -> JobRun:
    """A job of pods of one GPU, in minutes."""
    return JobRun(make_job(str(number), 1, gpus, submit=submit * MINUTE, **fields), ran * MINUTE)  # type: ignore[arg-type]


@given(JOBS)
@settings(max_examples=examples(30), deadline=None)
def test_jobs_that_may_not_wait_need_what_they_overlap(jobs: list[tuple[int, int, int]]) -> None:
    runs = [run_of(number, *job) for number, job in enumerate(jobs)]
    asked = asked_of(runs, CLUSTER, 0, MINUTE)
    most = max(sum(gpus for at, ran, gpus in jobs if at <= now < at + ran) for now in range(61))
    found = plan(asked.instance, rounds=2, windows=0)
    assert faults(asked.instance, found.starts) == []
    assert found.peaks == {"H100": most}


@given(JOBS, st.integers(0, 60))
@settings(max_examples=examples(30), deadline=None)
def test_no_job_waits_longer_than_it_may(jobs: list[tuple[int, int, int]], wait: int) -> None:
    runs = [run_of(number, *job) for number, job in enumerate(jobs)]
    asked = asked_of(runs, CLUSTER, wait * MINUTE, MINUTE)
    found = plan(asked.instance, rounds=2, windows=0)
    for number, (submit, _, _) in enumerate(jobs):
        assert submit <= found.starts[str(number), "run"] <= submit + wait


def test_what_a_job_counts_as() -> None:
    def one(job: Job) -> dict[str, int]:
        (process,) = asked_of([JobRun(job, HOUR)], CLUSTER, 0, MINUTE).instance.processes
        return dict(process.tasks[0].demand)

    assert one(make_job("a", 4, 3)) == {"H100": 12}  # two pods of four fit a node
    assert one(make_job("a", 5, 3)) == {"H100": 24}  # of five only one does
    assert one(make_job("a", 4, 2, models=("B200", "V100"))) == {"V100": 8}
    assert one(Job("a", 0, (PodGroup(3, Demand(1, 500)),))) == {"H100": 2}
    assert (nodes_for(24, 8), nodes_for(25, 8)) == (3, 4)


def test_due_dates_and_jobs_that_say_nothing() -> None:
    runs = [
        run_of(0, 10, 20, 1, due=60 * MINUTE), run_of(1, 10, 20, 1, due=15 * MINUTE),
        JobRun(make_job("lost", 1), -1), JobRun(make_job("no-gpu", 0), HOUR),
    ]  # fmt: skip
    asked = asked_of(runs, CLUSTER, HOUR, MINUTE)
    assert [(each.release, each.deadline) for each in asked.instance.processes] == [(10, 60), (10, 30)]
    assert asked.left_out == ("lost", "no-gpu")
    with pytest.raises(InputError, match="whose run times are known"):
        asked_of(runs[2:], CLUSTER, HOUR, MINUTE)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Four jobs of a node each come at once to two nodes."""
    path = tmp_path / "journal.jsonl"
    jobs = make_jobs(submit=[0, 0, 0, 90_000], runtime=[3600, 3600, 1800, 3600], gpus=[8] * 4)
    nodes = tuple(Node(f"n{i}", 8) for i in range(2))
    with path.open("wb") as file:
        simulate(jobs, ClusterSpec("two", nodes), make_profile(), hooks=RunHooks(journal=file.write))
    return path


def test_jobs_of_a_journal_have_run_as_long_as_they_did(journal: Path) -> None:
    cluster, runs = runs_of(journal)
    assert len(cluster.nodes) == 2
    assert [run.ran // SECOND for run in runs] == [3600, 3600, 1800, 3600]


def test_a_journal_says_how_many_nodes_by_day(journal: Path) -> None:
    at_once = kant("plan", "capacity", journal, "--wait", "0s", "--json").json()
    assert at_once["nodes_by_day"] == [{"gpus": 3}, {"gpus": 1}]
    for wait, nodes in (("29m", 3), ("30m", 2), ("90m", 1)):  # half an hour, an hour, an hour
        (gpus,) = kant("plan", "capacity", journal, "--wait", wait, "--json").json()["resources"]
        assert gpus["nodes"] == nodes
    assert "nodes of gpus" in kant("plan", "capacity", journal).out


def test_options_that_say_nothing_are_refused(journal: Path, tmp_path: Path) -> None:
    pipelines = tmp_path / "p.json"
    pipelines.write_text(
        '{"tick": "1h", "resources": [{"name": "gpus"}],'
        ' "processes": [{"id": "a", "deadline": "9h", "every": "1d", "times": 2,'
        ' "tasks": [{"id": "t", "duration": "1h", "demand": {"gpus": 20}}]}]}'
    )
    found = kant("plan", "capacity", pipelines, "--node", "8", "--json").json()
    assert found["nodes_by_day"] == [{"gpus": 3}, {"gpus": 3}]
    assert "--wait: expected a journal.jsonl" in kant("plan", "capacity", pipelines, "--wait", "1h").refusal()
    assert "--node: expected a file of pipelines" in kant("plan", "capacity", journal, "--node", "8").refusal()
    assert "--tick: expected" in kant("plan", "capacity", journal, "--tick", "0s").refusal()
    pipelines.write_text(pipelines.read_text().replace("gpus", "cores"))
    assert (
        "--node: expected a resource of the name gpus" in kant("plan", "capacity", pipelines, "--node", "8").refusal()
    )
