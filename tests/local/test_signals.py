"""Signals that people send to a running job."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.cli.jobs import SIGNALS
from kant.local.processes import marked
from kant.local.record import SignalName
from kant.local.runs import mark

LISTENS = "trap 'echo got $KANT_ARRAY_INDEX' USR1; echo ready; while :; do sleep 0.05; done"


def listening(kant: Up, *jobs: str) -> bool:
    return eventually(lambda: all(kant.log(job) == "ready\n" for job in jobs))


def test_what_has_a_handler_gets_it_and_what_has_none_goes_on(kant: Up) -> None:
    at = ("--home", kant.home)
    job = kant.submit(LISTENS, grace_s=0.1)  # each `sleep` of the script has no handler, and would be ended
    assert listening(kant, job)
    assert verb("signal", job, "SIGUSR1", "--json", *at).json() == {"jobs": [job]}
    assert eventually(lambda: kant.log(job) == "ready\ngot\n")
    assert "a process of the job that handles SIGUSR2" in verb("signal", job, "usr2", *at).refusal()
    assert verb("signal", job, "TERM", *at).code == 0
    assert kant.over(job) == ["failed"]
    assert kant.job(job)["job"]["signal"] == 15


def test_a_job_is_stopped_and_goes_on(kant: Up) -> None:
    job = kant.submit(LISTENS, grace_s=0.1)
    assert listening(kant, job)

    def states() -> set[str]:
        pids = marked(mark(kant.home / "runs" / job / "1"))
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
        return set(stats)

    assert verb("signal", job, "STOP", "--home", kant.home).code == 0
    assert eventually(lambda: states() in ({"T"}, {"T", "D"})), states()  # D: whoever forks waits for a stopped child
    assert verb("signal", job, "CONT", "--home", kant.home).code == 0
    assert verb("signal", job, "USR1", "--home", kant.home).code == 0
    assert eventually(lambda: kant.log(job) == "ready\ngot\n")
    kant.client.post(kant.client.job(job, "cancel"))


def test_of_an_array_those_that_run_get_it(kant: Up) -> None:
    first = kant.submit(LISTENS, gpus=4, array=[0, 1, 2], grace_s=0.1).partition("_")[0]
    jobs = [f"{first}_{i}" for i in range(3)]
    assert listening(kant, *jobs[:2])
    assert kant.client.post(kant.client.job(first, "signal"), {"signal": "USR1"})["jobs"] == jobs[:2]
    assert eventually(lambda: [kant.log(job) for job in jobs[:2]] == ["ready\ngot 0\n", "ready\ngot 1\n"])
    kant.client.post(kant.client.job(first, "cancel"))


def test_signals_and_jobs_that_cannot_be_are_refused(kant: Up) -> None:
    assert get_args(SignalName) == SIGNALS
    held = kant.submit("true", hold=True)
    assert "expected a running job, got 'held'" in verb("signal", held, "USR1", "--home", kant.home).refusal()
    assert "one of HUP, INT" in verb("signal", held, "SIGNOTHING", "--home", kant.home).refusal()
    assert "the id of a job" in verb("signal", "99999", "USR1", "--home", kant.home).refusal()
    kant.client.post(kant.client.job(held, "cancel"))
