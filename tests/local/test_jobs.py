"""What a job of this machine can count on, seen from outside: one Kant, real processes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path

import msgspec
import pytest
from tests.local.up import Up, asked, eventually

from kant.local.processes import marked, started
from kant.local.runs import read_exit
from kant.model.errors import InputError
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.service.views import JobDetail, JobPage, ServiceHealth
from kant.service.views import Why as WhyView


def test_a_job_sees_its_gpus_alone_and_leaves_its_output_and_code(kant: Up) -> None:
    job = kant.submit(
        "echo $CUDA_VISIBLE_DEVICES $KANT_DEVICES $KANT_GPUS $MINE; pwd; exit 7", gpus=2, env=env(MINE="x")
    )
    assert kant.over(job) == ["failed"]
    first, where = kant.log(job).splitlines()
    assert first in ("0,1 node-00000:0,1 2 x", "2,3 node-00000:2,3 2 x")
    assert where == str(kant.home)
    found = msgspec.convert(kant.job(job), JobDetail)
    assert (found.job.code, found.job.signal, found.job.reason, found.job.attempt) == (7, None, "exit code 7", 1)
    assert kant.over(kant.submit('test -z "$CUDA_VISIBLE_DEVICES"')) == ["finished"]


def env(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"]} | more


def test_a_gang_of_two_nodes_has_whole_nodes(kant: Up) -> None:
    job = kant.submit("echo $KANT_NODES", gpus=8)
    assert kant.over(job) == ["finished"]
    assert kant.log(job) == "node-00000,node-00001\n"


def test_a_program_that_is_not_there_is_said_so(kant: Up) -> None:
    job = kant.client.post("/v1/jobs", asked(kant.home, "") | {"command": ["no-such-program"]})["jobs"][0]
    assert kant.over(job) == ["failed"]
    assert kant.job(job)["job"]["code"] == 127
    assert kant.log(job) == "kant: no-such-program: No such file or directory\n"


def test_a_job_whose_gpu_had_no_memory_left_is_said_so(kant: Up) -> None:
    """A run fails by its exit code alone; that it was its GPU is in the end of its output, as PyTorch writes it."""
    script = "echo torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. >&2; seq 9; exit 1"
    on_one, on_none = kant.submit(script, gpus=0.5), kant.submit(script)
    other = kant.submit("echo CUDA out of memory.; seq 9999; exit 1", gpus=1)
    assert kant.over(on_one, on_none, other) == ["failed"] * 3
    reasons = [kant.job(job)["job"]["reason"] for job in (on_one, on_none, other)]
    full = "exit code 1: its GPU had no memory left, as its output says"
    assert reasons == [full, "exit code 1", "exit code 1"]


def test_the_limit_warns_and_ends_a_job_and_all_it_has_started(kant: Up) -> None:
    script = "trap 'echo warned' USR1; trap 'echo told; exit 0' TERM; for i in $(seq 200); do sleep 0.1; done"
    polite = kant.submit(script, time_s=3.0, warn_s=1.5, grace_s=60.0)
    deaf = kant.submit("trap '' TERM; sleep 60 & wait; sleep 60", time_s=0.5, grace_s=0.3)
    assert kant.over(polite, deaf) == ["failed", "failed"]
    assert [line for line in kant.log(polite).splitlines() if line != "Terminated"] == ["warned", "told"]
    assert kant.job(polite)["job"]["reason"] == "it reached its time limit of 3s"
    assert kant.job(deaf)["job"]["signal"] == signal.SIGKILL


def test_who_flees_is_caught(kant: Up) -> None:
    job = kant.submit("setsid sh -c 'setsid sleep 300 & sleep 300' >/dev/null 2>&1 & sleep 0.2; echo done")
    assert kant.over(job) == ["finished"]
    assert marked(f"KANT_RUN={kant.home}/runs/{job}/1") == []
    assert kant.log(job) == "done\n"


def test_retries_arrays_and_what_comes_after(kant: Up) -> None:
    twice = kant.submit('test "$KANT_ATTEMPT" = 2', retries=1)
    array = kant.submit("exit $KANT_ARRAY_INDEX", array=[0, 1]).partition("_")[0]
    any_way = kant.submit("true", after=[array])
    well = kant.submit("true", after_ok=[array])
    good = kant.submit("true", after_ok=[f"{array}_0"])
    ends = kant.over(f"{array}_0", f"{array}_1", any_way, well, good)
    assert ends == ["finished", "failed", "finished", "cancelled", "finished"]
    assert f"depends on the success of job {array}_1" in kant.job(well)["job"]["reason"]
    last = max(kant.job(f"{array}_{index}")["job"]["ended"] for index in (0, 1))
    assert kant.job(any_way)["job"]["started"] >= last
    assert kant.over(twice) == ["finished"]
    assert kant.job(twice)["job"]["attempt"] == 2


def test_held_jobs_wait_cancelled_ones_go_and_why_says_so(kant: Up) -> None:
    held = kant.submit("true", hold=True)
    full = kant.submit("sleep 60", gpus=8)
    assert eventually(lambda: kant.phase(full) == "running")
    behind = kant.submit("true", gpus=8)
    why = msgspec.convert(kant.client.get(kant.client.job(behind, "why")), WhyView)
    assert why.phase == "waiting" and why.answer is not None and why.sentence
    assert [row["job"] for row in kant.client.get("/v1/eta")["jobs"]] == [behind]
    assert kant.client.get("/v1/top")["pools"][0]["allocated"] == 8
    assert "held" in kant.client.get(kant.client.job(held, "why"))["sentence"]
    kant.client.post(kant.client.job(behind, "hold"))
    kant.client.post(kant.client.job(full, "cancel"))
    assert kant.over(full) == ["cancelled"]
    assert kant.phase(behind) == kant.phase(held) == "held"
    for job in (held, behind):
        kant.client.post(kant.client.job(job, "release"))
    assert kant.over(held, behind) == ["finished", "finished"]
    with pytest.raises(InputError, match="expected a waiting job, got 'finished'"):
        kant.client.post(kant.client.job(held, "hold"))


def test_a_more_urgent_job_takes_a_place_and_the_other_runs_again(kant: Up) -> None:
    runs = "trap 'echo out; exit 0' TERM; echo in; while [ ! -e begun.again ]; do sleep 0.1; done"
    low = kant.submit(runs, gpus=8, grace_s=60.0)
    assert eventually(lambda: "in" in kant.log(low))
    high = kant.submit("true", gpus=4, priority=10)
    assert kant.over(high) == ["finished"]
    (kant.home / "begun.again").touch()
    assert kant.over(low) == ["finished"]
    found = kant.job(low)["job"]
    assert found["attempt"] == 2 and kant.job(high)["job"]["started"] < found["started"]
    first = (kant.home / "runs" / low / "1").glob("log.*")
    assert [line for file in first for line in file.read_text().split() if line != "Terminated"] == ["in", "out"]


def test_pages_go_on_where_the_last_ended(kant: Up) -> None:
    kant.over(*(kant.submit("true") for _ in range(12)))
    page, seen = msgspec.convert(kant.client.get("/v1/jobs", limit=2), JobPage), []
    while page.jobs:
        seen += [job.seq for job in page.jobs]
        page = msgspec.convert(kant.client.get("/v1/jobs", limit=2, before=page.next or 0), JobPage)
    assert len(seen) > 10 and seen == list(range(seen[0], 0, -1))
    assert msgspec.convert(kant.client.get("/v1/health"), ServiceHealth).gpus == 8


def test_a_change_is_told_to_those_who_follow(kant: Up) -> None:
    _, body = kant.client.stream("/v1/events")
    assert next(body) == b": kant\n\n"
    job, text = kant.submit("true"), b""
    while b'"phase":"finished"' not in text:
        text += next(body)
    told = [json.loads(line[6:]) for line in text.decode().splitlines() if line.startswith("data: ")]
    assert [row["phase"] for row in told if row["id"] == job] == ["running", "finished"] or [
        row["phase"] for row in told if row["id"] == job
    ] == ["waiting", "running", "finished"]


def test_a_log_without_end_keeps_the_last_of_it(tmp_path: Path) -> None:
    with Up(tmp_path / "home", log_bytes=1 << 16) as kant:
        job = kant.submit("seq 100000")
        kant.over(job)
        headers, body = kant.client.stream(kant.client.job(job, "log"))
        text, whole = b"".join(body).decode(), "".join(f"{number}\n" for number in range(1, 100_001))
        assert len(text) <= 1 << 16 and whole.endswith(text)
        assert int(headers["X-Kant-Offset"]) == len(whole) - len(text)


def test_a_log_of_256_mebibytes_costs_what_may_be_kept_of_it(tmp_path: Path) -> None:
    with Up(tmp_path / "home", log_bytes=1 << 20) as kant:
        job = kant.submit("head -c 268435456 /dev/zero | tr '\\0' x; echo; echo end")
        assert kant.over(job) == ["finished"]
        files = list((kant.home / "runs" / job / "1").glob("log.*"))
        assert sum(file.stat().st_size for file in files) <= 1 << 20
        headers, body = kant.client.stream(kant.client.job(job, "log"), offset=-5)
        assert b"".join(body) == b"\nend\n" and int(headers["X-Kant-End"]) == (1 << 28) + 5


def test_quotas_hold_and_unknown_queues_are_refused(tmp_path: Path) -> None:
    queues = tuple(Queue(name, isolated=True, quotas=(Quota(nominal=2000),)) for name in ("a", "b"))
    with Up(tmp_path / "home", queue_config=QueueConfig(queues)) as kant:
        until = "while [ ! -e go ]; do sleep 0.05; done"
        first, second = (kant.submit(until, queue="a", gpus=2) for _ in range(2))
        other = kant.submit("true", queue="b", gpus=2)
        with pytest.raises(InputError, match="queue: expected one of a, b, got 'c'"):
            kant.submit("true", queue="c")
        assert "over quota" in kant.client.get(kant.client.job(second, "why"))["sentence"]
        (kant.home / "go").touch()
        assert kant.over(first, second, other) == ["finished"] * 3
        assert kant.job(second)["job"]["started"] >= kant.job(first)["job"]["ended"] - 1000
        assert [row["nominal_gpus"] for row in kant.client.get("/v1/queues")["queues"]] == [2, 2]


def test_what_ran_while_kant_was_away_is_accounted_for(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Up(home) as kant:
        until = "while [ ! -e {} ]; do sleep 0.05; done; {}"
        short, long = kant.submit("exit 3"), kant.submit(until.format("late", "echo late"), gpus=4)
        slain = kant.submit("sleep 60")
        assert eventually(lambda: [kant.phase(job) for job in (long, slain)] == ["running"] * 2)
        kant.over(short)
        gone = kant.submit(until.format("gone", "exit 5"))
        assert eventually(lambda: kant.phase(gone) == "running")
        claims = [home / "runs" / job / "1" / "claim" for job in (long, slain, gone)]
        assert eventually(lambda: all(file.exists() for file in claims))
        claim = json.loads((home / "runs" / slain / "1" / "claim").read_text())
        kant.kill()
    os.kill(claim["pid"], signal.SIGKILL)
    (home / "gone").touch()
    assert eventually(lambda: started(claim["pid"]) is None and read_exit(home / "runs" / gone / "1") is not None)
    with Up(home) as kant:
        assert kant.phase(long) == "running"
        assert kant.client.get("/v1/top")["pools"][0]["allocated"] == 4
        (home / "late").touch()
        assert kant.over(gone, slain, long) == ["failed", "failed", "finished"]
        assert kant.job(gone)["job"]["code"] == 5
        assert kant.job(slain)["job"]["reason"] == "its supervisor was killed"
        assert marked(f"KANT_RUN={home}/runs/{slain}/1") == []
        assert kant.log(long) == "late\n"
        assert kant.job(long)["job"]["attempt"] == 1
        assert int(kant.submit("true")) > int(gone)
    audit = sqlite3.connect(home / "kant.db").execute("SELECT who, verb, what FROM audit ORDER BY seq").fetchall()
    assert [row[1:] for row in audit[:2]] == [("submit", short), ("submit", long)]
    assert f"uid {os.getuid()}" in audit[0][0]


def test_a_wait_is_split_by_cause_and_the_split_outlives_kant(tmp_path: Path) -> None:
    def waited(kant: Up, job: str) -> dict[str, int]:
        why = msgspec.convert(kant.client.get(kant.client.job(job, "why")), WhyView)
        assert why.waited_us is not None
        split = dict(why.waited_us)
        assert split.pop("total") == sum(split.values()), "whole microseconds, which add up"
        return split

    with Up(tmp_path / "home") as kant:
        first, late = kant.submit("sleep 600", gpus=8), kant.submit("sleep 600", gpus=8)
        assert eventually(lambda: waited(kant, late).get("capacity", 0) > 0)
        then = waited(kant, late)
    with Up(tmp_path / "home") as kant:
        split = waited(kant, late)
        assert split["capacity"] >= then["capacity"], "it has been written down"
        assert split["unknown"] > 0, "nobody followed while no Kant ran"
        kant.client.post(kant.client.job(first, "cancel"))
        assert eventually(lambda: kant.phase(late) == "running")
        split = waited(kant, late)
        assert waited(kant, late) == split, "it waits no longer"
        kant.client.post(kant.client.job(late, "cancel"))
        kant.over(first, late)
        assert waited(kant, late) == split
    with Up(tmp_path / "home") as kant:
        assert waited(kant, late) == split, "it was over before this Kant, which knows it all the same"
