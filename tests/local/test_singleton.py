"""Of jobs of one user and name one runs at a time, in the order in which they came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.cli.scripts import expanded
from kant.local.jobs import LocalJobs
from kant.local.record import JobPhase, JobRecord
from kant.model.submission import Submission


@pytest.fixture
def kant(tmp_path: Path) -> Iterator[Up]:
    """A virtual cluster of two nodes of four GPUs."""
    with Up(tmp_path / "home") as up:
        yield up


def phases(kant: Up, jobs: list[str]) -> list[str]:
    return [kant.phase(job) for job in jobs]


def test_one_after_the_other_and_others_pass(kant: Up) -> None:
    one = {"singleton": True, "name": "sync", "grace_s": 0.1}
    jobs = [kant.submit("sleep 600", **one) for _ in range(3)]
    other, plain = kant.submit("true", singleton=True, name="other"), kant.submit("true", name="sync")
    assert kant.over(other, plain) == ["finished"] * 2
    assert eventually(lambda: phases(kant, jobs) == ["running", "blocked", "blocked"])
    said = verb("why", jobs[2], "--home", kant.home).out
    assert f"it depends on job {jobs[0]}, which has not ended" in said
    for n in range(3):
        assert eventually(lambda n=n: phases(kant, jobs)[n:] == ["running", "blocked", "blocked"][: 3 - n])
        kant.client.post(kant.client.job(jobs[n], "cancel"))
    assert kant.over(*jobs) == ["cancelled"] * 3


def test_it_waits_for_earlier_ones_that_are_none_and_not_for_its_own_array(kant: Up) -> None:
    first = kant.submit("sleep 600", name="sync", grace_s=0.1)
    array = kant.submit("sleep 600", name="sync", singleton=True, array=[0, 1], grace_s=0.1).partition("_")[0]
    jobs = [f"{array}_{i}" for i in range(2)]
    assert eventually(lambda: phases(kant, [first, *jobs]) == ["running", "blocked", "blocked"])
    kant.client.post(kant.client.job(first, "cancel"))
    assert eventually(lambda: phases(kant, jobs) == ["running"] * 2)
    kant.client.post(kant.client.job(array, "cancel"))
    assert kant.over(*jobs) == ["cancelled"] * 2


def test_it_waits_again_after_a_kill(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home) as kant:
        jobs = [kant.submit("sleep 600", singleton=True, name="sync", grace_s=0.1) for _ in range(2)]
        assert eventually(lambda: phases(kant, jobs) == ["running", "blocked"])
        kant.kill()
    with Up(home) as kant:
        assert eventually(lambda: phases(kant, jobs) == ["running", "blocked"])
        kant.client.post(kant.client.job(jobs[0], "cancel"))
        assert eventually(lambda: kant.phase(jobs[1]) == "running")
        kant.client.post(kant.client.job(jobs[1], "cancel"))
        kant.over(*jobs)


def test_slurms_word_for_it_is_understood(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --dependency=afterok:7,singleton\ntrue\n")
    assert expanded(["submit", str(script)])[1:4] == ["--after-ok", "7", "--singleton"]
    assert expanded(["submit", "--singleton", "--", "true"]) == ["submit", "--singleton", "--", "true"]


def test_the_jobs_of_an_array_look_once_for_earlier_ones_and_again_after_a_new_name() -> None:
    nothing: Any = None
    jobs, scans = LocalJobs(nothing, nothing, nothing, (), lambda: None), 0

    class Records(dict[str, JobRecord]):
        def values(self) -> Any:
            nonlocal scans
            scans += 1
            return super().values()

    def record(seq: int, name: str, phase: JobPhase, array: int = -1) -> JobRecord:
        wish = Submission(command=("true",), workdir="/", name=name, singleton=array >= 0)
        return JobRecord(seq, str(seq), wish, b"", "ann", 0, phase, array, seq - array if array >= 0 else -1)

    one, two = record(1, "other", JobPhase.HELD), record(2, "same", JobPhase.HELD)
    array = [record(seq, "same", JobPhase.BLOCKED, 3) for seq in range(3, 53)]
    jobs.records = Records({each.id: each for each in (one, two, *array)})
    for each in array:
        jobs.block(each)
    assert list(jobs.waits_for["2"]) == [each.id for each in array] and scans == 1
    jobs.change(one, replace(one, submission=two.submission))
    jobs.block(array[0])
    assert list(jobs.waits_for["1"]) == [array[0].id] and scans == 2
    one.phase = JobPhase.CANCELLED
    jobs.waits_for.clear()
    jobs.block(array[0])
    assert list(jobs.waits_for) == ["2"] and scans == 3
