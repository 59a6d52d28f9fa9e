"""Reservations on one machine: booked by the calendar, kept across restarts, and free when they begin."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.model.tenant import Queue, QueueConfig


@pytest.fixture
def kant(tmp_path: Path) -> Iterator[Up]:
    """A virtual cluster of two nodes of four GPUs."""
    with Up(tmp_path / "home") as up:
        yield up


def booked(kant: Up) -> dict[str, Any]:
    rows = kant.client.get("/v1/reservations")["reservations"]
    return {row["name"]: row for row in rows}


def test_a_job_runs_in_its_reservation_and_nobody_else_does(kant: Up) -> None:
    at = ("--home", kant.home)
    made = verb("reserve", "exam", "--gpus", "4", "--time", "1h", "--json", *at).json()
    assert made["moved"] == [] and made["reservation"]["phase"] == "active"
    (node,) = made["reservation"]["place"]
    own = kant.submit("sleep 600", gpus=2, reservation="exam", grace_s=0.1)
    others = [kant.submit("sleep 600", gpus=gpus, grace_s=0.1) for gpus in (4, 2)]
    assert eventually(lambda: [kant.phase(job) for job in (own, others[0])] == ["running"] * 2)
    assert kant.job(own)["place"].keys() == {node} != kant.job(others[0])["place"].keys()
    assert eventually(lambda: "booked" in verb("why", others[1], *at).out)
    assert booked(kant)["exam"]["jobs"] == [own]
    assert "2 GPUs, in reservation exam" in verb("show", own, *at).out
    shown = verb("reservations", *at).out
    assert "exam" in shown and "active" in shown
    refused = verb("reservations", "--cancel", "exam", *at).refusal()
    assert f"expected no running jobs (cancel {own} first)" in refused
    kant.client.post(kant.client.job(own, "cancel"))
    assert eventually(lambda: not booked(kant)["exam"]["jobs"])
    assert [row["name"] for row in verb("reservations", "--cancel", "exam", "--json", *at).json()["reservations"]] == [
        "exam"
    ]
    assert eventually(lambda: kant.phase(others[1]) == "running")


def test_who_is_in_the_way_is_named_and_what_cannot_be_is_refused(kant: Up) -> None:
    at = ("--home", kant.home)
    block = kant.submit("sleep 600", gpus=4, time_s=3600, preemptible=False, grace_s=0.1)
    assert eventually(lambda: kant.phase(block) == "running")
    verb("reserve", "a", "--gpus", "3", "--start", "30m", "--time", "1h", *at).json  # noqa: B018
    said = verb("reserve", "b", "--gpus", "4", "--start", "45m", "--time", "5m", *at).refusal()
    assert "in the way: " in said and ("a" in said or f"job {block}" in said) and "it fits from" in said
    for arguments, expected in (
        (("a", "--gpus", "1", "--time", "1h"), "name: expected a name that no other reservation has, got 'a'"),
        (("c", "--gpus", "9", "--time", "1h"), "gpus: expected at most 8, as many as the cluster has"),
        (("c", "--gpus", "1", "--time", "1h", "--within", "rack"), "within"),
        (("c", "--gpus", "1"), "--time and --end: expected exactly one of them"),
        (("c", "--gpus", "1", "--end", "2001-01-01T00:00"), "expected an end after the start"),
        (("c", "--gpus", "1", "--time", "1h", "--model", "B200"), "model"),
    ):
        assert expected in verb("reserve", *arguments, *at).refusal()
    refused = verb("submit", "--reservation", "z", *at, "--", "true").refusal()
    assert "expected a reservation that has not ended (a), got 'z'" in refused
    refused = verb("submit", "--reservation", "a", "--gpus", "4", *at, "--", "true").refusal()
    assert "gpus: expected at most 3, as many as reservation a has" in refused


def test_it_outlives_kant_and_the_journal_decides_alike(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home) as kant:
        verb("reserve", "now", "--gpus", "2", "--time", "1h", "--home", home)
        verb("reserve", "later", "--gpus", "8", "--start", "2h", "--time", "1h", "--home", home)
        own = kant.submit("sleep 600", gpus=2, reservation="now", grace_s=0.1)
        waits = kant.submit("true", gpus=8, reservation="later")
        long = kant.submit("sleep 600", gpus=4, preemptible=False)
        assert eventually(lambda: kant.phase(own) == "running" and kant.phase(long) == "waiting")
        before = booked(kant)
        kant.kill()
    with Up(home) as kant:
        assert booked(kant) == before
        assert [kant.phase(job) for job in (own, waits, long)] == ["running", "waiting", "waiting"]
        journals = sorted((home / "journal").glob("*.jsonl"))
        for job in (own, waits, long):
            kant.client.post(kant.client.job(job, "cancel"))
        kant.over(own, waits, long)
    for journal in journals:
        assert "equal" in verb("replay", journal).out
        found = json.loads(verb("plan", "calendar", journal, "--json").out)
        assert {each["id"] for each in found["bookings"] if each["kind"] == "booked"} == {"now", "later"}
        assert found["collide"] == []


def test_when_it_begins_others_make_way_and_when_it_ends_its_jobs_have_had_their_time(kant: Up) -> None:
    guests = [kant.submit("sleep 600", gpus=4, grace_s=0.1) for _ in range(2)]
    assert eventually(lambda: all(kant.phase(job) == "running" for job in guests))
    begins = time.time() + 0.5
    asked = {"name": "exam", "gpus": 4, "start": begins, "duration_s": 2.0}
    made = kant.client.post("/v1/reservations", asked)["reservation"]
    assert made["phase"] == "pending"
    own = kant.submit("sleep 600", gpus=4, reservation="exam", grace_s=0.1)
    assert eventually(lambda: kant.phase(own) == "running")
    assert kant.job(own)["place"].keys() == made["place"].keys()
    assert sorted(kant.phase(job) for job in guests) == ["running", "waiting"]
    assert kant.over(own) == ["failed"]
    assert kant.job(own)["job"]["reason"] == "its reservation exam has ended"
    assert eventually(lambda: all(kant.phase(job) == "running" for job in guests) and not booked(kant))


def test_only_jobs_of_its_queues_name_it(tmp_path: Path) -> None:
    queues = QueueConfig((Queue("course"), Queue("lab", parent="course"), Queue("rest")))
    with Up(tmp_path / "home", queue_config=queues) as kant:
        at = ("--home", kant.home)
        verb("reserve", "exam", "--gpus", "1", "--time", "1h", "--queue", "course", *at)
        said = verb("submit", "--queue", "rest", "--reservation", "exam", "--gpus", "1", *at, "--", "true").refusal()
        assert "queue: expected one of reservation exam or one below: course, got 'rest'" in said
        job = kant.submit("true", gpus=1, queue="lab", reservation="exam")
        assert kant.over(job) == ["finished"]
        assert "queues" in verb("reserve", "x", "--gpus", "1", "--time", "1h", "--queue", "nowhere", *at).refusal()


def test_a_job_says_what_it_trains(kant: Up, tmp_path: Path) -> None:
    at = ("--home", kant.home)
    (tmp_path / "moe.toml").write_text('model = "mixtral-8x7b"\ntensor = 4\n')
    for training in (str(tmp_path / "moe.toml"), "mixtral-8x7b tensor=4"):
        job = verb("submit", "--gpus", "4", "--training", training, "--json", *at, "--", "true").json()["jobs"][0]
        assert kant.over(job) == ["finished"]
    lines = [json.loads(line) for path in (kant.home / "journal").glob("*") for line in path.read_text().splitlines()]
    trained = [line["job"]["training"] for line in lines if line.get("event") == "submitted"]
    assert [each["tensor"] for each in trained] == [4, 4] and trained[0] == trained[1]
    assert (
        "--training: expected a model, or the field layers"
        in verb("submit", "--training", "tensor=4", *at, "--", "true").refusal()
    )
    (tmp_path / "bad.toml").write_text("layers = 1\nwidth = 0\nhidden = 4\n")
    assert "width" in verb("submit", "--training", tmp_path / "bad.toml", *at, "--", "true").refusal()
