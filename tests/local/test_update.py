"""A job that waits is changed: it asks for something else from then on, and keeps its age."""

from __future__ import annotations

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
    assert "expected a job that waits, got 'running'" in verb("update", third, "--priority", "1", *at).refusal()
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
        verb("update", job, "--queue", "blue", *at)
        assert kant.job(job)["job"]["queue"] == "blue"
        assert "one of --priority" in verb("update", job, *at).refusal()
        assert "the ids of jobs" in verb("update", "--priority", "1", *at).refusal()
        assert "a duration" in verb("update", job, "--time", "soon", *at).refusal()
