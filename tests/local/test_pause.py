"""Starts of a queue, or all, are paused and resumed; what runs runs on."""

from __future__ import annotations

import getpass
from pathlib import Path

from tests.cli.command import kant as verb
from tests.local.up import Up, eventually

from kant.model.tenant import Queue, QueueConfig, Quota
from kant.model.units import HOUR, SECOND


def states(kant: Up) -> dict[str, str]:
    return {row["queue"]: row["state"] for row in kant.client.get("/v1/queues")["queues"]}


def test_all_starts_pause_also_over_a_restart(tmp_path: Path) -> None:
    """Without queues of a file, those are meant that jobs name; also one that nobody has named before."""
    at = ("--home", tmp_path / "home")
    with Up(tmp_path / "home") as kant:
        runs = kant.submit("sleep 600", gpus=1, grace_s=0.1)
        assert eventually(lambda: kant.phase(runs) == "running")
        assert verb("queue", "pause", "--all", *at).out == "paused: all queues\n"
        waits = [kant.submit("sleep 0.1", gpus=1), kant.submit("sleep 0.1", gpus=1, queue="new")]
        why = {job: kant.client.get(kant.client.job(job, "why")) for job in waits}
        assert [answer["answer"]["sentence"] for answer in why.values()] == [
            "queue default is on hold: it starts no jobs", "queue new is on hold: it starts no jobs",
        ]  # fmt: skip
        assert states(kant) == {"default": "hold", "new": "hold"} and "hold" in verb("queue", *at).out
        kant.kill()
    with Up(tmp_path / "home") as kant:
        later = kant.submit("true", queue="later")
        assert eventually(lambda: kant.phase(later) == "waiting")
        assert states(kant) == {"default": "hold", "later": "hold", "new": "hold"}
        assert [kant.phase(job) for job in (runs, *waits)] == ["running", "waiting", "waiting"]
        assert "expected --all, since all queues are paused" in verb("queue", "resume", "new", *at).refusal()
        assert verb("queue", "resume", "--all", *at).out == "paused: none\n"
        assert kant.over(*waits, later) == ["finished"] * 3 and kant.phase(runs) == "running"
        assert set(states(kant).values()) == {"open"}
        kant.client.post(kant.client.job(runs, "cancel"))


def test_one_queue_and_those_below_it(tmp_path: Path) -> None:
    queues = QueueConfig((Queue("red"), Queue("team", "red"), Queue("blue"), Queue("shut", state="drain")))
    at = ("--home", tmp_path / "home")
    with Up(tmp_path / "home", queue_config=queues) as kant:
        assert verb("queue", "pause", "red", "--json", *at).json() == {"queues": ["red"], "all": False}
        jobs = {name: kant.submit("true", queue=name) for name in ("red", "team", "blue")}
        assert kant.over(jobs["blue"]) == ["finished"]
        assert [kant.phase(jobs[name]) for name in ("red", "team")] == ["waiting"] * 2
        assert states(kant) == {"red": "hold", "team": "hold", "blue": "open", "shut": "drain"}
        assert "expected some of red, team, blue, shut, got 'green'" in verb("queue", "pause", "green", *at).refusal()
        assert "queue shut" in verb("queue", "pause", "--all", *at).refusal()
        assert "expected the name of a paused queue" in verb("queue", "resume", "blue", *at).refusal()
        assert "the names of queues, or --all" in verb("queue", "pause", *at).refusal()
        assert "pause or resume before it" in verb("queue", "--all", *at).refusal()
        assert verb("queue", "resume", "red", *at).out == "paused: none\n"
        assert kant.over(jobs["red"], jobs["team"]) == ["finished"] * 2


def test_a_user_of_a_shared_queue_is_below_it(tmp_path: Path) -> None:
    """Also after a crash; and to pause what is paused tells the core nothing."""
    queues = QueueConfig((Queue("team", user_queues=True, quotas=(Quota(nominal=8000),)),))
    me, at = getpass.getuser(), ("--home", tmp_path / "home")
    with Up(tmp_path / "home", queue_config=queues) as kant:
        job = kant.submit("sleep 600", gpus=2, queue="team", grace_s=0.1)
        assert eventually(lambda: kant.phase(job) == "running")
        kant.kill()
    with Up(tmp_path / "home", queue_config=queues) as kant:
        rows = {row["queue"]: row for row in kant.client.get("/v1/queues")["queues"]}
        assert [(rows[name]["parent"], rows[name]["used_gpus"]) for name in ("team", f"team/{me}")] == [
            ("", 2),
            ("team", 2),
        ]
        before = told(tmp_path)
        for _ in range(2):
            verb("queue", "pause", "team", *at)
        later = kant.submit("true", queue="team")
        assert states(kant) == {"team": "hold", f"team/{me}": "hold"}
        assert "queue team is on hold" in verb("why", later, *at).out
        verb("queue", "resume", "team", *at)
        assert kant.over(later) == ["finished"]
        assert told(tmp_path) == before + 2
        kant.client.post(kant.client.job(job, "cancel"))


def told(folder: Path) -> int:
    """How often a core was told of queues."""
    return sum(file.read_text().count('"event":"queues"') for file in (folder / "home" / "journal").glob("*.jsonl"))


def test_a_queue_limits_how_long_its_jobs_run(tmp_path: Path) -> None:
    """From the submission on; who moves to the queue has its limit too, and an operator alone gives a run more."""
    queues = QueueConfig((Queue("all", max_time=HOUR), Queue("debug", "all", max_time=2 * SECOND), Queue("free")))
    at = ("--home", tmp_path / "home")
    with Up(tmp_path / "home", queue_config=queues) as kant:
        runs = kant.submit("sleep 600", queue="debug", grace_s=0.1)
        moves = kant.submit("true", queue="free", hold=True)
        asked = ("submit", "--queue", "debug", *at, "--time", "1h", "--", "true")
        assert "time_s: expected at most 2s in queue debug, got 3600" in verb(*asked).refusal()
        assert "at most 2s in queue debug" in verb("submit", "--test-only", *asked[1:]).refusal()
        assert (kant.job(runs)["time_s"], kant.job(moves)["time_s"]) == (2, None)
        assert kant.over(runs) == ["failed"] and kant.job(runs)["job"]["reason"] == "it reached its time limit of 2s"
        verb("update", moves, "--queue", "all", *at)
        assert kant.job(moves)["time_s"] == 3600
        assert "at most 1h in queue all" in verb("update", moves, "--time", "2h", *at).refusal()
        assert "at most 2s in queue debug" in verb("update", moves, "--queue", "debug", *at).refusal()
        longer = kant.submit("sleep 600", queue="all", grace_s=0.1)
        assert eventually(lambda: kant.phase(longer) == "running")
        verb("update", longer, "--time", "3h", *at)
        assert kant.job(longer)["time_s"] == 3 * 3600
        for job in (moves, longer):
            kant.client.post(kant.client.job(job, "cancel"))
