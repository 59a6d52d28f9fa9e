"""A job that runs is put back into the queue: it stops, waits and runs anew, once."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

SCRIPT = "echo run $KANT_ATTEMPT; test $KANT_ATTEMPT = 1 && sleep 600; true"


def test_a_job_that_runs_waits_and_runs_anew(tmp_path: Path) -> None:
    with Up(tmp_path / "home") as kant:
        at = ("--home", kant.home)
        job = kant.submit(SCRIPT, gpus=8)
        assert eventually(lambda: kant.phase(job) == "running" and kant.log(job) == "run 1\n")
        assert verb("requeue", job, "--json", *at).json()["jobs"] == [job]
        assert kant.over(job) == ["finished"]
        found = kant.job(job)["job"]
        assert (found["attempt"], found["failures"]) == (2, 0) and kant.log(job) == "run 2\n"
        assert verb("logs", job, "--attempt", "1", *at).out == "run 1\n"
        assert "expected a running job, got 'finished'" in verb("requeue", job, *at).refusal()
        held = kant.submit("true", hold=True)
        assert "expected a running job, got 'held'" in verb("requeue", held, *at).refusal()


def test_of_an_array_those_that_run_are_put_back_also_across_a_kill(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home) as kant:
        first = kant.submit(SCRIPT, gpus=4, array=[0, 1, 2], grace_s=0.1).partition("_")[0]
        jobs = [f"{first}_{i}" for i in range(3)]
        assert eventually(lambda: [kant.log(job) for job in jobs[:2]] == ["run 1\n"] * 2)
        assert kant.client.post(kant.client.job(first, "requeue"))["jobs"] == jobs[:2]
        kant.kill()
    with Up(home) as kant:
        assert eventually(lambda: kant.phase(jobs[2]) == "running")
        kant.client.post(kant.client.job(jobs[2], "requeue"))
        assert kant.over(*jobs) == ["finished"] * 3
        assert [kant.job(job)["job"]["attempt"] for job in jobs] == [2] * 3
