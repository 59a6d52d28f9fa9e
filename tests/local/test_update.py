"""A job that waits is changed: it asks for something else from then on, and keeps its age."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.model.tenant import Queue, QueueConfig


@pytest.fixture
def kant(tmp_path: Path) -> Iterator[Up]:
    """A virtual cluster of two nodes of four GPUs."""
    with Up(tmp_path / "home") as up:
        yield up


def filled(kant: Up) -> str:
    """A job that has all GPUs until it is cancelled."""
    job = kant.submit("sleep 600", gpus=8, grace_s=0.1, preemptible=False)
    assert eventually(lambda: kant.phase(job) == "running")
    return job


def waits(kant: Up, *jobs: str) -> bool:
    return eventually(lambda: all(kant.phase(job) == "waiting" for job in jobs))


def test_a_higher_priority_starts_first_and_each_keeps_its_age(kant: Up) -> None:
    block, at = filled(kant), ("--home", kant.home)
    first, second, third = (kant.submit("sleep 600", gpus=8, grace_s=0.1) for _ in range(3))
    assert waits(kant, first, second, third)
    said = verb("update", third, "--priority", "7", "--name", "urgent", "--time", "1h", "--json", *at).json()
    assert said == {"jobs": [third]}
    told = kant.job(third)
    assert (told["job"]["priority"], told["job"]["name"], told["time_s"]) == (7, "urgent", 3600)
    assert waits(kant, third)
    ranks = {job: kant.client.get(kant.client.job(job, "why"))["answer"]["in_queue"]["rank"] for job in (first, third)}
    assert ranks == {first: 2, third: 1}
    verb("update", first, "--name", "old", *at)
    assert kant.client.get(kant.client.job(first, "why"))["answer"]["in_queue"]["rank"] == 2, "it keeps its age"
    kant.client.post(kant.client.job(block, "cancel"))
    assert eventually(lambda: kant.phase(third) == "running")
    assert [kant.phase(job) for job in (first, second)] == ["waiting", "waiting"]
    assert "expected a waiting job, or only a new time_s" in verb("update", third, "--priority", "1", *at).refusal()
    for job in (first, second, third):
        kant.client.post(kant.client.job(job, "cancel"))


def test_what_was_changed_outlives_kant(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home) as kant:
        held = kant.submit("true", gpus=1, hold=True)
        blocked = kant.submit("true", after=[held])
        twin = kant.submit("true", gpus=1, hold=True, name="twin")
        verb("update", held, blocked, "--priority", "3", "--name", "twin", "--home", home)
        verb("update", held, "--priority", "0", "--home", home)
        kant.kill()
    with Up(home) as kant:
        rows = {row["id"]: row for row in kant.client.get("/v1/jobs")["jobs"]}
        assert [(rows[job]["priority"], rows[job]["name"]) for job in (held, blocked, twin)] == [
            (0, "twin"), (3, "twin"), (0, "twin"),
        ]  # fmt: skip
        verb("release", held, twin, "--home", home)
        assert kant.over(held, blocked, twin) == ["finished"] * 3


def test_of_an_array_those_that_wait_are_changed(kant: Up) -> None:
    first = kant.submit(
        "sleep 600", gpus=4, array=[0, 1, 2, 3], array_most=3, grace_s=0.1, preemptible=False
    ).partition("_")[0]
    jobs = [f"{first}_{i}" for i in range(4)]
    assert eventually(lambda: [kant.phase(job) for job in jobs] == ["running", "running", "waiting", "blocked"])
    assert kant.client.post(kant.client.job(first, "update"), {"priority": 5})["jobs"] == jobs[2:]
    assert [kant.job(job)["job"]["priority"] for job in jobs] == [0, 0, 5, 5]
    assert eventually(lambda: sorted(kant.phase(job) for job in jobs[2:]) == ["blocked", "waiting"])
    kant.client.post(kant.client.job(first, "cancel"))


def test_another_queue_is_one_that_there_is(tmp_path: Path) -> None:
    with Up(tmp_path / "home", queue_config=QueueConfig((Queue("red"), Queue("blue")))) as kant:
        at = ("--home", kant.home)
        job = kant.submit("true", queue="red", hold=True)
        assert "queue: expected one of red, blue, got 'green'" in verb("update", job, "--queue", "green", *at).refusal()
        none = verb("submit", *at, "--", "true").refusal()
        assert "queue: expected --queue with one of red, blue, since there is no queue named default" in none
        verb("update", job, "--queue", "blue", *at)
        assert kant.job(job)["job"]["queue"] == "blue"
        assert "one of --priority" in verb("update", job, *at).refusal()
        assert "the ids of jobs" in verb("update", "--priority", "1", *at).refusal()
        assert "a duration" in verb("update", job, "--time", "soon", *at).refusal()


def test_the_limit_of_a_job_that_runs(kant: Up) -> None:
    """Lowered: it is warned and ends as if it had had that limit. Raised: it runs on, and eta knows."""
    at = ("--home", kant.home)
    traps = "trap 'echo warned' USR1; for i in $(seq 900); do sleep 0.1; done"
    short, long = (kant.submit(traps, gpus=4, time_s=s, warn_s=1, grace_s=0.1) for s in (600, 1.5))
    behind = kant.submit("true", gpus=8, time_s=60)
    assert eventually(lambda: [kant.phase(job) for job in (short, long)] == ["running"] * 2)
    assert verb("update", long, "--time", "40m", "--json", *at).json() == {"jobs": [long]}
    rows = {job: kant.job(job)["job"] for job in (short, long)}
    assert rows[long]["limit_us"] == 2400 * 10**6
    (found,) = kant.client.get("/v1/eta", job=behind)["jobs"]
    assert found["expected_us"]["p90"] == pytest.approx(2400e6, abs=60e6)
    assert ", which job" in verb("update", short, "--time", "1ms", *at).refusal()
    wrong = verb("update", short, "--time", "1h", "--name", "x", *at).refusal()
    assert "expected a waiting job, or only a new time_s, got 'running'" in wrong
    verb("update", short, "--time", "3s", *at)
    assert kant.over(short) == ["failed"]
    ended = kant.job(short)["job"]
    assert ended["reason"] == "it reached its time limit of 3s" and "warned" in kant.log(short)
    assert 2.9e6 < ended["ended"] - ended["started"] < 30e6
    assert kant.phase(long) == "running"
    text = kant.client.get(kant.client.job(long, "history"))
    assert "its time limit is now 40m" in str(text)
    kant.client.post(kant.client.job(long, "cancel"))


def test_the_supervisor_keeps_another_limit_without_kant(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home) as kant:
        longer = kant.submit("sleep 5", time_s=2)
        shorter = kant.submit("sleep 600", time_s=600, grace_s=0.1)
        assert eventually(lambda: [kant.phase(job) for job in (longer, shorter)] == ["running"] * 2)
        verb("update", longer, "--time", "1h", "--home", home)
        verb("update", shorter, "--time", "4s", "--home", home)
        kant.kill()
    time.sleep(7)
    with Up(home) as kant:
        assert kant.over(longer, shorter) == ["finished", "failed"]
        assert kant.job(shorter)["job"]["reason"] == "it reached its time limit of 4s"


def test_a_job_that_waits_comes_after_other_jobs(tmp_path: Path) -> None:
    """Those take the place of all before, also across a crash; none that would never end is taken."""
    home = tmp_path / "home"
    with Up(home) as kant:
        at = ("--home", home)
        old, new = (kant.submit("true", hold=True) for _ in range(2))
        job = kant.submit("true", after_ok=[old])
        failed = kant.submit("false")
        assert kant.over(failed) == ["failed"]
        wrong = verb("update", job, "--dependency", f"afterok:{failed}", *at).refusal()
        assert f"that can still be met (it depends on the success of job {failed}, which did not succeed)" in wrong
        wrong = verb("update", old, "--dependency", f"afterany:{job}", *at).refusal()
        assert f"expected jobs that do not depend on job {old} themselves, got 'job {job}'" in wrong
        wrong = verb("update", job, "--dependency", f"afterok:{failed}?afterok:{failed}", *at).refusal()
        assert "expected conditions that can still be met" in wrong
        assert "expected afterany, afterok" in verb("update", job, "--dependency", "soon", *at).refusal()
        assert kant.job(job)["after_ok"] == [old]
        assert verb("update", job, "--dependency", f"afterany:{new}?afterok:{failed}", "--json", *at).json() == {
            "jobs": [job]
        }
        verb("update", job, "--dependency", f"afterok:{new}", *at)
        kant.client.post(kant.client.job(old, "cancel"))
        assert kant.phase(job) == "blocked"
        kant.kill()
    with Up(home) as kant:
        assert (kant.phase(job), kant.job(job)["after_ok"]) == ("blocked", [new])
        verb("release", new, *at)
        assert kant.over(new, job) == ["finished"] * 2


def test_a_job_that_is_ready_waits_again_and_none_lets_it_go(kant: Up) -> None:
    block, at = filled(kant), ("--home", kant.home)
    held = kant.submit("true", hold=True)
    twin = kant.submit("true", hold=True, name="twin")
    job, single = kant.submit("true", gpus=8), kant.submit("true", gpus=8, name="twin", singleton=True)
    assert waits(kant, job) and kant.phase(single) == "blocked"
    verb("update", job, "--dependency", f"after:{held}+1", *at)
    assert kant.phase(job) == "blocked" and "long enough ago" in kant.job(job)["job"]["waits"]
    verb("update", twin, "--name", "other", *at)
    assert waits(kant, single)
    verb("update", twin, "--dependency", f"afterany:{single}", *at)
    assert "do not depend on job" in verb("update", twin, "--name", "twin", *at).refusal(), "it would wait for its twin"
    verb("update", job, "--dependency", "none", *at)
    assert waits(kant, job)
    for one in (block, held, twin, job, single):
        kant.client.post(kant.client.job(one, "cancel"))
